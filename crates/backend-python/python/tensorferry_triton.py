"""Implements `triton_python_backend_utils`, which model.py files for Triton's Python backend import, and runs such models.

Names and behaviour follow the Python backend's README. Using a name that is not implemented raises an error with that
name.
"""

import asyncio
import contextvars
import inspect
import json
import os
import queue
import sys
import threading
import weakref

import numpy as np

import tensorferry_calls as calls
from tensorferry_model import _cancelled
from tensorferry_tensors import as_array, datatype_of, decode_strings, dtype_of, encode_strings
from tensorferry_worker import EventLoop, Joined, Refused, last_line

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_MEMORY_CPU = 0
TRITONSERVER_MEMORY_CPU_PINNED = 1
TRITONSERVER_MEMORY_GPU = 2


class TritonModelException(Exception):
    """An error in a call of this module."""


class _Unsupported(TritonModelException, AttributeError):
    """Raised for a name that is not implemented: `hasattr` returns False, and a model that uses the name gets the reason."""


def _unsupported(what):
    raise TritonModelException(f"{what} is not supported by this server")


#: The directory of model.py; set before the model's code runs.
_model_dir = None


def get_model_dir():
    return _model_dir


class TritonError:
    """An error of one response, with Triton's code."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)

    #: Triton's codes for HTTP statuses, used for errors of other models.
    _CODES = {400: INVALID_ARG, 404: NOT_FOUND, 413: INVALID_ARG, 429: UNAVAILABLE, 499: CANCELLED, 501: UNSUPPORTED, 503: UNAVAILABLE}

    _STATUS = {NOT_FOUND: 404, INVALID_ARG: 400, UNAVAILABLE: 503, UNSUPPORTED: 501, ALREADY_EXISTS: 400, CANCELLED: 499}

    def __init__(self, message="", code=INTERNAL):
        self._message = str(message)
        self._code = code

    def code(self):
        return self._code

    def message(self):
        return self._message

    def __str__(self):
        return self._message


_CONFIG_NAMES = {
    "TYPE_BOOL": "BOOL",
    "TYPE_STRING": "BYTES",
    **{f"TYPE_{name}": name for name in ("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64")},
    **{f"TYPE_{name}": name for name in ("FP16", "FP32", "FP64", "BF16")},
}

#: Triton's numbers of the datatypes.
_NUMBERS = ("INVALID", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64")
_NUMBERS += ("FP16", "FP32", "FP64", "BYTES", "BF16")


def _numpy_types():
    found = {}
    for name, datatype in _CONFIG_NAMES.items():
        try:
            found[name] = np.object_ if datatype == "BYTES" else dtype_of(datatype).type
        except ValueError:
            # BF16 is missing without ml_dtypes.
            pass
    return found


TRITON_STRING_TO_NUMPY = _numpy_types()


def triton_string_to_numpy(triton_type_string):
    """Returns NumPy's type for a datatype in a configuration: object_ for TYPE_STRING, None for datatypes that NumPy
    lacks."""
    return TRITON_STRING_TO_NUMPY.get(triton_type_string)


def triton_to_numpy_type(data_type):
    name = _NUMBERS[data_type]
    return np.object_ if name == "BYTES" else dtype_of(name).type


def numpy_to_triton_type(data_type):
    return _NUMBERS.index(datatype_of(data_type))


def serialize_byte_tensor(input_tensor):
    """Returns the serialized form of a tensor of strings, as bytes; None for other tensors."""
    if input_tensor.dtype.kind not in "SUO":
        return None
    return encode_strings(_as_strings(input_tensor))


def _as_strings(array):
    """Converts objects that are not strings with `str`, as Triton does."""
    if array.dtype != object:
        return array
    elements = array.ravel().tolist()
    if all(isinstance(element, (bytes, str, bytearray, memoryview)) for element in elements):
        return array
    strings = np.empty(len(elements), object)
    strings[:] = [element if isinstance(element, bytes) else str(element) for element in elements]
    return strings.reshape(array.shape)


def deserialize_bytes_tensor(encoded_tensor):
    return decode_strings(memoryview(encoded_tensor), (-1,))


def get_input_tensor_by_name(inference_request, name):
    return next((tensor for tensor in inference_request.inputs() if tensor.name() == name), None)


def get_output_tensor_by_name(inference_response, name):
    return next((tensor for tensor in inference_response.output_tensors() if tensor.name() == name), None)


def _by_name(tensors, name):
    return next((tensor for tensor in tensors if tensor["name"] == name), None)


def get_input_config_by_name(model_config, name):
    return _by_name(model_config.get("input", []), name)


def get_output_config_by_name(model_config, name):
    return _by_name(model_config.get("output", []), name)


def using_decoupled_model_transaction_policy(model_config):
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


class Tensor:
    """A name and an array."""

    def __init__(self, name, numpy_array):
        if not isinstance(numpy_array, np.ndarray):
            raise TritonModelException(f"tensor {name!r}: expected a numpy array, found {type(numpy_array).__name__}")
        self._name = name
        self._array = numpy_array

    def name(self):
        return self._name

    def as_numpy(self):
        return self._array

    def shape(self):
        return list(self._array.shape)

    def triton_dtype(self):
        return numpy_to_triton_type(self._array.dtype)

    def is_cpu(self):
        return True

    def to_dlpack(self):
        return self.__dlpack__()

    def __dlpack__(self, **arguments):
        if datatype_of(self._array.dtype) != "BF16":
            return self._array.__dlpack__(**arguments)
        # NumPy exports only its own datatypes by DLPack.
        capsule = self._array.view(np.uint16).__dlpack__(**arguments)
        _DLPack(capsule).code = _DLPack.BFLOAT
        return capsule

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()

    @staticmethod
    def from_dlpack(name, tensor):
        if not hasattr(tensor, "__dlpack__"):
            capsule, device = tensor, (1, 0)

            class Capsule:
                def __dlpack__(self, **_):
                    return capsule

                def __dlpack_device__(self):
                    return device

            tensor = Capsule()
        if tensor.__dlpack_device__()[0] != 1:
            _unsupported("a tensor on a device (DLPack)")
        seen = _Seen(tensor)
        array = np.from_dlpack(seen)
        return Tensor(name, array.view(dtype_of("BF16")) if seen.is_bf16 else array)


class _Seen:
    """A BF16 tensor in the form that NumPy can import: as UINT16, since NumPy has no BF16."""

    def __init__(self, tensor):
        self._tensor = tensor
        self.is_bf16 = False

    def __dlpack__(self, **arguments):
        capsule = self._tensor.__dlpack__(**arguments)
        head = _DLPack(capsule)
        if head.code == _DLPack.BFLOAT:
            self.is_bf16 = True
            head.code = _DLPack.UINT
        return capsule

    def __dlpack_device__(self):
        return self._tensor.__dlpack_device__()


class _DLPack:
    """The code of the datatype in a capsule that has not been consumed yet."""

    UINT, BFLOAT = 1, 4

    #: Offset of the code in the capsule's structure: after the data pointer, the device and the number of dimensions;
    #: in the newer form, additionally after version, context, deleter and flags.
    _PLACES = {b"dltensor": 20, b"dltensor_versioned": 52}

    def __init__(self, capsule):
        import ctypes

        api = ctypes.pythonapi
        is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", api))
        pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", api))
        name = next((name for name in self._PLACES if is_valid(capsule, name)), None)
        if name is None:
            raise TritonModelException("expected an unused DLPack capsule")
        self._byte = ctypes.c_uint8.from_address(pointer(capsule, name) + self._PLACES[name])

    @property
    def code(self):
        return self._byte.value

    @code.setter
    def code(self, code):
        self._byte.value = code


class PreferredMemory:
    def __init__(self, preferred_memory_type, preferred_device_id=0):
        if preferred_memory_type == TRITONSERVER_MEMORY_GPU:
            _unsupported("TRITONSERVER_MEMORY_GPU")
        self.type, self.device_id = preferred_memory_type, preferred_device_id


class InferenceTrace:
    """Tracing information of a request. It is empty, because requests to Python models are not traced."""

    def get_context(self):
        return None


_has_warned = set()


def _warn_once(message):
    if message not in _has_warned:
        _has_warned.add(message)
        Logger.log_warn(message)


class InferenceResponse:
    """A response: outputs, or an error."""

    def __init__(self, output_tensors=(), error=None, parameters=None):
        self._outputs = list(output_tensors or ())
        for tensor in self._outputs:
            if not isinstance(tensor, Tensor):
                raise TritonModelException(f"expected tensors of pb_utils.Tensor, found {type(tensor).__name__}")
        if error is not None and not isinstance(error, TritonError):
            error = TritonError(str(error))
        self._error = error
        self._parameters = parameters or {}
        if parameters:
            _warn_once("parameters of an InferenceResponse are not sent to clients by this server")

    def output_tensors(self):
        return self._outputs

    def has_error(self):
        return self._error is not None

    def error(self):
        return self._error

    def parameters(self):
        return json.dumps(self._parameters)


class _Stream:
    """The responses to one request of a decoupled model. Threads of the model may send them after `execute` has returned."""

    def __init__(self, give):
        self._give = give
        self._lock = threading.Lock()
        #: Receives an item at the end. `abandon` may run during a garbage collection, and so in the middle of a wait in
        #: the same thread: this queue's `put` may interrupt anything, whereas `Event.set` waits for a lock that
        #: `Event.wait` holds.
        self._end = queue.SimpleQueue()
        self._is_over = False
        self._is_wanted = True
        self.failure = None
        self.has_sender = False

    def send(self, response, flags):
        is_final = bool(flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        if response is None and not is_final:
            raise TritonModelException("a response is needed unless the flag is TRITONSERVER_RESPONSE_COMPLETE_FINAL")
        if response is not None and not isinstance(response, InferenceResponse):
            raise TritonModelException(f"expected a pb_utils.InferenceResponse, found {type(response).__name__}")
        with self._lock:
            if self._is_over:
                raise TritonModelException("a response was sent after the final one")
            try:
                # Nothing is sent after an error or to a disconnected client, but the model may run to its end.
                if response is not None and self._is_wanted:
                    self._is_wanted = self._give(response, is_final)
            except Refused as refusal:
                self._is_wanted, self.failure = False, refusal
            except BaseException as error:
                self._is_wanted, self.failure = False, Refused(f"its response cannot be sent: {last_line(error)}")
                self._finish()
                raise
            if is_final:
                self._finish()

    def _finish(self):
        self._is_over = True
        self._end.put(None)

    def abandon(self, of_sender):
        """Notes that the model has dropped the request, or its sender; without a sender no more responses can come."""
        if (of_sender or not self.has_sender) and not self._is_over:
            self.failure = self.failure or Refused(
                "its model.py let go of a request without a response with the flag TRITONSERVER_RESPONSE_COMPLETE_FINAL"
            )
            self._finish()

    def close(self):
        """Stops sending, after waiting for a response that is being sent."""
        with self._lock:
            self._is_wanted = False
            self._is_over = True

    def is_over(self):
        return self._is_over

    def wait(self):
        self._end.get()
        if self.failure is not None:
            raise self.failure


class _Single(_Stream):
    """The one response to a request of a model that is not decoupled, if it is sent by a sender instead of returned."""

    def __init__(self):
        super().__init__(self._keep)
        self.response = None

    def _keep(self, response, is_final):
        self.response = response
        return True

    def send(self, response, flags):
        if response is not None and self.response is not None:
            raise TritonModelException("a model that is not decoupled sends exactly one response to a request")
        if response is None and flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL and self.response is None:
            raise TritonModelException("a model that is not decoupled sends a response before, or with, the final flag")
        super().send(response, flags)

    def take(self):
        self.wait()
        self.close()
        return self.response


#: Held while requests are given their senders, one at a time.
_attaching = threading.Lock()


class _StreamSender:
    """Sends the responses to a request."""

    def __init__(self, stream, is_cancelled):
        self._stream = stream
        self.is_cancelled = is_cancelled

    def send(self, response=None, flags=0):
        self._stream.send(response, flags)


class InferenceRequest:
    """A request to the model, or from the model to another one (BLS)."""

    def __init__(
        self,
        request_id="",
        correlation_id=0,
        inputs=(),
        requested_output_names=(),
        model_name="",
        model_version=-1,
        flags=0,
        timeout=0,
        preferred_memory=None,
        trace=None,
        parameters=None,
    ):
        for tensor in inputs:
            if not isinstance(tensor, Tensor):
                raise TritonModelException(f"expected tensors of pb_utils.Tensor, found {type(tensor).__name__}")
        if isinstance(parameters, str):
            parameters = json.loads(parameters)
        given = dict(parameters or {})
        if correlation_id:
            given["sequence_id"] = correlation_id
        self._message = {"id": request_id, "parameters": given, "outputs": list(requested_output_names)}
        self._inputs, self._model_name, self._model_version = list(inputs), model_name, model_version
        self._timeout, self._sender, self._stream, self._number = timeout, None, None, None
        self._trace = trace
        self.set_flags(flags)

    @classmethod
    def _of(cls, number, message, tensors, model_name, model_version):
        request = cls.__new__(cls)
        request._number, request._message, request._inputs = number, message, tensors
        request._model_name, request._model_version = model_name, model_version
        request._sender = request._stream = request._trace = None
        request._timeout = message.get("timeout", 0)
        return request

    def _answers_by(self, stream):
        """From now on, a sender answers the request."""
        self._stream = stream
        weakref.finalize(self, stream.abandon, False).atexit = False

    def _pending(self):
        """Returns the object that receives the sender's single response."""
        with _attaching:
            if self._stream is None:
                self._answers_by(_Single())
            return self._stream

    def inputs(self):
        return self._inputs

    def request_id(self):
        return self._message.get("id") or ""

    def correlation_id(self):
        return self._message.get("parameters", {}).get("sequence_id", 0)

    def flags(self):
        parameters = self._message.get("parameters", {})
        return bool(parameters.get("sequence_start")) * 1 + bool(parameters.get("sequence_end")) * 2

    def set_flags(self, flags):
        parameters = self._message.setdefault("parameters", {})
        for name, flag in (
            ("sequence_start", TRITONSERVER_REQUEST_FLAG_SEQUENCE_START),
            ("sequence_end", TRITONSERVER_REQUEST_FLAG_SEQUENCE_END),
        ):
            parameters.pop(name, None)
            parameters.update({name: True} if flags & flag else {})

    def model_name(self):
        return self._model_name

    def model_version(self):
        return int(self._model_version) if str(self._model_version).isdigit() else self._model_version

    def requested_output_names(self):
        return self._message.get("outputs") or (list(self._all_outputs) if self._number is not None else [])

    def parameters(self):
        return json.dumps(self._message.get("parameters", {}))

    def timeout(self):
        return self._timeout

    def preferred_memory(self):
        return PreferredMemory(TRITONSERVER_MEMORY_CPU)

    def trace(self):
        return self._trace or InferenceTrace()

    def set_release_flags(self, flags):
        if flags & TRITONSERVER_REQUEST_RELEASE_RESCHEDULE:
            _unsupported("TRITONSERVER_REQUEST_RELEASE_RESCHEDULE (iterative sequences)")

    def is_cancelled(self):
        return self._number in _cancelled

    def get_response_sender(self):
        if self._number is None:
            raise TritonModelException("get_response_sender is for requests that a model has received")
        stream = self._pending()
        if self._sender is None:
            number = self._number
            self._sender = _StreamSender(stream, lambda: number in _cancelled)
            stream.has_sender = True
            weakref.finalize(self._sender, stream.abandon, True).atexit = False
        return self._sender

    def exec(self, decoupled=False):
        """Calls the named model and waits for its response; with `decoupled`, returns an iterator over its responses.

        If the other model, or the server, refuses the request, the response contains an error.
        """
        try:
            call = self._ask(decoupled)
            if decoupled:
                return calls.Answers(call, _response, _failed_response)
            return _response(call.take()[0])
        except calls.Failed as failure:
            return iter([_failed_response(failure)]) if decoupled else _failed_response(failure)

    def async_exec(self, decoupled=False):
        """Calls the named model like `exec`, as a future of the running event loop. Several calls can run at once. The
        request is sent immediately."""
        loop = asyncio.get_running_loop()
        found = None
        try:
            call = self._ask(decoupled)
            if decoupled:
                found = calls.Answers(call, _response, _failed_response)
        except calls.Failed as failure:
            found = iter([_failed_response(failure)]) if decoupled else _failed_response(failure)
        if found is None:
            return loop.create_task(_later(call))
        future = loop.create_future()
        future.set_result(found)
        return future

    def _ask(self, decoupled):
        version = str(self._model_version)
        return calls.ask(
            self._model_name,
            [(tensor.name(), _as_strings(tensor.as_numpy())) for tensor in self._inputs],
            version=None if version in ("-1", "") else version,
            outputs=self._message.get("outputs"),
            parameters=self._message.get("parameters"),
            id=self._message.get("id"),
            timeout=self._timeout or None,
            several=decoupled,
        )


