"""``tritonclient.grpc.service_pb2_grpc`` can be imported, and refuses its stubs: this client does without protobuf."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(
        f"service_pb2_grpc.{name} is not supported: this client has no protobuf stubs; InferenceServerClient has a method for each call"
    )
