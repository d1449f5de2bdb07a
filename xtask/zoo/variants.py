"""Tests real ONNX models with changes that are usual before deployment: quantized, in FP16, optimized, or in another
operator set. A server with the built-in runtime is compared with ONNX Runtime on each.

    python variants.py --server PROGRAM --folder FOLDER [--only REGEX] [--kind REGEX] [--results FILE]

FOLDER has the models that `cargo xtask zoo` downloaded. Variants are made with the tools of the packages `onnx` and
`onnxruntime`, from models of at most 16 MB; they stay in FOLDER/variants. Variants that a tool cannot make, or ONNX
Runtime cannot run, are skipped. FILE has a line per variant and is continued. The exit code is 1 if a response is
wrong, a request fails, or the server crashes.
"""

import argparse
import collections
import contextlib
import io
import json
import logging
import pathlib
import re
import sys
import tempfile
import warnings

import numpy as np
import onnx
import onnxruntime
from onnxruntime import quantization
from onnxruntime.transformers import float16, optimizer

import ort
import zoo
from served import Server

LARGEST = 16 << 20
NEWEST_OPSET = 22


class Samples(quantization.CalibrationDataReader):
    """Supplies one request for calibration."""

    def __init__(self, inputs):
        self.left = [inputs]

    def get_next(self):
        return self.left.pop() if self.left else None


def dynamic(source, target, _):
    quantization.quantize_dynamic(source, target)


def dynamic_channels(source, target, _):
    quantization.quantize_dynamic(source, target, weight_type=quantization.QuantType.QInt8, per_channel=True, reduce_range=True)


def dynamic_unsigned(source, target, _):
    quantization.quantize_dynamic(source, target, weight_type=quantization.QuantType.QUInt8)


def static(source, target, inputs):
    quantization.quantize_static(source, target, Samples(inputs), per_channel=True)


def static_unsigned(source, target, inputs):
    quantization.quantize_static(
        source, target, Samples(inputs), activation_type=quantization.QuantType.QUInt8, weight_type=quantization.QuantType.QUInt8,
    )


def static_operators(source, target, inputs):
    quantization.quantize_static(
        source, target, Samples(inputs), quant_format=quantization.QuantFormat.QOperator,
        activation_type=quantization.QuantType.QUInt8, weight_type=quantization.QuantType.QInt8,
    )


def half(source, target, _):
    onnx.save(float16.convert_float_to_float16(onnx.load(source), keep_io_types=True), target)


def half_throughout(source, target, _):
    onnx.save(float16.convert_float_to_float16(onnx.load(source)), target)


def optimized(source, target, _):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def fused(source, target, _):
    fusion = optimizer.optimize_model(str(source), model_type="bert", opt_level=0)
    if not sum(fusion.get_fused_operator_statistics().values()):
        raise ValueError("nothing is fused")
    fusion.save_model_to_file(str(target))


def newest(source, target, _):
    model = onnx.load(source)
    onnx.save(onnx.version_converter.convert_version(model, NEWEST_OPSET), target)


KINDS = [
    dynamic, dynamic_channels, dynamic_unsigned, static, static_unsigned, static_operators, half, half_throughout, optimized, fused, newest,
]


def nearer_to(source, expected):
    """Returns a function that tells whether the outputs of an FP16 model are closer to those of the FP32 model than ONNX
    Runtime's, which rounds after each operator."""
    _, inputs, answers = expected
    inputs = {name: values.astype(np.float32) if values.dtype == np.float16 else values for name, values in inputs.items()}

    def is_nearer(found):
        exact = ort.session_of(source).run(None, inputs)

        def distance(values):
            pairs = zip(exact, values)
            return [np.nanmax(np.abs(a - b.astype(a.dtype)), initial=0) if a.dtype.kind == "f" else np.any(a != b) for a, b in pairs]

        return all(ours <= theirs for ours, theirs in zip(distance(found), distance(answers)))

    return is_nearer


def made(kind, source, target):
    """Makes a variant. Returns whether that was possible."""
    if target.exists():
        return target.stat().st_size > 0
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            expected = zoo.reference(source)
            kind(source, target, None if isinstance(expected, str) else expected[1])
        scales = [tensor for tensor in onnx.load(target).graph.initializer if tensor.name.endswith("_scale")]
        if not all(np.isfinite(onnx.numpy_helper.to_array(scale)).all() for scale in scales):
            raise ValueError("it was calibrated with infinite values")
        return True
    except Exception:  # each tool has its own exceptions
        target.write_bytes(b"")
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--folder", required=True, type=pathlib.Path)
    parser.add_argument("--variants", type=pathlib.Path, help="where variants are kept, else FOLDER/variants")
    parser.add_argument("--only", default="")
    parser.add_argument("--kind", default="")
    parser.add_argument("--results", type=pathlib.Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    onnxruntime.set_default_logger_severity(4)
    folder = options.variants or options.folder / "variants"
    folder.mkdir(parents=True, exist_ok=True)
    known = set()
    if options.results and options.results.exists():
        known = {json.loads(line)["name"] for line in options.results.read_text().splitlines()}
    counts, server = collections.defaultdict(collections.Counter), None
    with tempfile.TemporaryDirectory() as temporary:
        repository = pathlib.Path(temporary)
        for source in sorted(options.folder.glob("*.onnx")):
            if source.stat().st_size > LARGEST or not re.search(options.only, source.name):
                continue
            for kind in KINDS:
                name = f"{kind.__name__}-{source.stem}"
                if not re.search(options.kind, kind.__name__) or name in known:
                    continue
                target = folder / f"{name}.onnx"
                expected = zoo.reference(target) if made(kind, source, target) else "not made"
                if isinstance(expected, str):
                    result, why = "left out", expected
                else:
                    if server is None or not server.is_running():
                        server = Server(options.server, str(repository))
                    is_nearer = nearer_to(source, expected) if kind in (half, half_throughout) else None
                    result, why, _ = zoo.verdict(server, repository, target, name, expected, is_nearer)
                    if not server.is_running():
                        result, why = "server ended", f"exit code {server.process.returncode}"
                counts[kind.__name__][result] += 1
                print(f"{result:<12} {name} {why[:300]}", flush=True)
                if options.results:
                    with options.results.open("a") as file:
                        file.write(json.dumps({"name": name, "verdict": result, "why": why}) + "\n")
        if server is not None:
            server.stop()
    for kind, found in counts.items():
        print(f"{kind}: {', '.join(f'{count} {result}' for result, count in found.most_common())}")
    return int(any(result in zoo.WRONG for found in counts.values() for result in found))


if __name__ == "__main__":
    sys.exit(main())