async def _later(call):
    try:
        return _response((await call.take_later())[0])
    except calls.Failed as failure:
        return _failed_response(failure)


def _response(outputs):
    return InferenceResponse([Tensor(name, array) for name, _, array in outputs or ()])


def _failed_response(failure):
    code = TritonError._CODES.get(failure.status, TritonError.INTERNAL)
    return InferenceResponse(error=TritonError(str(failure), code))


class LogLevel:
    INFO, WARNING, ERROR, VERBOSE = range(4)


class Logger:
    """Writes to the server's log. Verbose messages have the level debug."""

    LogLevel = LogLevel
    INFO, WARNING, ERROR, VERBOSE = LogLevel.INFO, LogLevel.WARNING, LogLevel.ERROR, LogLevel.VERBOSE

    @staticmethod
    def log(message, level=LogLevel.INFO):
        # The server reads the level from the beginning of a line.
        mark = "\x1e" + {LogLevel.WARNING: "W", LogLevel.ERROR: "E", LogLevel.VERBOSE: "D"}.get(level, "I")
        sys.stderr.write("".join(f"{mark}{line}\n" for line in str(message).splitlines()))
        sys.stderr.flush()

    @staticmethod
    def log_info(message):
        Logger.log(message, LogLevel.INFO)

    @staticmethod
    def log_warn(message):
        Logger.log(message, LogLevel.WARNING)

    @staticmethod
    def log_error(message):
        Logger.log(message, LogLevel.ERROR)

    @staticmethod
    def log_verbose(message):
        Logger.log(message, LogLevel.VERBOSE)


