"""Tests other projects' clients against two servers: one of simple models with every extension, and the real server.

Usage: suite.py HTTP GRPC HTTP GRPC REQUESTS, with the addresses of the first and of the second server, and the
directory of the second server's example requests. The exit code is 1 if a check fails. Called by `cargo xtask interop`.
"""

import argparse
import asyncio
import json
import os
import pathlib
import queue
import subprocess
import sys
import threading
import urllib.request

import grpc
import ml_dtypes
import numpy as np
from clients import (
    IS_COMPAT,
    InferenceServerException,
    connect,
    serialize_byte_tensor,
    shared_memory,
    status_of,
)
from report import Report, expect

NUMPY = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}

# The form of each model, and the shape of its input.
SHAPES = {
    "scalar": ("_scalar", ()),
    "empty": ("", (0,)),
    "one": ("", (1,)),
    "vector": ("", (7,)),
    "matrix": ("_matrix", (2, 3)),
    "no rows": ("_matrix", (0, 3)),
    "large": ("", (200_000,)),
}


def sample(datatype, shape, is_text):
    """Returns a tensor that contains the extremes of its datatype; with `is_text`, one that JSON can represent."""
    count = int(np.prod(shape))
    kind = NUMPY[datatype]
    if datatype == "BOOL":
        some = [True, False, False]
    elif datatype == "BYTES":
        some = ["größe".encode(), b"", b'quoted "\\', b"x" * 1000 if count < 100 else b"x"]
        some += [] if is_text else [b"\xff\x00\xfe"]
    elif datatype in ("FP16", "BF16", "FP32", "FP64"):
        some = [0.1, -0.0, 1.5, -3.25e4, 1e-5] + ([] if is_text else [float("nan"), float("inf"), -float("inf")])
    else:
        limits = np.iinfo(kind)
        some = [limits.max, limits.min, 1, 0]
    flat = np.array([some[i % len(some)] for i in range(count)], dtype=kind)
    return flat.reshape(shape)


def same(found, expected):
    """Fails unless both tensors have the same bytes."""
    expect(found.shape, expected.shape)
    if expected.dtype == np.object_:
        text = lambda value: value if isinstance(value, bytes) else str(value).encode()
        expect([text(value) for value in found.flatten()], [text(value) for value in expected.flatten()])
        return
    expect(found.astype(expected.dtype).tobytes(), expected.tobytes())


def floats(*values):
    return np.array(values, dtype=np.float32)


def tensors(report, client):
    """Checks every datatype in every shape, in each way to send and receive it."""
    ways = [(True, True), (True, False), (False, True), (False, False)] if client.is_http else [(True, True)]
    for datatype in NUMPY:
        for shape_name, (form, shape) in SHAPES.items():
            for is_binary_in, is_binary_out in ways:
                if datatype == "BF16" and not is_binary_in:
                    continue  # the client itself refuses this

                def check():
                    array = sample(datatype, shape, is_text=not (is_binary_in and is_binary_out))
                    inputs = [client.input(array, datatype, is_binary=is_binary_in)]
                    outputs = [client.output(is_binary=is_binary_out)]
                    model = f"identity_{datatype.lower()}{form}"
                    result = client.call("infer", model, inputs, outputs=outputs, request_id="42")
                    same(result.as_numpy("y"), array)
                    response = result.get_response()
                    found = response["id"] if client.is_http else response.id
                    expect(found, "42")

                way = f" {'binary' if is_binary_in else 'JSON'} in, {'binary' if is_binary_out else 'JSON'} out"
                report.check(f"{datatype}", client.name, shape_name + (way if client.is_http else ""), check)
    # If no outputs are named, each client requests all of them in its own way.
    report.check(
        "FP32",
        client.name,
        "all outputs",
        lambda: same(
            client.call("infer", "identity_fp32", [client.input(floats(1, 2), "FP32")]).as_numpy("y"), floats(1, 2)
        ),
    )


def compression(report, client):
    """Checks each compression in both directions."""
    kinds = [None, "gzip", "deflate"]
    ways = [(a, b) for a in kinds for b in kinds] if client.is_http else [(a, a) for a in kinds]
    for size in (3, 100_000):
        array = sample("INT32", (size,), is_text=True)
        for sent, received in ways:
            for is_binary in (True, False) if client.is_http else (True,):

                def check():
                    named = {"compression_algorithm": sent}
                    if client.is_http:
                        named = {"request_compression_algorithm": sent, "response_compression_algorithm": received}
                    inputs = [client.input(array, "INT32", is_binary=is_binary)]
                    outputs = [client.output(is_binary=is_binary)]
                    result = client.call("infer", "identity_int32", inputs, outputs=outputs, **named)
                    same(result.as_numpy("y"), array)

                form = ("binary" if is_binary else "JSON") if client.is_http else ""
                report.check("compression", client.name, f"{size} {sent} {received} {form}", check)


