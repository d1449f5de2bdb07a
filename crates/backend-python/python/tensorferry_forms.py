"""The forms that a model can have: our own class, a class for Triton, or a saved object. All have the same methods:

`about()` returns metadata and defaults for the server. `infer(number, message, arrays)` returns outputs as a list of
(name, datatype, array). If `is_decoupled` is set, `stream(number, message, arrays, give, free)` is called instead: it
calls `give(outputs, is_last)` for each response, which returns whether another one is wanted, and `free()` once another
request can start while this one continues. If `runs_beside` is set, the model does so: its requests run on their own
threads, while `main` runs the model's code, in the event loop `loop` if there is one. `may_write_inputs` tells whether
the model may modify its inputs. `finish()` ends the model.
"""

import asyncio
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import io
import os
import sys
import warnings

import numpy as np

from tensorferry_model import Context, InferenceError, Request, _cancelled
from tensorferry_tensors import as_array, datatype_of, dtype_of
from tensorferry_worker import Ended, Refused, last_line, traceback_of


def model_of(order, content):
    """Creates the model of a file from the file's name and content."""
    path = os.path.abspath(order["path"])
    if order["backend"] == "sklearn":
        return SavedObject(order, path, content)
    if order["backend"] == "booster":
        return Booster(order, content)
    install_triton_modules()
    sys.modules["tensorferry_triton"]._model_dir = os.path.dirname(path)
    module = load_module(path, content, order["version"])
    if hasattr(module, "TritonPythonModel"):
        return sys.modules["tensorferry_triton"].TritonModel(order, path, module)
    if hasattr(module, "Model"):
        return OwnModel(order, path, module)
    raise Refused("its model.py has neither a class Model nor a class TritonPythonModel", 400)


class _Loader(importlib.abc.InspectLoader):
    """Runs the source that the server has read, even if the file has changed since."""

    def __init__(self, path, content):
        self._path, self._content = path, content

    def get_source(self, name):
        return importlib.util.decode_source(self._content)

    def get_code(self, name):
        return compile(self._content, self._path, "exec")

    def exec_module(self, module):
        exec(self.get_code(module.__name__), module.__dict__)


def load_module(path, content, version):
    """Loads a model.py as a module. As in Triton, it is `<version>.model` in a package, so that `from .beside import x`
    works, and modules in its directory and in the parent directory can be imported by plain names. `model` is an alias
    of the module."""
    folder = os.path.dirname(path)
    if b"TritonPythonModel" in content:
        # Triton also puts both directories last, so that a file of the model does not replace a module of Python.
        sys.path.append(folder)
    else:
        sys.path.insert(0, folder)
    sys.path.append(os.path.dirname(folder))
    name = "model"
    if version:
        package = importlib.machinery.ModuleSpec(version, None, is_package=True)
        package.submodule_search_locations = [folder]
        sys.modules[version] = importlib.util.module_from_spec(package)
        name = f"{version}.model"
    spec = importlib.machinery.ModuleSpec(name, _Loader(path, content), origin=path)
    spec.has_location = True
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = sys.modules["model"] = module
    if version:
        sys.modules[version].model = module
    spec.loader.exec_module(module)
    return module


def install_triton_modules():
    utils = sys.modules.get("tensorferry_triton")
    if utils is None:
        import __main__

        utils = __main__.install("tensorferry_triton")
    sys.modules["triton_python_backend_utils"] = utils
    sys.modules["c_python_backend_utils"] = utils


def written_config(order):
    """Returns the configuration as a dict, with the inputs and outputs that it describes."""
    config = dict(order["config"])
    config["name"] = order["name"]
    config["input"] = order["tensors"]["inputs"]
    config["output"] = order["tensors"]["outputs"]
    return config