class ModelConfig:
    """The configuration that `auto_complete_config` completes."""

    def __init__(self, config):
        self._config = config

    def as_dict(self):
        return self._config

    def set_max_batch_size(self, max_batch_size):
        if self._config.get("max_batch_size", 0) > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {self._config['max_batch_size']}, but the model supports {max_batch_size}"
            )
        if not self._config.get("max_batch_size"):
            self._config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self):
        self._config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, transaction_policy):
        self._config["model_transaction_policy"] = dict(transaction_policy)

    def add_input(self, input):
        self._add("input", input, {"name", "data_type", "dims", "optional"})

    def add_output(self, output):
        self._add("output", output, {"name", "data_type", "dims"})

    def _add(self, role, tensor, known):
        for field in ("name", "data_type", "dims"):
            if field not in tensor:
                raise ValueError(f"{role} property does not have the field {field!r}")
        unknown = set(tensor) - known
        if unknown:
            raise ValueError(f"{role} {tensor['name']!r} has the unknown fields {sorted(unknown)}")
        written = _by_name(self._config[role], tensor["name"])
        if written is None:
            self._config[role].append(dict(tensor))
            return
        for field in ("data_type", "dims"):
            if list(written[field]) != list(tensor[field]):
                raise ValueError(
                    f"unable to load the model: the configuration has {field} {written[field]} for {role} {tensor['name']!r}, "
                    f"auto_complete_config {tensor[field]}"
                )


