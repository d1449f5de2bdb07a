"""``tritonclient.grpc.service_pb2`` can be imported, and refuses its messages: this client does without protobuf."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(
        f"service_pb2.{name} is not supported: this client has no protobuf messages; results are read-only objects with the same "
        "fields"
    )
