"""Writes a repository of Python models that behave like the simple models of the suite's first server.

Usage: python_models.py FOLDER. Called by `cargo xtask interop --python`. The models of vectors and scalars have our own
form, those of matrices the form of Triton's Python backend.
"""

import pathlib
import sys

DATATYPES = ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16", "FP32", "FP64", "BYTES")

OWN = """
class Model:
    inputs = {{"x": ("{datatype}", {shape})}}
    outputs = {{"y": ("{datatype}", {shape})}}
    max_batch_size = 0

    {infer}
"""

TRITON = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))
        return responses
"""

TRITON_CONFIG = """
backend: "python"
input { name: "x" data_type: TYPE_DATATYPE dims: [ -1, -1 ] }
output { name: "y" data_type: TYPE_DATATYPE dims: [ -1, -1 ] }
"""

OTHERS = {
    "matrix": """
class Model:
    inputs = {"a": ("FP32", [-1, 2]), "b": ("INT64", [1])}
    outputs = {"sum": ("FP32", [-1]), "b": ("INT64", [1])}

    def infer(self, a, b):
        return {"sum": a.sum(axis=1), "b": b}
""",
    "nan": """
import numpy as np


class Model:
    inputs = {"x": ("FP32", [-1])}
    outputs = {"y": ("FP32", [-1])}
    max_batch_size = 0

    def infer(self, x):
        return np.array([np.nan, np.inf, -np.inf], np.float32)
""",
    "not_text": """
class Model:
    inputs = {"x": (bytes, [-1])}
    outputs = {"y": (bytes, [-1])}
    max_batch_size = 0

    def infer(self, x):
        return {"y": [b"\\xff\\xfe"]}
""",
    "failing": """
from tensorferry_model import InferenceError


class Model:
    inputs = {"x": ("FP32", [-1])}
    outputs = {"y": ("FP32", [-1])}
    max_batch_size = 0

    def infer(self, x):
        raise InferenceError("it failed", status=500)
""",
    "raising": """
class Model:
    inputs = {"x": ("FP32", [-1])}
    outputs = {"y": ("FP32", [-1])}
    max_batch_size = 0

    def infer(self, x):
        return {"y": x}["z"]
""",
    "slow": """
import time


class Model:
    inputs = {"x": ("FP32", [-1])}
    outputs = {"y": ("FP32", [-1])}
    max_batch_size = 0

    def infer(self, x, request):
        for _ in range(500):
            if request.is_cancelled():
                break
            time.sleep(0.01)
        return x
""",
    "optional": """
class Model:
    inputs = {"x": ("FP32", [-1]), "bias": {"datatype": "FP32", "shape": [1], "optional": True}}
    outputs = {"y": ("FP32", [-1])}

    def infer(self, x, bias=0):
        return x + bias
""",
    "repeat": """
class Model:
    inputs = {"x": ("FP32", [-1])}
    outputs = {"y": ("FP32", [1])}

    def infer(self, x):
        for value in x:
            yield value.reshape(1)
""",
}

#: The model `repeat` in the form of Triton's Python backend.
TRITON_REPEAT = """
import threading

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy().copy()
            threading.Thread(target=self.answer, args=(request.get_response_sender(), x)).start()
        return None

    def answer(self, sender, x):
        for value in x:
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", value.reshape(1))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

TRITON_REPEAT_CONFIG = """
backend: "python"
input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }
model_transaction_policy { decoupled: true }
"""


def main():
    repository = pathlib.Path(sys.argv[1])

    def write(name, source, config=""):
        folder = repository / name
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "model.py").write_text(source)
        (folder / "config.pbtxt").write_text(config)
        return folder

    for datatype in DATATYPES:
        name = f"identity_{datatype.lower()}"
        write(name, OWN.format(datatype=datatype, shape="[-1]", infer="def infer(self, x): return x"))
        write(f"{name}_scalar", OWN.format(datatype=datatype, shape="[]", infer='async def infer(self, x): return {"y": x}'))
        spelled = "STRING" if datatype == "BYTES" else datatype
        write(f"{name}_matrix", TRITON, TRITON_CONFIG.replace("DATATYPE", spelled))
    (repository / "identity_fp32" / "labels.txt").write_text("cat\ndog\n")
    (repository / "identity_fp32" / "config.pbtxt").write_text('output { name: "y" label_filename: "labels.txt" }')
    for name, source in OTHERS.items():
        write(name, source)
    write("repeat_triton", TRITON_REPEAT, TRITON_REPEAT_CONFIG)


if __name__ == "__main__":
    main()