def health_and_metadata(report, client):
    def health():
        expect(client.call("is_server_live"), True)
        expect(client.call("is_server_ready"), True)
        expect(client.call("is_model_ready", "matrix"), True)
        expect(client.call("is_model_ready", "matrix", "2"), True)
        expect(client.call("is_model_ready", "loading"), False)

    def unknown_model_is_not_ready():
        if client.is_http:
            expect(client.call("is_model_ready", "zz"), False)
        else:
            expect(client.fails("is_model_ready", "zz"), ("NOT_FOUND", "model 'zz' does not exist"))

    def server_metadata():
        metadata = client.json("get_server_metadata")
        expect((metadata["name"], metadata["version"]), ("test", "1.2.3"))
        for extension in (
            "binary_tensor_data",
            "classification",
            "logging",
            "model_configuration",
            "model_repository",
            "model_repository(unload_dependents)",
            "parameters",
            "schedule_policy",
            "statistics",
            "system_shared_memory",
        ):
            assert extension in metadata["extensions"], extension

    def model_metadata():
        metadata = client.json("get_model_metadata", "matrix")
        expect((metadata["name"], metadata["versions"]), ("matrix", ["1", "2"]))
        shapes = [[int(dim) for dim in tensor["shape"]] for tensor in metadata["inputs"]]
        expect(shapes, [[-1, 2], [1]])

    for check in (health, unknown_model_is_not_ready, server_metadata, model_metadata):
        report.check("health, metadata", client.name, check.__name__, check)


def several_tensors(report, client):
    def check(order, binary):
        a = np.array([[1, 2], [3, 4]], dtype=np.float32)
        b = np.array([5], dtype=np.int64)
        inputs = {"a": client.input(a, "FP32", "a", binary), "b": client.input(b, "INT64", "b", not binary)}
        outputs = [client.output(name, is_binary=binary != (name == "b")) for name in ("b", "sum")]
        result = client.call("infer", "matrix", [inputs[name] for name in order], model_version="1", outputs=outputs)
        same(result.as_numpy("sum"), floats(3, 7))
        same(result.as_numpy("b"), b)

    for order in ("ab", "ba"):
        for binary in (True, False):
            report.check("several tensors", client.name, f"{order} {binary}", lambda: check(order, binary))


def parameters(report, client):
    one = lambda: [client.input(floats(1), "FP32")]
    infer = lambda **named: same(client.call("infer", "identity_fp32", one(), **named).as_numpy("y"), floats(1))
    for name, named in {
        "priority": {"priority": 3},
        "timeout": {"timeout": 5_000_000},
        "sequence": {"sequence_id": 7, "sequence_start": True, "sequence_end": True},
        "named sequence": {"sequence_id": "seven", "sequence_start": True},
        "custom": {"parameters": {"a": 1, "b": "text", "c": True}},
        "request_id": {"request_id": "größe"},
        "headers": {"headers": {"x-own": "1"}},
    }.items():
        report.check("parameters", client.name, name, lambda: infer(**named))



def classification(report, client):
    for binary in (True, False):

        def check():
            inputs = [client.input(floats(0.5, 2, 1), "FP32")]
            outputs = [client.output(is_binary=binary, class_count=2)]
            result = client.call("infer", "identity_fp32", inputs, outputs=outputs)
            same(result.as_numpy("y"), np.array([b"2.000000:1:dog", b"1.000000:2"], dtype=np.object_))

        report.check("classification", client.name, f"binary {binary}", check)

    def refused():
        inputs = [client.input(sample("BOOL", (3,), True), "BOOL")]
        found = client.fails("infer", "identity_bool", inputs, outputs=[client.output(class_count=1)])
        expect(found[0], 400 if client.is_http else "INVALID_ARGUMENT")

    report.check("classification", client.name, "no order", refused)


