# SPDX-License-Identifier: Apache-2.0
"""InferenceSession with the call shapes of onnxruntime: a program changes one import."""

import os

from ._errors import InvalidArgument, InvalidState, check
from ._native import ffi, lib, own, string, take_json, text
from .binding import IOBinding
from .options import SessionOptions, logger
from .tensor import TENSOR_SIZE, Tensor, adopt, fill, type_name

_PROVIDERS = ("CUDAExecutionProvider", "CPUExecutionProvider")


class NodeArg:
    """Name, type and shape of a graph input or output; a dimension is an int, the name of a symbol, or None."""

    def __init__(self, info):
        self.name = string(info.name)
        self.type = type_name(info.dtype)
        rank = max(info.rank, 0)
        self.shape = [info.shape[i] if info.shape[i] >= 0 else string(info.dim_names[i]) for i in range(rank)]

    def __repr__(self):
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape!r})"


class ModelMetadata:
    """What the file says about itself."""

    def __init__(self, values):
        self.producer_name = values.get("producer_name", "")
        self.graph_name = values.get("graph_name", "")
        self.domain = values.get("domain", "")
        self.description = values.get("description", "")
        self.graph_description = values.get("graph_description", "")
        self.version = values.get("version", 0)
        self.custom_metadata_map = values.get("custom_metadata_map", {})
        self.opsets = values.get("opsets", {})

    def __repr__(self):
        return f"ModelMetadata({self.__dict__})"


def get_available_providers():
    """The devices this build can use here, preferred first."""
    count = ffi.new("int32_t *")
    check(lib.hotset_device_count(count))
    return list(_PROVIDERS if count[0] else _PROVIDERS[1:])


def _check_providers(providers, provider_options):
    """Pairs (name, options) in order of preference. Unavailable ones fall back to the CPU with a warning, as in onnxruntime."""
    pairs = []
    for entry in providers or ():
        name, options = (entry, {}) if isinstance(entry, str) else entry
        if name not in _PROVIDERS:
            raise InvalidArgument(f"provider '{name}' is unknown; known: {', '.join(_PROVIDERS)}")
        pairs.append([name, options])
    if provider_options:
        if len(provider_options) != len(pairs):
            raise InvalidArgument(f"{len(provider_options)} provider_options for {len(pairs)} providers")
        pairs = [[name, {**options, **more}] for (name, options), more in zip(pairs, provider_options, strict=True)]
    available = get_available_providers()
    for name, _ in pairs:
        if name not in available:
            logger.warning("%s is not available here (%s); the CPU serves", name, string(lib.hotset_device_note()))
    return [(name, options) for name, options in pairs if name in available]