def port(name, datatype, shape, optional=False):
    """Describes an input or output for the server."""
    dims = []
    for size in shape:
        size = int(size)
        if size < -1:
            raise Refused(f"the shape of {name!r} has {size}; expected -1 for any, or a size", 400)
        dims.append(None if size == -1 else size)
    return {"name": name, "datatype": datatype, "dims": dims, "optional": bool(optional)}


def ports_of_config(tensors, max_batch_size):
    """Returns the tensors of the configuration, with the batch dimension that the configuration omits."""
    rows = [-1] if max_batch_size else []
    return [
        port(tensor["name"], datatype_of(tensor["data_type"]), rows + list(tensor["dims"]), tensor.get("optional", False))
        for tensor in tensors
    ]


class model_code:
    """A context for calls of a model. Converts any exception of the model, even `SystemExit` or asyncio's
    `CancelledError`, to the error that the client receives; the log gets the traceback."""

    def __init__(self, what="its model.py"):
        self._what = what

    def __enter__(self):
        pass

    def __exit__(self, kind, error, traceback):
        if error is None or isinstance(error, (MemoryError, Ended, Refused)):
            return
        if isinstance(error, InferenceError):
            raise Refused(str(error), error.status) from None
        raise Refused(f"{self._what} failed: {last_line(error)}", details=traceback_of(error)) from None


def _kind_of(function):
    """Returns the function of `inspect` that holds for a function, which may be decorated; None for a plain function."""
    for each in (function, inspect.unwrap(function)):
        for kind in (inspect.isgeneratorfunction, inspect.isasyncgenfunction, inspect.iscoroutinefunction):
            if kind(each):
                return kind
    return None