def extensions(report, client):
    """Checks the calls of the extensions that the clients support."""

    def index():
        found = client.json("get_model_repository_index")
        found = found["models"] if client.is_grpc else found
        versions = {(model["name"], model.get("version", "")): model.get("state", "") for model in found}
        expect(versions["matrix", "2"], "READY")
        expect(versions["loading", ""], "LOADING")
        expect(versions["never", ""], "")

    def state(name):
        found = client.json("get_model_repository_index")
        found = found["models"] if client.is_grpc else found
        return next((model.get("state"), model.get("reason", "")) for model in found if model["name"] == name)

    def load_and_unload():
        client.call("load_model", "nan")
        expect(state("nan"), ("READY", ""))
        config = json.dumps({"max_batch_size": 2})
        client.call("load_model", "nan", config=config)
        expect(state("nan"), ("READY", config))
        client.call("unload_model", "nan")
        expect(state("nan"), ("UNAVAILABLE", "unloaded"))
        client.call("unload_model", "nan", unload_dependents=True)
        expect(state("nan"), ("UNAVAILABLE", "unloaded with dependents"))

    def load_refused():
        status = {404: "NOT_FOUND", 503: "UNAVAILABLE", 400: "INVALID_ARGUMENT"}
        code = lambda code: code if client.is_http else status[code]
        expect(client.fails("load_model", "zz"), (code(404), "model 'zz' does not exist"))
        found = client.fails("load_model", "locked")
        expect(found, (code(503), "loading and unloading by request is not allowed"))
        found = client.fails("load_model", "nan", config="{}", files={"file:1/model.onnx": b"abc"})
        message = "models cannot be uploaded in requests; put the file into the repository"
        expect(found, (code(400), f"model 'nan': parameter 'file:1/model.onnx': {message}"))

    def config():
        found = client.json("get_model_config", "matrix")
        found = found["config"] if client.is_grpc else found
        expect((found["name"], found["max_batch_size"], found["backend"]), ("matrix", 4, "test"))
        expect([int(dim) for dim in found["input"][0]["dims"]], [2])
        assert "dynamic_batching" in found, found

    def statistics():
        for named in ({}, {"model_name": "matrix"}, {"model_name": "matrix", "model_version": "1"}):
            found = client.json("get_inference_statistics", **named)["model_stats"]
            expect(len(found), 1 if "model_version" in named else 2)
            expect((int(found[0]["inference_count"]), int(found[0]["execution_count"])), (101, 102))
            expect(int(found[0]["inference_stats"]["compute_infer"]["count"]), 5)
            expect(int(found[0]["batch_stats"][0]["batch_size"]), 9)
            expect(found[0]["memory_usage"][0]["type"], "CPU")

    def log_settings():
        def plain(found):
            if client.is_http:
                return found
            return {name: next(iter(value.values())) for name, value in found["settings"].items()}

        before = plain(client.json("get_log_settings"))
        assert {"log_info", "log_verbose_level", "log_format"} <= before.keys(), before
        changed = plain(client.json("update_log_settings", {"log_verbose_level": 2, "log_info": False}))
        expect((int(changed["log_verbose_level"]), changed["log_info"]), (2, False))
        client.call("update_log_settings", {"log_verbose_level": 0, "log_info": True})
        found = client.fails("update_log_settings", {"log_x": True})
        expect(found[0], 400 if client.is_http else "INVALID_ARGUMENT")

    def not_offered():
        code = 501 if client.is_http else "UNIMPLEMENTED"
        message = lambda name: (code, f"the extension '{name}' is not offered by this server")
        expect(client.fails("get_cuda_shared_memory_status"), message("cuda_shared_memory"))
        expect(client.fails("unregister_cuda_shared_memory"), message("cuda_shared_memory"))
        expect(client.fails("register_cuda_shared_memory", "r", b"AAAA", 0, 4), message("cuda_shared_memory"))
        expect(client.fails("get_trace_settings"), message("trace"))
        expect(client.fails("update_trace_settings", settings={"trace_rate": "1"}), message("trace"))

    for check in (index, load_and_unload, load_refused, config, statistics, log_settings, not_offered):
        report.check("extensions", client.name, check.__name__, check)


def with_shared_memory(report, client):
    """Checks tensors in real shared memory."""
    name = f"interop-{client.name}-{os.getpid()}"
    array = sample("FP32", (1000,), False)

    def set_memory(tensor, region, size, offset=0):
        tensor.set_shared_memory(region, size, offset)
        return tensor

    def check():
        handle = shared_memory.create_shared_memory_region(name, f"/{name}", 3 * array.nbytes)
        try:
            shared_memory.set_shared_memory_region(handle, [array])
            client.call("register_system_shared_memory", name, f"/{name}", 3 * array.nbytes)
            status = client.json("get_system_shared_memory_status")
            regions = status["regions"] if client.is_grpc else {region["name"]: region for region in status}
            expect(int(regions[name]["byte_size"]), 3 * array.nbytes)
            if client.is_grpc:
                expect(client.call("get_system_shared_memory_status").regions[name].byte_size, 3 * array.nbytes)
            expect(client.fails("get_system_shared_memory_status", "none")[0], 404 if client.is_http else "NOT_FOUND")

            tensor = set_memory(client.module.InferInput("x", [1000], "FP32"), name, array.nbytes)
            # The input is in shared memory, the output in the response.
            result = client.call("infer", "identity_fp32", [tensor])
            same(result.as_numpy("y"), array)
            # The input and the output are in shared memory.
            output = set_memory(client.module.InferRequestedOutput("y"), name, array.nbytes, array.nbytes)
            result = client.call("infer", "identity_fp32", [tensor], outputs=[output])
            told = result.get_output("y")
            shape = told["shape"] if client.is_http else told.shape
            expect([int(dim) for dim in shape], [1000])
            place = told["parameters"] if client.is_http else told.parameters
            region = place["shared_memory_region"] if client.is_http else place["shared_memory_region"].string_param
            size = place["shared_memory_byte_size"] if client.is_http else place["shared_memory_byte_size"].int64_param
            expect((region, size), (name, array.nbytes))
            # BYTES in both directions, in their serialized form.
            texts = np.array([b"a", "größe".encode(), b"x\0"], dtype=np.object_)
            serialized = serialize_byte_tensor(texts)
            size = len(serialized.item())
            shared_memory.set_shared_memory_region(handle, [serialized], offset=2 * array.nbytes)
            text = set_memory(client.module.InferInput("x", [3], "BYTES"), name, size, 2 * array.nbytes)
            back = set_memory(client.module.InferRequestedOutput("y"), name, size, 2 * array.nbytes + 64)
            client.call("infer", "identity_bytes", [text], outputs=[back])
            read = shared_memory.get_contents_as_numpy(handle, np.object_, [3], offset=2 * array.nbytes + 64)
            expect(read.tolist(), texts.tolist())
            # The output is requested in the response again.
            back.unset_shared_memory()
            expect(client.call("infer", "identity_bytes", [text], outputs=[back]).as_numpy("y").tolist(), texts.tolist())
            assert f"/{name}" in shared_memory.mapped_shared_memory_regions()
            found = shared_memory.get_contents_as_numpy(handle, np.float32, [1000], offset=array.nbytes)
            same(found, array)
            # One tensor in shared memory and one in the message, in both directions: those in the message keep their
            # order.
            a = np.array([[1, 2]], dtype=np.float32)
            shared_memory.set_shared_memory_region(handle, [a])
            inputs = [
                set_memory(client.module.InferInput("a", [1, 2], "FP32"), name, a.nbytes),
                client.input(np.array([5], dtype=np.int64), "INT64", "b"),
            ]
            output = set_memory(client.module.InferRequestedOutput("sum"), name, 4, 64)
            result = client.call("infer", "matrix", inputs, outputs=[output, client.output("b")])
            same(result.as_numpy("b"), np.array([5], dtype=np.int64))
            same(shared_memory.get_contents_as_numpy(handle, np.float32, [1], offset=64), floats(3))
            # Errors in the registration are reported.
            wrong = set_memory(client.module.InferInput("x", [1000], "FP32"), name, array.nbytes, 2 * array.nbytes + 4)
            found = client.fails("infer", "identity_fp32", [wrong])
            expect(found[0], 400 if client.is_http else "INVALID_ARGUMENT")
            client.call("unregister_system_shared_memory", name)
            found = client.fails("infer", "identity_fp32", [tensor])
            expect(found[0], 400 if client.is_http else "INVALID_ARGUMENT")
        finally:
            client.call("unregister_system_shared_memory")
            shared_memory.destroy_shared_memory_region(handle)

    report.check("shared memory", client.name, "in and out", check)


