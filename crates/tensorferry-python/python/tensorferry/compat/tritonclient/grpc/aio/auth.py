"""``tritonclient.grpc.aio.auth``."""

from ..._plugin import BasicAuth

__all__ = ["BasicAuth"]
