"""ONNX Runtime with the settings of all suites: one thread, and no log."""

import pathlib

import onnxruntime

LIBRARY = next((pathlib.Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so*"), None)


def session_of(path, level=None, has_exact_sums=False):
    """A session of ONNX Runtime. Where a processor has no instructions for products of 8 bits, its sums of them are cut off at 16
    bits, unless it is asked for exact ones."""
    options = onnxruntime.SessionOptions()
    if has_exact_sums:
        options.add_session_config_entry("session.x64quantprecision", "1")
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if level is not None:
        options.graph_optimization_level = level
    model = path if isinstance(path, bytes) else str(path)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