def results(report, client):
    """Checks the fields of results and messages other than the arrays."""
    bytes_of = lambda *values: np.array(values, dtype=np.object_)

    def outputs_as_json():
        inputs = [client.input(floats(1.5, -2), "FP32")]
        result = client.call("infer", "identity_fp32", inputs, outputs=[client.output(is_binary=False)])
        output = result.get_output("y")
        expect((output["data"], output["shape"], output["datatype"]), ([1.5, -2], [2], "FP32"))
        assert "binary_data_size" not in output.get("parameters", {}), output
        inputs = [client.input(bytes_of(b"a", "größe".encode()), "BYTES")]
        result = client.call("infer", "identity_bytes", inputs, outputs=[client.output(is_binary=False)])
        expect(result.as_numpy("y").tolist(), ["a", "größe"])
        expect(result.get_output("y")["data"], ["a", "größe"])

    def outputs_as_bytes():
        inputs = [client.input(floats(1.5, -2), "FP32")]
        for outputs in ([client.output()], None):
            result = client.call("infer", "identity_fp32", inputs, outputs=outputs)
            expect(result.get_output("y")["parameters"]["binary_data_size"], 8)
            assert "data" not in result.get_output("y")
            expect(result.get_output("z"), None)
        inputs = [client.input(bytes_of(b"a\0"), "BYTES")]
        expect(client.call("infer", "identity_bytes", inputs).as_numpy("y").tolist(), [b"a\0"])

    def bodies_made_by_hand():
        if client.is_async:
            return
        inputs = [client.input(floats(1, 2), "FP32")]
        for outputs, is_compressed in (([client.output()], False), ([client.output(is_binary=False)], True), (None, False)):
            body, json_size = client.raw.generate_request_body(inputs, outputs=outputs, request_id="7")
            request = urllib.request.Request(f"http://{client.address}/v2/models/identity_fp32/infer", data=body)
            request.add_header("Inference-Header-Content-Length", str(json_size))
            if is_compressed:
                request.add_header("Accept-Encoding", "gzip")
            with urllib.request.urlopen(request, timeout=20) as response:
                length = response.headers["Inference-Header-Content-Length"]
                result = client.raw.parse_response_body(
                    response.read(),
                    header_length=None if length is None else int(length),
                    content_encoding=response.headers["Content-Encoding"],
                )
            same(result.as_numpy("y"), floats(1, 2))
            expect(result.get_response()["id"], "7")
        wholly = [client.input(floats(1, 2), "FP32", is_binary=False)]
        body, json_size = client.raw.generate_request_body(wholly, parameters={"a": 1}, priority=2)
        expect(json_size, None)
        fields = json.loads(body)
        expect((fields["inputs"][0]["data"], fields["parameters"]["a"], fields["parameters"]["priority"]), ([1, 2], 1, 2))

    def messages():
        settings = client.call("get_log_settings").settings
        expect((settings["log_info"].bool_param, "log_info" in settings, "zz" in settings), (True, True, False))
        assert len(settings) >= 3 and set(settings) == set(settings.keys()) == {name for name, _ in settings.items()}
        config = client.call("get_model_config", "matrix").config
        expect((config.name, config.max_batch_size), ("matrix", 4))
        expect(config.input[0].data_type, client.module.model_config_pb2.TYPE_FP32)
        expect(client.module.model_config_pb2.DataType.Name(config.input[0].data_type), "TYPE_FP32")
        expect(list(config.input[0].dims), [2])
        models = client.call("get_model_repository_index").models
        assert any(model.name == "matrix" and model.state == "READY" for model in models), models

    def timeouts_of_other_calls():
        for method, arguments in {"get_model_metadata": ["matrix"], "is_server_live": [], "load_model": ["nan"]}.items():
            client.call(method, *arguments, client_timeout=20)

    def plugins():
        class Own(client.module.InferenceServerClientPlugin):
            def __call__(self, request):
                seen.append(dict(request.headers))
                request.headers["x-own"] = "2"

        seen, plugin = [], Own()
        client.raw.register_plugin(plugin)
        try:
            expect(client.raw.plugin(), plugin)
            expect(client.call("is_server_live", headers={"x-a": "1"}), True)
            same(client.call("infer", "identity_fp32", [client.input(floats(1), "FP32")]).as_numpy("y"), floats(1))
            expect((len(seen), seen[0]["x-a"]), (2, "1"))
            try:
                client.raw.register_plugin(plugin)
            except InferenceServerException as error:
                assert "already registered" in error.message(), error
            else:
                raise AssertionError("two plugins were registered")
        finally:
            client.raw.unregister_plugin()
        expect(client.raw.plugin(), None)

    def reserved_parameters():
        inputs = [client.input(floats(1), "FP32")]
        for name in ("priority", "timeout", "headers", "triton_x"):
            try:
                client.call("infer", "identity_fp32", inputs, parameters={name: 1})
            except InferenceServerException as error:
                expect(error.message(), f'Parameter "{name}" is a reserved parameter and cannot be specified.')
            else:
                raise AssertionError(f"{name} was sent")

    http = (outputs_as_json, outputs_as_bytes, bodies_made_by_hand)
    grpc_only = (messages, timeouts_of_other_calls)
    for check in (*(http if client.is_http else grpc_only), plugins, reserved_parameters):
        report.check("results", client.name, check.__name__, check)


