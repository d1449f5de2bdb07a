"""What changes the headers of every request of a client."""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod


class Request:
    """A request as plugins see it: ``headers``, which they may change."""

    def __init__(self, headers: dict[str, str] | None) -> None:
        self.headers = {} if headers is None else headers


class InferenceServerClientPlugin(ABC):
    """Called with each :class:`Request` before it is sent; see ``register_plugin`` of the clients."""

    @abstractmethod
    def __call__(self, request: Request) -> None:
        """Changes the request in place."""


class BasicAuth(InferenceServerClientPlugin):
    """Sends a name and a password (RFC 7617), both in ASCII."""

    def __init__(self, username: str, password: str) -> None:
        self._value = "Basic " + base64.b64encode(f"{username}:{password}".encode("ascii")).decode()

    def __call__(self, request: Request) -> None:
        request.headers["authorization"] = self._value
