"""Runs ONNX Runtime with the settings of all suites: one thread, and no log. As a program, `python ort.py MODEL` runs a
model for `Model`."""

import pathlib
import pickle
import subprocess
import sys
import time

import onnxruntime

from processes import memory

LIBRARY = next((pathlib.Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so*"), None)


def session_of(path, level=None, has_exact_sums=False):
    """Creates a session of ONNX Runtime. If the processor has no instructions for 8-bit products, ONNX Runtime saturates
    their sums at 16 bits, unless exact sums are requested."""
    options = onnxruntime.SessionOptions()
    if has_exact_sums:
        options.add_session_config_entry("session.x64quantprecision", "1")
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if level is not None:
        options.graph_optimization_level = level
    model = path if isinstance(path, bytes) else str(path)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class Model:
    """A model in a separate process, so that time and memory are the model's alone. `served.ServedModel` has the same
    methods."""

    def __init__(self, path):
        self.process = subprocess.Popen([sys.executable, __file__, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        # The process reports that it has started, before the first request makes it load the model.
        pickle.load(self.process.stdout)
        self.idle = memory(self.process, "VmRSS")

    def ask(self, inputs, outputs=None, count=1):
        """Runs the model `count` times with the same inputs. Returns the outputs by name, and the mean CPU time of a run
        in milliseconds."""
        pickle.dump((inputs, outputs, count), self.process.stdin)
        self.process.stdin.flush()
        return pickle.load(self.process.stdout)

    def peak(self):
        """Returns the peak memory in bytes, without the memory that ONNX Runtime uses before it loads a model."""
        return memory(self.process, "VmHWM") - self.idle

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def respond(value):
    pickle.dump(value, sys.stdout.buffer)
    sys.stdout.buffer.flush()


def run_requests(path):
    """Runs a model for `Model`, until the pipe is closed."""
    respond("ready")
    session = None
    while True:
        try:
            inputs, outputs, count = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        session = session or session_of(path)
        names = outputs or [output.name for output in session.get_outputs()]
        start = time.process_time()
        for _ in range(count):
            answers = session.run(names, inputs)
        respond((dict(zip(names, answers)), 1000 * (time.process_time() - start) / count))


if __name__ == "__main__":
    run_requests(sys.argv[1])