FAILURES = {
    # name: (model, datatype, values, arguments of `infer`, HTTP status, gRPC code, message)
    "unknown model": ("zz", "FP32", [1], {}, 404, "NOT_FOUND", "model 'zz' does not exist"),
    "unknown version": (
        "matrix",
        "FP32",
        [1],
        {"model_version": "9"},
        404,
        "NOT_FOUND",
        "model 'matrix' version '9' does not exist",
    ),
    "loading": (
        "loading",
        "FP32",
        [1],
        {},
        503,
        "UNAVAILABLE",
        "model 'loading' is not ready: it is being loaded",
    ),
    "failing": ("failing", "FP32", [1], {}, 500, "INTERNAL", "model 'failing': it failed"),
    "busy": (
        "busy",
        "FP32",
        [1],
        {},
        429,
        "RESOURCE_EXHAUSTED",
        "model 'busy': its queue is full; try again later",
    ),
    "deadline": (
        "slow",
        "FP32",
        [1],
        {"timeout": 20_000},
        504,
        "DEADLINE_EXCEEDED",
        "model 'slow': the deadline passed",
    ),
    "datatype": (
        "identity_fp32",
        "INT32",
        [1],
        {},
        400,
        "INVALID_ARGUMENT",
        "model 'identity_fp32': input 'x': expected datatype FP32, found INT32",
    ),
    "shape": (
        "identity_fp32_matrix",
        "FP32",
        [1],
        {},
        400,
        "INVALID_ARGUMENT",
        "model 'identity_fp32_matrix': input 'x': expected shape [-1, -1], found [1]",
    ),
    "input": (
        "matrix",
        "FP32",
        [1],
        {},
        400,
        "INVALID_ARGUMENT",
        "model 'matrix': unexpected input 'x'; the model takes 'a' (FP32[-1, 2]), 'b' (INT64[1])",
    ),
    "long id": (
        "identity_fp32",
        "FP32",
        [1],
        {"request_id": "x" * 2000},
        400,
        "INVALID_ARGUMENT",
        "model 'identity_fp32': too many bytes of id: the limit is 1024, found 2000 or more",
    ),
}


#: Failures that only the first server has, or whose messages only its models give.
OF_THE_SERVER = ("loading", "busy", "deadline")


def without_names(failure):
    """Removes the names of models, which HTTP adds to the message about one that does not exist."""
    status, message = failure
    return status, message.split("; there are ")[0]


