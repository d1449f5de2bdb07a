"""Tests KServe's clients against the server of simple models. Called by suite.py; prints failures and result lines."""

import asyncio
import logging
import sys

import grpc
import numpy as np
from kserve import InferInput, InferRequest
from kserve.inference_client import InferenceGRPCClient, InferenceRESTClient, RESTConfig
from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub
from report import Report, expect


def request(model, values, is_binary):
    tensor = InferInput("x", [len(values)], "FP32")
    tensor.set_data_from_numpy(np.array(values, dtype=np.float32), binary_data=is_binary)
    return InferRequest(model, [tensor])


async def raised(awaitable):
    try:
        await awaitable
    except Exception as error:  # each client has its own exceptions
        return error
    raise AssertionError("it did not fail")


async def rest(report, address):
    client = InferenceRESTClient(RESTConfig(protocol="v2", timeout=20))
    url = f"http://{address}"
    for is_binary in (True, False):

        async def infer():
            response = await client.infer(url, request("identity_fp32", [1.5, -2], is_binary), model_name="identity_fp32")
            expect(response.outputs[0].as_numpy().tolist(), [1.5, -2])

        await run(report, "FP32", "kserve REST", f"binary {is_binary}", infer)

    async def health():
        expect(await client.is_server_ready(url), True)
        expect(await client.is_server_live(url), True)
        expect(await client.is_model_ready(url, "matrix"), True)
        expect(await client.is_model_ready(url, "zz"), False)

    async def failures():
        error = await raised(client.infer(url, request("zz", [1], True), model_name="zz"))
        assert "model 'zz' does not exist" in str(error), error

    await run(report, "health, metadata", "kserve REST", "health", health)
    await run(report, "failures", "kserve REST", "unknown model", failures)
    await client.close()


async def grpc_client(report, address):
    client = InferenceGRPCClient(address, timeout=20)

    for is_binary in (True, False):

        async def infer():
            response = await client.infer(request("identity_fp32", [1.5, -2], is_binary))
            expect(response.outputs[0].as_numpy().tolist(), [1.5, -2])

        await run(report, "FP32", "kserve gRPC", f"raw {is_binary}", infer)

    async def health():
        expect(await client.is_server_ready(), True)
        expect(await client.is_server_live(), True)
        expect(await client.is_model_ready("matrix"), True)

    async def failures():
        error = await raised(client.infer(request("zz", [1], True)))
        assert "model 'zz' does not exist" in str(error), error

    async def load_and_unload():
        # KServe's messages for these calls have the model's name in the field of Triton's repository name.
        with grpc.insecure_channel(address) as channel:
            stub = GRPCInferenceServiceStub(channel)
            stub.RepositoryModelLoad(messages.RepositoryModelLoadRequest(model_name="nan"))
            stub.RepositoryModelUnload(messages.RepositoryModelUnloadRequest(model_name="nan"))
            try:
                stub.RepositoryModelLoad(messages.RepositoryModelLoadRequest(model_name="zz"))
                raise AssertionError("it did not fail")
            except grpc.RpcError as error:
                expect((error.code().name, error.details()), ("NOT_FOUND", "model 'zz' does not exist"))

    await run(report, "health, metadata", "kserve gRPC", "health", health)
    await run(report, "failures", "kserve gRPC", "unknown model", failures)
    await run(report, "extensions", "kserve gRPC", "load_and_unload", load_and_unload)
    await client.close()


async def run(report, group, client, name, function):
    """Runs an asynchronous check in the current event loop, and reports its result."""
    try:
        await function()
        outcome = None
    except Exception as error:  # a failure fails only this check
        outcome = error

    def result():
        if outcome is not None:
            raise outcome

    report.check(group, client, name, result)


async def main():
    http, grpc_address, only, verbose = sys.argv[1:5]
    logging.disable()
    report = Report(only, bool(verbose))
    await rest(report, http)
    await grpc_client(report, grpc_address)
    for line in report.lines():
        print(line)


if __name__ == "__main__":
    asyncio.run(main())