class InferenceSession:
    """A loaded model. Use `close()`, `with`, or let the last reference go. Several threads may call `run` at once."""

    def __init__(self, path_or_bytes, sess_options=None, providers=None, provider_options=None, **ignored):
        unknown = ignored.keys() - {"disabled_optimizers", "enable_fallback", "read_config_from_model"}
        if unknown:
            raise TypeError(f"unexpected arguments: {', '.join(sorted(unknown))}")
        options = SessionOptions() if sess_options is None else sess_options
        self._options = options
        self._provider_options = dict(_check_providers(providers, provider_options))
        failure = options._progress_failure
        failure.clear()
        out = ffi.new("hotset_session **")
        if isinstance(path_or_bytes, (bytes, bytearray, memoryview)):
            model = ffi.from_buffer(path_or_bytes)
            status = lib.hotset_session_create_from_memory(out, model, len(model), options._handle)
        else:
            status = lib.hotset_session_create(out, text(os.fspath(path_or_bytes)), options._handle)
        if status and failure:
            raise failure[0]
        check(status)
        self._handle = own(out[0], lib.hotset_session_free)
        self._inputs, self._input_dtypes = self._describe(lib.hotset_session_input_count, lib.hotset_session_input)
        self._outputs, _ = self._describe(lib.hotset_session_output_count, lib.hotset_session_output)
        self._names = {arg.name: ffi.new("char[]", text(arg.name)) for arg in self._inputs + self._outputs}

    def _describe(self, count, get):
        args, dtypes = [], {}
        for index in range(count(self._handle)):
            info = ffi.new("hotset_value_info *")
            info.struct_size = ffi.sizeof("hotset_value_info")
            check(get(self._handle, index, info))
            args.append(NodeArg(info))
            dtypes[args[-1].name] = info.dtype
        return args, dtypes

    def _open(self):
        handle = self._handle
        if handle is None:
            raise InvalidState("the session is closed")
        return handle

    def close(self):
        """Frees the model as soon as running calls, bindings and generators that use it are done."""
        self._handle = None

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def get_inputs(self):
        return list(self._inputs)

    def get_outputs(self):
        return list(self._outputs)

    def get_overridable_initializers(self):
        return []

    def get_modelmeta(self):
        return ModelMetadata(self._json(lib.hotset_session_metadata))

    def get_providers(self):
        names = [name for name in self._provider_options if name != _PROVIDERS[1]]
        return [*names, _PROVIDERS[1]]

    def get_provider_options(self):
        return {name: self._provider_options.get(name, {}) for name in self.get_providers()}

    def get_session_options(self):
        return self._options

    def run(self, output_names, input_feed, run_options=None):
        """Arrays of the named outputs (None: all) for a dict of input arrays. Nothing is copied either way."""
        handle = self._open()
        n_in = len(input_feed)
        inputs, in_names, kept = ffi.new("hotset_tensor[]", n_in), ffi.new("const char *[]", n_in), []
        for index, (name, value) in enumerate(input_feed.items()):
            in_names[index] = self._name(name, kept)
            kept.append(fill(inputs[index], value, name, self._input_dtypes.get(name)))
        wanted = output_names or [arg.name for arg in self._outputs]
        n_out = len(wanted)
        outputs, out_names = ffi.new("hotset_tensor[]", n_out), ffi.new("const char *[]", n_out)
        for index, name in enumerate(wanted):
            out_names[index] = self._name(name, kept)
            outputs[index].struct_size = TENSOR_SIZE
        tag = ffi.NULL if run_options is None else run_options._handle
        check(lib.hotset_run(handle, tag, in_names, inputs, n_in, out_names, outputs, n_out))
        return [adopt(outputs[index]) for index in range(n_out)]

    def _name(self, name, kept):
        pointer = self._names.get(name)
        if pointer is None:  # not of this graph: the library names it in the error
            if not isinstance(name, str):
                raise InvalidArgument(f"names of inputs and outputs are str, got {type(name).__name__}")
            pointer = ffi.new("char[]", text(name))
            kept.append(pointer)
        return pointer

    def run_with_ort_values(self, output_names, input_dict_ort_values, run_options=None):
        return [Tensor(array) for array in self.run(output_names, input_dict_ort_values, run_options)]

    def io_binding(self):
        return IOBinding(self)

    def run_with_iobinding(self, iobinding, run_options=None):
        self._open()
        check(lib.hotset_binding_run(iobinding._handle, ffi.NULL if run_options is None else run_options._handle))

    def _json(self, get):
        out = ffi.new("char **")
        check(get(self._open(), out))
        return take_json(out)

    def plan(self):
        """What the session holds, executes and decided, and why."""
        return self._json(lib.hotset_session_plan)

    def memory_plan(self):
        """Rows with the keys purpose, where, bytes, bound."""
        return self.plan()["memory"]

    def stats(self):
        """Counters since creation."""
        return self._json(lib.hotset_session_stats)

    def expert_stats(self):
        """Counters of every MoE layer since creation."""
        return self.stats().get("experts", [])

    def trace(self):
        """Chrome trace events of the last run, with the option hotset.trace = 1."""
        return self._json(lib.hotset_session_trace)


def plan(path, sess_options=None):
    """The report of `InferenceSession.plan` for a model file, without mapping its weights."""
    out = ffi.new("char **")
    handle = ffi.NULL if sess_options is None else sess_options._handle
    check(lib.hotset_plan_file(text(os.fspath(path)), handle, out))
    return take_json(out)


def doctor():
    """Instruction sets, kernel choices, build options and devices of this machine."""
    out = ffi.new("char **")
    check(lib.hotset_doctor(out))
    return take_json(out)