def failures(report, client):
    """Checks that each class of errors has the same message with every client."""
    for name, (model, datatype, values, named, status, code, message) in FAILURES.items():

        def check():
            inputs = [client.input(np.array(values, dtype=NUMPY[datatype]), datatype)]
            found = client.fails("infer", model, inputs, **named)
            expect(without_names(found), (status if client.is_http else code, message))

        report.check("failures", client.name, name, check)

    def output():
        found = client.fails("infer", "identity_fp32", [client.input(floats(1), "FP32")], outputs=[client.output("z")])
        message = "model 'identity_fp32': unexpected output 'z'; the model gives 'y' (FP32[-1])"
        expect(found, (400 if client.is_http else "INVALID_ARGUMENT", message))

    def missing():
        array = np.zeros((1, 2), dtype=np.float32)
        found = client.fails("infer", "matrix", [client.input(array, "FP32", "a")])
        message = "model 'matrix': input 'b' (INT64[1]) is missing: expected 2 inputs, found 1"
        expect(found, (400 if client.is_http else "INVALID_ARGUMENT", message))

    def too_large():
        array = np.zeros(65 << 20, dtype=np.uint8)
        found = client.fails("infer", "identity_uint8", [client.input(array, "UINT8")])
        expect(found[0], 413 if client.is_http else "RESOURCE_EXHAUSTED")

    def not_text():
        # JSON cannot represent these bytes; gRPC can send them.
        inputs = [client.input(np.array([b"a"], dtype=np.object_), "BYTES")]
        outputs = [client.output(is_binary=False)]
        if client.is_http:
            found = client.fails("infer", "not_text", inputs, outputs=outputs)
            expect(found[0], 400)
        else:
            result = client.call("infer", "not_text", inputs, outputs=outputs)
            same(result.as_numpy("y"), np.array([b"\xff\xfe"], dtype=np.object_))

    def metadata_of_nothing():
        status = 404 if client.is_http else "NOT_FOUND"
        for method in ("get_model_metadata", "get_model_config", "get_inference_statistics"):
            expect(without_names(client.fails(method, "zz")), (status, "model 'zz' does not exist"))

    def client_gives_up():
        # The client replaces the server's status with its own.
        if client.is_grpc:
            found = client.fails("infer", "slow", [client.input(floats(1), "FP32")], client_timeout=0.1)
            expect(found[0], "DEADLINE_EXCEEDED")

    for check in (output, missing, too_large, not_text, metadata_of_nothing, client_gives_up):
        report.check("failures", client.name, check.__name__, check)


def non_finite(report, client):
    def check():
        inputs = [client.input(floats(1), "FP32")]
        expected = floats(np.nan, np.inf, -np.inf)
        same(client.call("infer", "nan", inputs, outputs=[client.output()]).as_numpy("y"), expected)
        if client.is_http:
            # JSON has null for all three, which the client reads as NaN.
            outputs = [client.output(is_binary=False)]
            found = client.call("infer", "nan", inputs, outputs=outputs).as_numpy("y")
            expect(np.isnan(found).tolist(), [True] * 3)

    report.check("FP32", client.name, "not finite", check)


def at_once(report, client):
    """Checks several concurrent requests."""
    arrays = [floats(i) for i in range(20)]
    one = lambda array: [client.input(array, "FP32")]

    def check():
        if client.is_async:

            async def infer_all():
                
                return await asyncio.gather(*[client.raw.infer("identity_fp32", one(array)) for array in arrays])

            results = client.wait_for(infer_all())
        elif client.is_http:
            pending = [client.raw.async_infer("identity_fp32", one(array)) for array in arrays]
            results = [request.get_result() for request in pending]
        else:
            answers = queue.Queue()
            for number, array in enumerate(arrays):
                done = lambda result, error, number=number: answers.put((number, result, error))
                client.raw.async_infer("identity_fp32", one(array), done)
            found = sorted(answers.get(timeout=20)[:2] for _ in arrays)
            results = [result for _, result in found]
        for array, result in zip(arrays, results):
            same(result.as_numpy("y"), array)

    report.check("at once", client.name, "20 requests", check)


def conversation(client, requests, headers=None):
    """Sends requests over one stream. Returns for each response the id and the first value, or the error."""
    if client.is_async:

        async def talk():
            async def send():
                for request in requests:
                    yield request

            found = []
            try:
                async for result, error in client.raw.stream_infer(send(), headers=headers):
                    found.append((result, error))
            except InferenceServerException as error:
                found.append((None, error))
            except grpc.RpcError as error:  # this client does not wrap the status of a stream
                found.append((None, InferenceServerException(error.details(), str(error.code()))))
            return found

        return client.wait_for(talk())
    answers = queue.Queue()
    client.raw.start_stream(lambda result, error: answers.put((result, error)), headers=headers)
    try:
        for request in requests:
            client.raw.async_stream_infer(**request)
        found = []
        for _ in requests:
            found.append(answers.get(timeout=20))
            if found[-1][1] is not None and headers:
                break
        return found
    finally:
        client.raw.stop_stream()


