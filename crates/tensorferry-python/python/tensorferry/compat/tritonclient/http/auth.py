"""``tritonclient.http.auth``."""

from .._plugin import BasicAuth

__all__ = ["BasicAuth"]
