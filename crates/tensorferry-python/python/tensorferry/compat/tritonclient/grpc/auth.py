"""``tritonclient.grpc.auth``."""

from .._plugin import BasicAuth

__all__ = ["BasicAuth"]