def streams(report, client):
    if client.is_http:
        return
    request = lambda model, value, **named: {
        "model_name": model,
        "inputs": [client.input(floats(value), "FP32")],
        **named,
    }

    def answers_in_order():
        requests = [request("identity_fp32", i, request_id=str(i)) for i in range(100)]
        found = conversation(client, requests)
        expect(len(found), 100)
        for i, (result, error) in enumerate(found):
            expect(error, None)
            same(result.as_numpy("y"), floats(i))
            response = result.get_response()
            expect(response.id, str(i))
            expect(response.parameters["triton_final_response"].bool_param, True)

    def errors_keep_the_stream():
        models = ["identity_fp32", "zz", "failing", "identity_fp32"]
        found = conversation(client, [request(model, i) for i, model in enumerate(models)])
        messages = [error and error.message() for _, error in found]
        expect(messages, [None, "model 'zz' does not exist", "model 'failing': it failed", None])

    def errors_as_statuses():
        requests = [request("identity_fp32", 1), request("zz", 2), request("identity_fp32", 3)]
        found = conversation(client, requests, headers={"triton_grpc_error": "true"})
        expect(len(found), 2)
        same(found[0][0].as_numpy("y"), floats(1))
        error = found[1][1]
        expect((status_of(error), error.message()), ("NOT_FOUND", "model 'zz' does not exist"))

    def empty_final_response():
        requests = [request("identity_fp32", 1, enable_empty_final_response=True), request("identity_fp32", 2)]
        found = conversation(client, requests)
        expect([len(result.get_response().outputs) for result, _ in found], [1, 1])

    def large():
        array = sample("FP32", (1_000_000,), False)
        named = {"model_name": "identity_fp32", "inputs": [client.input(array, "FP32")]}
        for result, _ in conversation(client, [named] * 8):
            same(result.as_numpy("y"), array)

    def cancelled():
        if client.is_async:
            return
        answers = queue.Queue()
        client.raw.start_stream(lambda result, error: answers.put((result, error)))
        client.raw.async_stream_infer(**request("slow", 1))
        stopping = threading.Thread(target=lambda: client.raw.stop_stream(cancel_requests=True))
        stopping.start()
        stopping.join(timeout=10)
        assert not stopping.is_alive(), "the stream does not stop"

    def cancelled_while_it_is_read():
        if not client.is_async:
            return

        async def talk():
            sent = asyncio.Event()

            async def send():
                yield request("identity_fp32", 1)
                await sent.wait()
                yield request("slow", 2)

            responses = client.raw.stream_infer(send())
            result, error = await responses.__anext__()
            sent.set()
            asyncio.get_running_loop().call_later(0.1, responses.cancel)
            try:
                await asyncio.wait_for(responses.__anext__(), 10)
            except asyncio.CancelledError:
                return result, error
            raise AssertionError("it was not cancelled")

        result, error = client.wait_for(talk())
        expect(error, None)
        same(result.as_numpy("y"), floats(1))

    def deadlines():
        if not client.is_async:
            return

        async def talk():
            async def send():
                yield request("slow", 1)

            async for _, error in client.raw.stream_infer(send(), stream_timeout=0.2):
                return error

        try:
            error = client.wait_for(talk())
        except InferenceServerException as raised:
            expect(status_of(raised), "DEADLINE_EXCEEDED")
        except grpc.RpcError as raised:
            expect(raised.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
        else:
            raise AssertionError(f"the deadline did not end it: {error}")

    for check in (
        answers_in_order,
        errors_keep_the_stream,
        errors_as_statuses,
        empty_final_response,
        large,
        cancelled,
        cancelled_while_it_is_read,
        deadlines,
    ):
        report.check("streams", client.name, check.__name__, check)


def python_models(report, client):
    """Checks features of Python models: optional inputs, several responses, exceptions."""
    if client.is_http:
        one = [client.input(floats(1, 2), "FP32")]
        report.check(
            "Python",
            client.name,
            "an optional input is left out",
            lambda: same(client.call("infer", "optional", one).as_numpy("y"), floats(1, 2)),
        )

    def optional_input():
        inputs = [client.input(floats(1, 2), "FP32"), client.input(floats(10), "FP32", "bias")]
        same(client.call("infer", "optional", inputs).as_numpy("y"), floats(11, 12))

    def exception():
        found = client.fails("infer", "raising", [client.input(floats(1), "FP32")])
        expect(found, (500 if client.is_http else "INTERNAL", "model 'raising': its model.py failed: KeyError: 'z'"))

    def deadline():
        found = client.fails("infer", "slow", [client.input(floats(1), "FP32")], timeout=20_000)
        expect(found[0], 504 if client.is_http else "DEADLINE_EXCEEDED")
        assert "model 'slow': the deadline passed" in found[1], found

    def several_answers(model):
        named = {"model_name": model, "inputs": [client.input(floats(3, 1, 2), "FP32")], "enable_empty_final_response": True}
        found = []

        def is_last(result, error):
            expect(error, None)
            is_final = result.get_response().parameters["triton_final_response"].bool_param
            if not is_final:
                found.append(result.as_numpy("y").tolist())
            return is_final

        if client.is_async:

            async def talk():
                async def send():
                    yield named

                async for result, error in client.raw.stream_infer(send()):
                    if is_last(result, error):
                        return

            client.wait_for(talk())
        else:
            answers = queue.Queue()
            client.raw.start_stream(lambda result, error: answers.put((result, error)))
            try:
                client.raw.async_stream_infer(**named)
                while not is_last(*answers.get(timeout=20)):
                    pass
            finally:
                client.raw.stop_stream()
        expect(found, [[3.0], [1.0], [2.0]])

    for check in (optional_input, exception, deadline):
        report.check("Python", client.name, check.__name__, check)
    if client.is_grpc:
        for model in ("repeat", "repeat_triton"):
            report.check("Python", client.name, f"several responses of {model}", lambda: several_answers(model))


def grpc_services(report, address):
    """Checks health and reflection, as probes and grpcurl use them."""
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    channel = grpc.insecure_channel(address)

    def health():
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "inference.GRPCInferenceService"):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service))
            expect(answer.status, health_pb2.HealthCheckResponse.SERVING)

    def reflection():
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        answer = next(stub.ServerReflectionInfo(iter([request])))
        names = {service.name for service in answer.list_services_response.service}
        assert "inference.GRPCInferenceService" in names, names

    for check in (health, reflection):
        report.check("health, metadata", "grpcio", check.__name__, check)


