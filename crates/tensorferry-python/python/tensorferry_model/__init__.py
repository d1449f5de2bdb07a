"""What a ``model.py`` may import: how to refuse a request, and what a model is told.

``oip-server`` has these names for the models that it runs in processes; here they are for those that :class:`tensorferry.Server`
serves, and for tests of a ``model.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any


class InferenceError(Exception):
    """A model's way to refuse a request: the client gets the message and the status (an HTTP status: 400, 404, 408, 413,
    429, 499, 501, 503, 504; any other is 500)."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Context:
    """What a model is told when it is made."""

    def __init__(self, name: str, version: str = "", folder: str = "", config: Mapping[str, Any] | None = None) -> None:
        #: The model's name and version; the version is "" for models without.
        self.name = name
        self.version = version
        #: The folder of model.py; the current one for a model without a file.
        self.folder = folder
        #: The configuration as a dict, spelled as in config.pbtxt; empty without one.
        self.config: dict[str, Any] = dict(config or {})
        #: The parameters of the configuration: name to text.
        self.parameters: dict[str, str] = {
            key: value.get("string_value", "") for key, value in self.config.get("parameters", {}).items()
        }

    def __repr__(self) -> str:
        return f"Context({self.name!r}, version={self.version!r}, folder={self.folder!r})"

    def infer(self, model: str, inputs: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        """Other models are asked by models of ``oip-server`` only."""
        raise InferenceError("only models of oip-server can call other models", status=501)

    async def infer_async(self, model: str, inputs: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        """Other models are asked by models of ``oip-server`` only."""
        return self.infer(model, inputs, **options)

    def stream(self, model: str, inputs: Mapping[str, Any], **options: Any) -> Any:
        """Other models are asked by models of ``oip-server`` only."""
        return self.infer(model, inputs, **options)


class Request:
    """What a request has besides its inputs; ``infer`` gets it when it has a parameter called ``request``."""

    def __init__(
        self,
        id: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        outputs: Sequence[str] = (),
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        #: The client's name for the request, or None.
        self.id = id
        #: Its parameters.
        self.parameters = dict(parameters or {})
        #: The names of the outputs that are wanted; empty for all. Others may be left out.
        self.outputs = list(outputs)
        self._is_cancelled = is_cancelled

    def __repr__(self) -> str:
        return f"Request(id={self.id!r}, parameters={self.parameters}, outputs={self.outputs})"

    def is_cancelled(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self._is_cancelled()


__all__ = ["Context", "InferenceError", "Request"]
