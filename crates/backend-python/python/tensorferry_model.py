"""What a `model.py` may import: how to refuse a request, and what a model is told."""

import threading


class InferenceError(Exception):
    """The model's refusal of a request: the client gets the message and the HTTP status (gRPC: the code for it)."""

    def __init__(self, message, status=400):
        super().__init__(message)
        self.status = status


class Context:
    """What a model is told when it is made."""

    def __init__(self, name, version, folder, config):
        #: The model's name and version; the version is "" for models without.
        self.name = name
        self.version = version
        #: The folder of model.py.
        self.folder = folder
        #: The configuration as a dict, spelled as in config.pbtxt.
        self.config = config
        #: The parameters of the configuration: name to text.
        self.parameters = {name: value.get("string_value", "") for name, value in config.get("parameters", {}).items()}

    def infer(self, model, inputs, *, version=None, outputs=(), parameters=None, timeout=None):
        """Asks another model of the server: its outputs as a dict of arrays.

        `inputs` is a dict of names and arrays; `timeout` are seconds, at most what is left to the request that is being answered.
        Raises InferenceError with what the other model says; a model that lets it pass refuses its own request with it.
        """
        call = _ask(model, inputs, version, outputs, parameters, timeout)
        try:
            return _outputs(call.take()[0])
        except _calls().Failed as failure:
            raise InferenceError(str(failure), failure.status) from None

    async def infer_async(self, model, inputs, *, version=None, outputs=(), parameters=None, timeout=None):
        """The same for `await`: others can be asked meanwhile, up to 256 at once."""
        call = _ask(model, inputs, version, outputs, parameters, timeout)
        try:
            return _outputs((await call.take_later())[0])
        except _calls().Failed as failure:
            raise InferenceError(str(failure), failure.status) from None

    def stream(self, model, inputs, *, version=None, outputs=(), parameters=None, timeout=None):
        """Asks a model that gives any number of answers: an iterator over them, for `for` and `async for`, with `close()`."""
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
    """What a request has besides its inputs; `infer` gets it when it has a parameter called `request`."""

    def __init__(self, number, id, parameters, outputs):
        self._number = number
        #: The client's name for the request, or None.
        self.id = id
        #: Its parameters.
        self.parameters = parameters
        #: The names of the outputs that are wanted; empty for all. Others may be left out.
        self.outputs = outputs

    def is_cancelled(self):
        """Whether nobody waits for the answer any more. A model that goes on for four seconds then is killed."""
        return self._number in _cancelled


class _Cancelled:
    """Numbers of requests that are cancelled and not over; added by a thread that reads what the server says meanwhile."""

    #: A number that comes after the end of its request stays until there are so many.
    _MOST = 1000

    def __init__(self):
        self._numbers = set()
        #: What to do once a request is cancelled, by its number.
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
        """Calls it once the request is cancelled, from any thread, unless it is over by then."""
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