def real_models(report, client, folder):
    """Checks the example models of the real server, with their expected responses."""
    request = json.loads((folder / "digits.json").read_text())
    labels = json.loads((folder / "digits.labels.json").read_text())["models"]
    images = np.array(request["inputs"][0]["data"], dtype=np.float32).reshape(-1, 64)
    forms = [True, False] if client.is_http else [True]

    def recognised(model, binary):
        inputs = [client.input(images, "FP32", "X", binary)]
        outputs = [client.output(name, binary) for name in ("label", "probabilities")]
        result = client.call("infer", model, inputs, outputs=outputs)
        expect(result.as_numpy("label").tolist(), labels[model]["labels"])
        expect(result.as_numpy("probabilities").shape, (len(images), 10))

    for model in labels:
        for binary in forms:
            report.check("digits", client.name, f"{model} {binary}", lambda: recognised(model, binary))

    def offered():
        metadata = client.json("get_server_metadata")
        calls = {
            "model_repository": ("get_model_repository_index",),
            "model_configuration": ("get_model_config", "digits"),
            "statistics": ("get_inference_statistics",),
            "logging": ("get_log_settings",),
            "system_shared_memory": ("get_system_shared_memory_status",),
        }
        for extension, call in calls.items():
            if extension in metadata["extensions"]:
                client.call(*call)
            else:
                message = f"the extension '{extension}' is not offered by this server"
                expect(client.fails(*call), (501 if client.is_http else "UNIMPLEMENTED", message))

    def refused():
        wrong = [client.input(np.zeros((1, 63), dtype=np.float32), "FP32", "X")]
        found = client.fails("infer", "digits", wrong)
        expect(found[0], 400 if client.is_http else "INVALID_ARGUMENT")

    for check in (offered, refused):
        report.check("digits", client.name, check.__name__, check)


def kserve(report, http, grpc, only, is_verbose):
    """Tests KServe's clients in a separate process, since their messages have the same names as Triton's."""
    script = pathlib.Path(__file__).with_name("kserve_suite.py")
    command = [sys.executable, script, http, grpc, only or "", "verbose" if is_verbose else ""]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    for line in process.stdout.splitlines():
        if "\t" in line:
            report.add([line])
        else:
            print(line)
    if process.returncode:
        report.check("health, metadata", "kserve", "the clients start", lambda: expect(process.returncode, 0))


def main():
    parser = argparse.ArgumentParser()
    for name in ("http", "grpc", "real_http", "real_grpc"):
        parser.add_argument(name)
    parser.add_argument("requests", type=pathlib.Path)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--python-models", action="store_true", help="the first server has the models of python_models.py")
    parser.add_argument("--only")
    arguments = parser.parse_args()
    report = Report(arguments.only, arguments.verbose)
    if arguments.python_models:
        for name in OF_THE_SERVER:
            del FAILURES[name]
        shared = () if IS_COMPAT else (with_shared_memory,)
        parts = (tensors, non_finite, several_tensors, at_once, compression, parameters, classification, *shared, streams, failures)
        for client in connect(arguments.http, arguments.grpc):
            for part in (*parts, python_models):
                part(report, client)
        is_good = report.print_table()
        sys.stdout.flush()
        os._exit(0 if is_good else 1)
    for client in connect(arguments.http, arguments.grpc):
        for part in (
            health_and_metadata,
            tensors,
            non_finite,
            several_tensors,
            at_once,
            compression,
            parameters,
            classification,
            extensions,
            with_shared_memory,
            results,
            streams,
            failures,
        ):
            part(report, client)
    for client in connect(arguments.real_http, arguments.real_grpc):
        real_models(report, client, arguments.requests)
    # Triton's clients support neither of these.
    if not IS_COMPAT:
        grpc_services(report, arguments.grpc)
        kserve(report, arguments.http, arguments.grpc, arguments.only, arguments.verbose)
    # Unclosed clients print irrelevant errors at exit.
    is_good = report.print_table()
    sys.stdout.flush()
    os._exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
