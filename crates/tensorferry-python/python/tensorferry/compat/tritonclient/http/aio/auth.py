"""``tritonclient.http.aio.auth``."""

from ..._plugin import BasicAuth

__all__ = ["BasicAuth"]
