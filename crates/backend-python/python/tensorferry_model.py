"""What a `model.py` may import: how to refuse a request, and what a model is told."""


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
        return _cancelled.number >= self._number


class _Cancelled:
    """The number of the last request that was cancelled; set by a thread that reads what the server says meanwhile."""

    number = 0


_cancelled = _Cancelled()
