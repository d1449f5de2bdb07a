"""The module that a `model.py` may import: the error to refuse a request, and information about the model."""

import threading


class InferenceError(Exception):
    """Raised by a model to refuse a request. The client receives the message and the HTTP status (over gRPC, the
    corresponding code)."""

    def __init__(self, message, status=400):
        super().__init__(message)
        self.status = status


class Context:
    """Information for a model, passed to its constructor."""

    def __init__(self, name, version, folder, config):
        #: The model's name and version; the version is "" for models without versions.
        self.name = name
        self.version = version
        #: The directory of model.py.
        self.folder = folder
        #: The configuration as a dict, with the field names of config.pbtxt.
        self.config = config
        #: The parameters in the configuration: strings by name.
        self.parameters = {name: value.get("string_value", "") for name, value in config.get("parameters", {}).items()}

    def infer(self, model, inputs, *, version=None, outputs=(), parameters=None, timeout=None):
        """Calls another model of the server. Returns its outputs as a dict of arrays.

        `inputs` is a dict of names and arrays. `timeout` is in seconds, and at most the time that is left to the
        request being answered. Raises InferenceError with the other model's error; if a model does not catch it, its
        own request fails with that error.
        """
        call = _ask(model, inputs, version, outputs, parameters, timeout)
        try:
            return _outputs(call.take()[0])
        except _calls().Failed as failure:
            raise InferenceError(str(failure), failure.status) from None

    async def infer_async(self, model, inputs, *, version=None, outputs=(), parameters=None, timeout=None):
        """Calls another model like `infer`, for `await`. Other models can be called meanwhile, up to 256 at once."""
        call = _ask(model, inputs, version, outputs, parameters, timeout)
        try:
            return _outputs((await call.take_later())[0])
        except _calls().Failed as failure:
            raise InferenceError(str(failure), failure.status) from None

    def stream(self, model, inputs, *, version=None, outputs=(), parameters=None, timeout=None):
        """Calls a model that sends any number of responses. Returns an iterator for `for` and `async for`, with `close()`."""
        call = _ask(model, inputs, version, outputs, parameters, timeout, several=True)
        return _calls().Answers(call, _outputs, _raise)


def _calls():
    import tensorferry_calls

    return tensorferry_calls


def _ask(model, inputs, version, outputs, parameters, timeout, several=False):
    calls = _calls()
    options = {"version": version, "outputs": outputs, "parameters": parameters, "several": several}
    try:
        return calls.ask(model, inputs.items(), timeout=None if timeout is None else max(1, timeout * 1e6), **options)
    except calls.Failed as failure:
        raise InferenceError(str(failure), failure.status) from None


def _outputs(outputs):
    return {name: array for name, _, array in outputs or ()}


def _raise(failure):
    raise InferenceError(str(failure), failure.status)


class Request:
    """The properties of a request other than its inputs. `infer` receives it if it has a parameter named `request`."""

    def __init__(self, number, id, parameters, outputs):
        self._number = number
        #: The id that the client gave the request, or None.
        self.id = id
        #: The request's parameters.
        self.parameters = parameters
        #: The names of the requested outputs; empty for all. Other outputs may be omitted.
        self.outputs = outputs

    def is_cancelled(self):
        """Returns whether no client waits for the response any more. A model that continues for four seconds after that is
        killed."""
        return self._number in _cancelled


class _Cancelled:
    """Numbers of requests that are cancelled but have not ended. The thread that reads from the server adds them."""

    #: Maximum number of entries: numbers that arrive after their request has ended stay until this is exceeded.
    _MOST = 1000

    def __init__(self):
        self._numbers = set()
        #: Actions to run once a request is cancelled, by the request's number.
        self._actions = {}
        self._changing = threading.Lock()

    def __contains__(self, number):
        return number in self._numbers

    def note(self, number):
        with self._changing:
            self._numbers.add(number)
            action = self._actions.pop(number, None)
            if len(self._numbers) > self._MOST:
                self._numbers.remove(min(self._numbers))
        if action is not None:
            action()

    def when(self, number, action):
        """Calls `action`, from any thread, once the request is cancelled, unless the request has ended by then."""
        with self._changing:
            if number not in self._numbers:
                self._actions[number] = action
                return
        action()

    def forget(self, number):
        if number not in self._numbers and number not in self._actions:
            return
        with self._changing:
            self._numbers.discard(number)
            self._actions.pop(number, None)


_cancelled = _Cancelled()