def __getattr__(name):
    known = {"MetricFamily", "Metric", "MetricKind", "is_model_ready", "load_model", "unload_model", "SharedMemory", "shared_memory"}
    if name in known or (name.isupper() and not name.startswith("_")):
        raise _Unsupported(f"pb_utils.{name} is not supported by this server")
    raise AttributeError(f"pb_utils has no attribute {name!r}")


def _parts(message, arrays):
    """Returns the requests that were joined into one: the description of each, and views of its rows of the inputs."""
    if not message.get("parts"):
        return [(message, arrays)]
    parts, start = [], 0
    for part in message["parts"]:
        end = start + part["rows"]
        told = {**message, "id": part.get("id"), "outputs": part.get("outputs", [])}
        told["parameters"] = dict(message.get("parameters", {}))
        parts.append((told, {name: array[start:end] for name, array in arrays.items()}))
        start = end
    return parts


def _joined(answers, parts):
    """Joins the outputs of several requests into one; None stands for a failed request. Outputs that cannot be joined are
    refused, and then each request runs alone."""
    kinds = {}
    for answer in filter(None, answers):
        kinds.update({name: (datatype, array) for name, datatype, array in answer})
    outputs = []
    for name, (datatype, example) in kinds.items():
        pieces = []
        for answer, part in zip(answers, parts):
            rows, wanted = part["rows"], part.get("outputs", [])
            array = next((array for known, _, array in answer or () if known == name), None)
            if answer is not None and array is None and (not wanted or name in wanted):
                raise Refused(f"execute() of its model.py returned the output {name!r} to some of its requests only")
            if array is None:
                shape = (rows, *example.shape[1:])
                array = np.full(shape, b"", object) if datatype == "BYTES" else np.zeros(shape, example.dtype)
            if array.shape[:1] != (rows,):
                found = list(array.shape)
                raise Refused(f"execute() of its model.py returned the output {name!r} with shape {found} to a request of {rows} rows")
            pieces.append(array)
        try:
            outputs.append((name, datatype, np.concatenate(pieces)))
        except ValueError as error:
            raise Refused(f"the output {name!r} has another shape for each of its requests: {last_line(error)}") from None
    return outputs


