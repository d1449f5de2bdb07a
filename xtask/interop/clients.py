"""Gives Triton's four clients one interface, so that a check is written only once. With the variable `INTEROP_COMPAT`,
uses the clients of the same names in the package `tensorferry`."""

import asyncio
import os

#: Whether the clients are those in `tensorferry.compat`.
IS_COMPAT = bool(os.environ.get("INTEROP_COMPAT"))

if IS_COMPAT:
    import tensorferry.compat.tritonclient.grpc as grpc_client
    import tensorferry.compat.tritonclient.grpc.aio as grpc_aio_client
    import tensorferry.compat.tritonclient.http as http_client
    import tensorferry.compat.tritonclient.http.aio as http_aio_client
    from tensorferry.compat.tritonclient.utils import (
        InferenceServerException,
        serialize_byte_tensor,
        shared_memory,
    )
else:
    import tritonclient.grpc as grpc_client
    import tritonclient.grpc.aio as grpc_aio_client
    import tritonclient.http as http_client
    import tritonclient.http.aio as http_aio_client
    from tritonclient.utils import InferenceServerException, serialize_byte_tensor, shared_memory


class Client:
    """One of the clients, connected to a server."""

    def __init__(self, name, module, address, loop=None, **options):
        self.name = name
        self.module = module
        self.address = address
        self.is_http = "http" in name
        self.is_grpc = not self.is_http
        self._loop = loop
        self.raw = self._make(module, address, options)

    def _make(self, module, address, options):
        if self._loop is None:
            return module.InferenceServerClient(address, **options)

        async def make():
            return module.InferenceServerClient(address, **options)

        return self._loop.run_until_complete(make())

    def call(self, method, *arguments, **named):
        """Calls the client's method of this name, and waits for the result."""
        result = getattr(self.raw, method)(*arguments, **named)
        if self._loop is not None:
            result = self._loop.run_until_complete(result)
        return result

    def wait_for(self, coroutine):
        """Runs a coroutine of an asynchronous client to its end."""
        return self._loop.run_until_complete(coroutine)

    @property
    def is_async(self):
        return self._loop is not None

    def input(self, array, datatype, name="x", is_binary=True):
        tensor = self.module.InferInput(name, list(array.shape), datatype)
        if self.is_http:
            tensor.set_data_from_numpy(array, binary_data=is_binary)
        else:
            tensor.set_data_from_numpy(array)
        return tensor

    def output(self, name="y", is_binary=True, class_count=0):
        if self.is_http:
            return self.module.InferRequestedOutput(name, binary_data=is_binary, class_count=class_count)
        return self.module.InferRequestedOutput(name, class_count=class_count)

    def json(self, method, *arguments, **named):
        """Calls a method whose response is JSON over either transport."""
        if self.is_grpc:
            named["as_json"] = True
        return self.call(method, *arguments, **named)

    def fails(self, method, *arguments, **named):
        """Calls a method that must fail. Returns the status and the message."""
        try:
            result = self.call(method, *arguments, **named)
        except InferenceServerException as error:
            return status_of(error), error.message()
        raise AssertionError(f"it did not fail: {result}")


def status_of(error):
    """Returns the HTTP status as a number, or the name of the gRPC code."""
    status = str(error.status())
    return int(status) if status.isdigit() else status.removeprefix("StatusCode.")


def connect(http, grpc):
    """Connects the four clients."""
    loop = asyncio.new_event_loop()
    return [
        Client("http", http_client, http, concurrency=4, connection_timeout=120, network_timeout=120),
        Client("http.aio", http_aio_client, http, loop=loop),
        Client("grpc", grpc_client, grpc),
        Client("grpc.aio", grpc_aio_client, grpc, loop=loop),
    ]