class OwnModel:
    """A model in our own form: `class Model` with `infer`."""

    #: False, so that outputs that share memory with inputs need not be copied.
    may_write_inputs = False

    #: Runs the steps of an asynchronous generator.
    main = None

    def __init__(self, order, path, module):
        kind = module.Model
        config = written_config(order)
        infer = getattr(kind, "infer", None)
        if not callable(infer):
            raise Refused("the class Model of its model.py has no method infer", 400)
        self._inputs = self._ports(kind, "inputs", config["input"], config)
        self._outputs = self._ports(kind, "outputs", config["output"], config)
        self._datatypes = {output["name"]: output["datatype"] for output in self._outputs}
        self._defaults = {}
        for name in ("max_batch_size", "instances"):
            value = getattr(kind, name, None)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1 << 20:
                raise Refused(f"the attribute {name} of the class Model is {value!r}, expected a number", 400)
            self._defaults[name] = value
        context = Context(order["name"], order["version"], os.path.dirname(path), config)
        takes_context = len(inspect.signature(kind).parameters) > 0
        self._model = kind(context) if takes_context else kind()
        self._infer = self._model.infer
        self._bind(self._infer)
        form = _kind_of(self._infer)
        #: Whether infer may give any number of responses.
        self.is_decoupled = form in (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
        #: While asynchronous generators wait, other requests can run.
        self.runs_beside = form is inspect.isasyncgenfunction
        is_async = form in (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
        self.loop = asyncio.new_event_loop() if is_async else None

    @staticmethod
    def _ports(kind, role, configured, config):
        declared = getattr(kind, role, None)
        if declared is None:
            if not configured:
                raise Refused(
                    f"neither the class Model of its model.py has {role}, such as {role} = {{'x': ('FP32', [-1, 16])}}, nor does "
                    f"its configuration describe them with data_type and dims",
                    400,
                )
            return ports_of_config(configured, config.get("max_batch_size", 0))
        ports = []
        for name, what in dict(declared).items():
            try:
                if isinstance(what, dict):
                    unknown = set(what) - {"datatype", "shape", "optional"}
                    if unknown:
                        raise ValueError(f"unknown {', '.join(sorted(unknown))}")
                    datatype, shape, optional = what["datatype"], what["shape"], what.get("optional", False)
                else:
                    (datatype, shape), optional = what, False
                ports.append(port(name, datatype_of(datatype), list(shape), optional and role == "inputs"))
            except Refused:
                raise
            except (TypeError, ValueError, KeyError) as error:
                raise Refused(
                    f"{role}[{name!r}] of the class Model is {what!r}, expected a datatype and a shape such as ('FP32', [-1, 16]): "
                    f"{last_line(error)}",
                    400,
                ) from None
        return ports

    def _bind(self, infer):
        """Maps each input to a parameter of `infer`."""
        parameters = inspect.signature(infer).parameters
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        named = {name for name, parameter in parameters.items() if parameter.kind in by_name}
        takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
        self._names = {}
        for tensor in self._inputs:
            name = tensor["name"]
            plain = "".join(char if char.isalnum() else "_" for char in name)
            known = next((candidate for candidate in (name, plain) if candidate in named), name if takes_all else None)
            if known is None:
                raise Refused(f"infer() of its model.py has no parameter for the input {name!r}", 400)
            if tensor["optional"] and not takes_all and parameters[known].default is inspect.Parameter.empty:
                raise Refused(f"infer() of its model.py needs a default for the optional input {name!r}", 400)
            self._names[name] = known
        self._wants_request = "request" in named and "request" not in self._names.values()
        known = set(self._names.values()) | ({"request"} if self._wants_request else set())
        for name in sorted(named - known):
            if parameters[name].default is inspect.Parameter.empty:
                raise Refused(f"infer() of its model.py has a parameter {name!r}, which is not an input", 400)

    def about(self):
        about = {"platform": "python_model", "inputs": self._inputs, "outputs": self._outputs, "instances": 1}
        rows = {"unproven": "its class Model has no max_batch_size"}
        return {**about, "decoupled": self.is_decoupled, "rows": rows, **self._defaults}

    def infer(self, number, message, arrays):
        arguments, wanted = self._arguments(number, message, arrays)
        with model_code():
            answer = self._infer(**arguments)
            # A decorator may already have awaited the response.
            if self.loop is not None and inspect.isawaitable(answer):
                answer = self.loop.run_until_complete(answer)
            return self._outputs_of(answer, wanted)

    def stream(self, number, message, arrays, give, free):
        arguments, wanted = self._arguments(number, message, arrays)
        with model_code():
            answers = self._infer(**arguments)
            is_generator = inspect.isasyncgen if self.runs_beside else inspect.isgenerator
            if not is_generator(answers):
                found = type(answers).__name__
                raise TypeError(f"infer() returned {found}, expected a generator, as the decorated function returns")
        if self.runs_beside:
            answers = _Steps(answers, number, self.main, free)
        with model_code():
            try:
                for answer in answers:
                    if not give(self._outputs_of(answer, wanted), False) or number in _cancelled:
                        break
            finally:
                # Runs the remaining `finally` and `with` blocks when no more responses are wanted.
                answers.close()

    def _arguments(self, number, message, arrays):
        names = self._names
        arguments = {names[name]: array for name, array in arrays.items()}
        wanted = message.get("outputs", [])
        if self._wants_request:
            arguments["request"] = Request(number, message.get("id"), message.get("parameters", {}), wanted)
        return arguments, wanted

    def _outputs_of(self, answer, wanted):
        if not isinstance(answer, dict):
            if inspect.isgenerator(answer) or inspect.isasyncgen(answer) or inspect.iscoroutine(answer):
                raise TypeError(
                    f"infer() returned {type(answer).__name__} but is not a generator function: it needs its own `yield` or `async`, "
                    f"and a decorator needs functools.wraps"
                )
            if len(self._outputs) != 1:
                raise TypeError(f"infer() returned {type(answer).__name__}, expected a dict of outputs")
            answer = {self._outputs[0]["name"]: answer}
        outputs = []
        for name, value in answer.items():
            datatype = self._datatypes.get(name)
            if datatype is None:
                raise KeyError(f"infer() returned an output {name!r}, which is not declared")
            if not wanted or name in wanted:
                outputs.append((name, datatype, as_array(value, datatype, name)))
        return outputs

    def finish(self):
        close = getattr(self._model, "close", None)
        if callable(close):
            close()


class _Steps:
    """Runs an asynchronous generator step by step. If the request is cancelled while a step waits, the step gets
    asyncio.CancelledError."""

    def __init__(self, answers, number, main, free):
        self._answers, self._number, self._free = main.generation(answers), number, free
        _cancelled.when(number, self._answers.cancel)

    def __iter__(self):
        return self

    def __next__(self):
        # While the first step waits, other requests can take steps.
        free, self._free = self._free, None
        try:
            return self._answers.step(free)
        except StopAsyncIteration:
            raise StopIteration from None
        except asyncio.CancelledError:
            if self._number in _cancelled:
                raise StopIteration from None
            raise

    def close(self):
        self._answers.close()


class SavedObject:
    """An estimator of scikit-learn that was saved with joblib or pickle."""

    may_write_inputs = True
    is_decoupled = runs_beside = False

    #: Methods of estimators that can be served.
    _METHODS = ("predict", "predict_proba", "transform")

    def __init__(self, order, path, content):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            self._object = self._load(path, content)
        config = written_config(order)
        features = getattr(self._object, "n_features_in_", None)
        if config["input"]:
            self._inputs = ports_of_config(config["input"], config.get("max_batch_size", 0))
        elif features is not None:
            self._inputs = [port("X", "FP64", [-1, int(features)])]
        else:
            self._inputs = [port("X", "FP64", [-1, -1])]
        if len(self._inputs) != 1:
            raise Refused(f"its configuration has {len(self._inputs)} inputs, but an estimator takes one", 400)
        self._columns = self._column_names()
        methods = [name for name in self._METHODS if callable(getattr(self._object, name, None))]
        if "predict" in methods:
            methods = [name for name in methods if name != "transform"]
        if not methods:
            raise Refused(f"it holds {type(self._object).__name__}, which has none of {', '.join(self._METHODS)}", 400)
        if config["output"]:
            self._outputs = ports_of_config(config["output"], config.get("max_batch_size", 0))
            unknown = [output["name"] for output in self._outputs if output["name"] not in methods]
            if unknown:
                raise Refused(f"its configuration has an output {unknown[0]!r}, but the estimator has {', '.join(methods)}", 400)
        else:
            self._outputs = self._try(methods)
        # Optional outputs: they are computed only if the request names them.
        self._outputs[1:] = [{**output, "optional": True} for output in self._outputs[1:]]

    @staticmethod
    def _load(path, content):
        try:
            if path.endswith(".joblib"):
                import joblib

                return joblib.load(io.BytesIO(content))
            import pickle

            return pickle.loads(content)
        except ImportError as error:
            raise Refused(f"loading it needs the package {error.name}, which its Python, {sys.executable}, does not have", 400)
        except Exception as error:
            raise Refused(f"it cannot be read: {last_line(error)}", 400, traceback_of(error)) from None

    def _column_names(self):
        """Returns a function that names the columns of an input; None unless the estimator was fitted with column names."""
        names = getattr(self._object, "feature_names_in_", None)
        if names is None:
            return None
        try:
            import pandas
        except ImportError:
            return None
        return lambda x: pandas.DataFrame(x, columns=names)

    def _try(self, methods):
        """Finds the outputs by running the methods on an example."""
        shape = [1 if size is None else size for size in self._inputs[0]["dims"]]
        dtype = dtype_of(self._inputs[0]["datatype"])
        example = np.zeros(shape, dtype) if dtype != object else np.full(shape, "", dtype=object)
        outputs, reason = [], None
        for name in methods:
            try:
                answer = self._call(name, example)
            except Exception as error:
                # Some estimators have methods that work only if they were fitted for them.
                reason = last_line(error)
                continue
            outputs.append(port(name, datatype_of(answer.dtype), [-1, *answer.shape[1:]]))
        if not outputs:
            raise Refused(
                f"running it on a row of zeros, to determine its outputs, failed: {reason}. Describe input and output in its "
                f"configuration",
                400,
            )
        return outputs

    def _call(self, method, x):
        if x.dtype == object:
            x = np.array([value.decode() if isinstance(value, bytes) else value for value in x.ravel()], object).reshape(x.shape)
        answer = getattr(self._object, method)(x if self._columns is None else self._columns(x))
        if hasattr(answer, "toarray"):
            answer = answer.toarray()
        if isinstance(answer, list):
            raise TypeError(f"{method}() gave a list, as estimators with several targets do")
        return np.asarray(answer)

    def about(self):
        # The steps of a pipeline may be arbitrary code.
        rows = {"unproven": "nothing says that the rows of a saved estimator are independent"}
        return {"platform": "sklearn_pickle", "inputs": self._inputs, "outputs": self._outputs, "instances": 1, "rows": rows}

    def infer(self, number, message, arrays):
        # As in KServe, a request that names no outputs gets only the first: predictions, without a second run for
        # probabilities.
        wanted = message.get("outputs") or [self._outputs[0]["name"]]
        x = arrays[self._inputs[0]["name"]]
        with model_code(type(self._object).__name__):
            return [
                (output["name"], output["datatype"], as_array(self._call(output["name"], x), output["datatype"], output["name"]))
                for output in self._outputs
                if output["name"] in wanted
            ]

    def finish(self):
        pass


class Booster:
    """A model of XGBoost or LightGBM that its own package runs. Names and responses are the same as with the server's
    built-in runtime."""

    may_write_inputs = True
    is_decoupled = runs_beside = False

    def __init__(self, order, content):
        package = "lightgbm" if content.lstrip().startswith((b"tree\n", b"tree\r")) else "xgboost"
        try:
            module = importlib.import_module(package)
        except ImportError:
            raise Refused(f"the runtime python runs it by the package {package}, which its Python, {sys.executable}, does not have", 400)
        try:
            if package == "lightgbm":
                booster = module.Booster(model_str=content.decode())
                features, self._predict = booster.num_feature(), booster.predict
            else:
                booster = module.Booster()
                booster.load_model(bytearray(content))
                features = booster.num_features()
                self._predict = lambda x: booster.predict(module.DMatrix(x), validate_features=False)
        except Exception as error:
            raise Refused(f"{package} cannot read it: {last_line(error)}", 400, traceback_of(error)) from None
        self._platform = f"{package}_python"
        config = written_config(order)
        rows = config.get("max_batch_size", 0)
        self._inputs = ports_of_config(config["input"], rows) or [port("input-0", "FP32", [-1, features])]
        self._outputs = ports_of_config(config["output"], rows)
        for role, ports in (("inputs", self._inputs), ("outputs", self._outputs)):
            if len(ports) > 1:
                raise Refused(f"its configuration has {len(ports)} {role}, but {package} has one", 400)
        if not self._outputs:
            answer = self._predict(np.zeros((1, features), np.float32))
            self._outputs = [port("output-0", datatype_of(answer.dtype), [-1, *answer.shape[1:]])]

    def about(self):
        about = {"platform": self._platform, "inputs": self._inputs, "outputs": self._outputs, "instances": 1}
        # Trees evaluate each row independently.
        return {**about, "rows": {"proven": {"shared_inputs": [], "equal_dims": []}}}

    def infer(self, number, message, arrays):
        x, output = arrays[self._inputs[0]["name"]], self._outputs[0]
        with model_code():
            answer = self._predict(x)
            if answer.ndim < len(output["dims"]):
                answer = answer.reshape(-1, 1)
            return [(output["name"], output["datatype"], as_array(answer, output["datatype"], output["name"]))]

    def finish(self):
        pass