def _instance_name(model, groups, number):
    """Returns the name of the instance with this number, as in Triton: the group's name (`<model>_<group>` if the group
    has none) and the index in the group."""
    for place, group in enumerate(groups):
        count = group.get("count") or 1
        if number < count or place == len(groups) - 1:
            return f"{group.get('name') or f'{model}_{place}'}_{number}"
        number -= count
    return f"{model}_0_{number}"


class TritonModel:
    """Runs a `TritonPythonModel`."""

    #: True as in Triton, where models may modify inputs in place.
    may_write_inputs = True

    #: Runs `execute` of a decoupled model.
    main = None

    def __init__(self, order, path, module):
        import tensorferry_forms as forms

        kind = module.TritonPythonModel
        for name in ("execute",):
            if not callable(getattr(kind, name, None)):
                raise Refused(f"the class TritonPythonModel of its model.py has no method {name}", 400)
        config = forms.written_config(order)
        complete = getattr(kind, "auto_complete_config", None)
        if callable(complete):
            completed = complete(ModelConfig(config))
            config = completed.as_dict() if isinstance(completed, ModelConfig) else config
        #: Triton joins requests into batches only if the configuration enables it.
        self._is_batching = config.get("dynamic_batching") is not None
        if callable(getattr(kind, "is_ready", None)):
            _warn_once("is_ready of a TritonPythonModel is not called by this server: its model is ready while it is loaded")
        #: Whether the model responds only by response senders, any number of times.
        self.is_decoupled = using_decoupled_model_transaction_policy(config)
        #: As in Triton, `execute` is called again while senders of earlier requests are still open.
        self.runs_beside = self.is_decoupled
        if not config["output"]:
            raise Refused(
                "its configuration describes no outputs with data_type and dims, and neither does auto_complete_config", 400
            )
        rows = config.get("max_batch_size", 0)
        self._inputs = forms.ports_of_config(config["input"], rows)
        self._outputs = forms.ports_of_config(config["output"], rows)
        self._datatypes = {output["name"]: output["datatype"] for output in self._outputs}
        self._name, self._version = order["name"], order["version"]
        self._max_batch_size = rows
        folder = os.path.dirname(path)
        self._model = kind()
        # Models use these arguments to find their own files, as in Triton.
        arguments = {
            "model_config": json.dumps(config),
            "model_instance_kind": "CPU",
            "model_instance_name": _instance_name(order["name"], config.get("instance_group", []), order["instance"]),
            "model_instance_device_id": "0",
            "model_repository": os.path.dirname(folder) if order["version"] else folder,
            "model_version": order["version"] or "1",
            "model_name": order["name"],
        }
        initialize = getattr(self._model, "initialize", None)
        if callable(initialize):
            initialize(arguments)
        self.loop = asyncio.new_event_loop() if inspect.iscoroutinefunction(kind.execute) else None
        #: An event loop in a separate thread, unless it runs in the main thread.
        self._looped = None
        self._model_code = forms.model_code
        InferenceRequest._all_outputs = [output["name"] for output in self._outputs]

    def about(self):
        about = {"platform": "python_triton", "inputs": self._inputs, "outputs": self._outputs, "instances": 1}
        about.update(max_batch_size=self._max_batch_size, decoupled=self.is_decoupled)
        return {**about, "joined_only_when_told": not self._is_batching}

    def infer(self, number, message, arrays):
        parts = _parts(message, arrays)
        requests = [self._request(number, part, inputs) for part, inputs in parts]
        responses = self._responses_of(requests, self._execute(requests))
        # From now on, only the model holds references to requests that a sender answers.
        del requests
        wanted = [part.get("outputs", []) for part, _ in parts]
        if len(responses) == 1:
            return self._answer(responses[0], wanted[0])
        answers, refusals = [], []
        for part, (response, names) in enumerate(zip(responses, wanted)):
            try:
                answers.append(self._answer(response, names))
            except Refused as refusal:
                answers.append(None)
                refusals.append((part, refusal))
        return Joined(_joined(answers, message["parts"]), refusals)

    def _answer(self, response, wanted):
        return self._outputs_in(response.take() if isinstance(response, _Single) else response, wanted)

    def _request(self, number, message, arrays):
        tensors = [Tensor(name, array) for name, array in arrays.items()]
        return InferenceRequest._of(number, message, tensors, self._name, self._version)

    def _execute(self, requests, free=None):
        with self._model_code():
            if self.main is None:
                given = self._model.execute(requests)
            elif self.loop is None:
                given = self.main.call(self._model.execute, requests)
            else:
                return self.main.wait_for(self._model.execute(requests), free)
            # As in Triton, the result of `execute` decides: a decorator may hide that it is a coroutine.
            return self._loop_beside().wait_for(given, free) if inspect.isawaitable(given) else given

    def _loop_beside(self):
        """Returns the event loop in a separate thread."""
        with _attaching:
            if self._looped is None:
                self._looped = EventLoop(self.loop or asyncio.new_event_loop())
                # The loop serves all requests, so it must not inherit the current one.
                contextvars.Context().run(threading.Thread(target=self._looped.serve, daemon=True).start)
            return self._looped

    def stream(self, number, message, arrays, give, free):
        wanted = message.get("outputs", [])
        stream = _Stream(lambda response, is_last: give(self._outputs_in(response, wanted), is_last))
        request = self._request(number, message, arrays)
        request._answers_by(stream)
        try:
            if self._execute([request], free) is not None:
                raise Refused("execute() of its model.py returned responses, but it is decoupled: it answers by response senders only")
            # From now on, only the model holds references to the request.
            del request, arrays
            if not stream.is_over():
                free()
            stream.wait()
        finally:
            # A thread of the model that is still running must not answer the next request.
            stream.close()

    @staticmethod
    def _responses_of(requests, responses):
        """Returns the response to each request, or the object that receives the sender's response, maybe later and from
        another thread."""
        if responses is None:
            responses = [None] * len(requests)
        count = len(responses) if isinstance(responses, (list, tuple)) else None
        if count != len(requests):
            found = "no list" if count is None else f"{count} responses"
            expected = "one InferenceResponse for one request"
            if len(requests) > 1:
                expected = f"one InferenceResponse for each of {len(requests)} requests"
            raise Refused(f"execute() of its model.py returned {found}, expected a list with {expected}")
        found = []
        for request, response in zip(requests, responses):
            if response is None:
                response = request._pending()
            elif not isinstance(response, InferenceResponse):
                kind = type(response).__name__
                raise Refused(f"execute() of its model.py returned {kind} in its list, expected an InferenceResponse or None")
            elif request._stream is not None and request._stream.response is not None:
                raise Refused("execute() of its model.py returned a response to a request that its response sender has answered")
            found.append(response)
        return found

    def _outputs_in(self, response, wanted):
        error = response.error()
        if error is not None:
            raise Refused(error.message(), TritonError._STATUS.get(error.code(), 500))
        outputs = []
        for tensor in response.output_tensors():
            name, array = tensor.name(), tensor.as_numpy()
            datatype = self._datatypes.get(name)
            if datatype is None:
                raise Refused(f"execute() of its model.py returned an output {name!r}, which is not described")
            if wanted and name not in wanted:
                continue
            try:
                outputs.append((name, datatype, as_array(_as_strings(array), datatype, name)))
            except (TypeError, ValueError) as error:
                raise Refused(last_line(error)) from None
        return outputs

    def finish(self):
        finalize = getattr(self._model, "finalize", None)
        if callable(finalize):
            finalize()
