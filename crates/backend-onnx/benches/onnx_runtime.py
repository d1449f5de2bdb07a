"""ONNX Runtime on the models that `cargo bench -p backend-onnx --bench models` runs, measured the same way.

    pip install onnxruntime numpy
    python onnx_runtime.py MODEL.onnx...
"""

import statistics
import sys
import time

import numpy
import onnxruntime

CALLS = 100

for path in sys.argv[1:]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    input = session.get_inputs()[0]
    for rows in (1, 32):
        values = (numpy.arange(rows * input.shape[1]) * 7919 % 17).astype(numpy.float32).reshape(rows, -1)
        # Through bindings that are made once, so that Python's part in a call is small.
        binding = session.io_binding()
        binding.bind_cpu_input(input.name, values)
        for output in session.get_outputs():
            binding.bind_output(output.name)
        times = []
        for _ in range(16):
            start = time.perf_counter()
            for _ in range(CALLS):
                session.run_with_iobinding(binding)
            times.append(time.perf_counter() - start)
        print(f"{path}, {rows} rows: {statistics.median(times[1:]) / CALLS * 1e6:.1f} us a call")
