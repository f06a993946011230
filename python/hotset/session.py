# SPDX-License-Identifier: Apache-2.0
"""InferenceSession with the call shapes of onnxruntime: a program changes one import."""

import collections.abc
import os
import threading

from ._errors import InvalidArgument, InvalidState, check
from ._native import ffi, lib, own, string, take_json, text
from .binding import IOBinding
from .device_tensor import DeviceTensor
from .devices import PROVIDERS, check_providers, provider_device
from .dlpack import free_with_last_reference
from .options import require_options
from .tensor import TENSOR_SIZE, Tensor, adopt, fill, type_name


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


class InferenceSession:
    """A loaded model. Use `close()`, `with`, or let the last reference go. Several threads may call `run` at once.

    Raises NotFound, InvalidModel, Unsupported (an operator or option), BudgetTooSmall, OutOfMemory, Cancelled (by the progress
    callback), InvalidArgument; every text says what was seen, what was expected, and where."""

    def __init__(self, path_or_bytes, sess_options=None, providers=None, provider_options=None, **ignored):
        """`path_or_bytes` is the path of an ONNX file, whose weights are mapped and must not be overwritten meanwhile, or the
        bytes of one, which are copied. `providers` are names or pairs (name, options), preferred first; None is the CPU."""
        unknown = ignored.keys() - {"disabled_optimizers", "enable_fallback", "read_config_from_model"}
        if unknown:
            raise TypeError(f"unexpected arguments: {', '.join(sorted(unknown))}")
        options = require_options(sess_options)
        self._options = options
        if providers is None:
            providers = options._providers
        pairs = check_providers(providers, provider_options, options, options._warn)
        self._provider_options = dict(pairs)
        failure = options._failures
        failure.clear()
        out = ffi.new("hotset_session **")
        with options._on_device(provider_device(pairs)):
            self._device = options.get_session_config_entry("hotset.device")
            if isinstance(path_or_bytes, (bytes, bytearray, memoryview)):
                model = ffi.from_buffer(path_or_bytes)
                status = lib.hotset_session_create_from_memory(out, model, len(model), options._handle)
            else:
                status = lib.hotset_session_create(out, text(os.fspath(path_or_bytes)), options._handle)
        if status and failure:
            raise failure[0]
        check(status)
        self._handle = own(out[0], lambda handle, free=lib.hotset_session_free, kept=options._log_handle: free(handle))
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
        """NodeArgs of the inputs that a run needs."""
        return list(self._inputs)

    def get_outputs(self):
        """NodeArgs of what a run can give."""
        return list(self._outputs)

    def get_overridable_initializers(self):
        """None: initializers are constants."""
        return []

    def get_modelmeta(self):
        """What the file says about itself."""
        return ModelMetadata(self._json(lib.hotset_session_metadata))

    def get_providers(self):
        """The providers in use, the CPU last."""
        names = [name for name in self._provider_options if name != PROVIDERS[1]]
        return [*names, PROVIDERS[1]]

    def get_provider_options(self):
        """Options of the providers in use, by name."""
        return {name: self._provider_options.get(name, {}) for name in self.get_providers()}

    def get_session_options(self):
        """The SessionOptions given, or the defaults."""
        return self._options

    def run(self, output_names, input_feed, run_options=None):
        """Arrays of the named outputs (None: all) for a dict of input arrays. Nothing is copied either way.

        Inputs are numpy arrays (or OrtValues), contiguous in C order, of the element type and rank that get_inputs() tells;
        anything else raises InvalidArgument with the conversion to write, as do missing and unknown names. Nodes that no
        named output needs are not run. A name given twice is computed once: its array is there twice. Raises Cancelled when
        `run_options` was terminated."""
        tag = ffi.NULL if run_options is None else run_options._handle
        return self._call(
            output_names, input_feed, lambda *arguments: lib.hotset_run(self._open(), tag, *arguments), lambda tensor, _: adopt(tensor)
        )

    def run_on_stream(self, output_names, input_feed, stream, run_options=None):
        """As `run` of a session on a GPU, in the order of a CUDA stream (a number: torch.cuda.Stream.cuda_stream, cupy.cuda.Stream.ptr)
        and without waiting: the results are DeviceTensors that later work of the stream finds complete. Inputs must not be changed
        outside of the stream meanwhile. Nodes that run on the CPU are waited for."""
        tag = ffi.NULL if run_options is None else run_options._handle
        handle = ffi.cast("void *", stream)

        def result(tensor, inputs):
            own_tensor = ffi.new("hotset_tensor *", tensor)
            return DeviceTensor(own_tensor, (free_with_last_reference(own_tensor), inputs), stream)

        def run(*arguments):
            return lib.hotset_run_async(self._open(), tag, *arguments, handle)

        return self._call(output_names, input_feed, run, result, self._device)

    def _call(self, output_names, input_feed, run, result, device="cpu"):
        """Calls `run` with names and tensors, and makes the results by `result(tensor, what the inputs lie in)`."""
        if not isinstance(input_feed, collections.abc.Mapping):
            raise InvalidArgument(f"input_feed is a dict of arrays by input name, not {type(input_feed).__name__}")
        self._open()
        n_in = len(input_feed)
        inputs, in_names, kept = ffi.new("hotset_tensor[]", n_in), ffi.new("const char *[]", n_in), []
        for index, (name, value) in enumerate(input_feed.items()):
            in_names[index] = self._name(name, kept)
            kept.append(fill(inputs[index], value, name, self._input_dtypes.get(name)))
        names = output_names or [arg.name for arg in self._outputs]
        wanted = list(dict.fromkeys(names))
        n_out = len(wanted)
        outputs, out_names = ffi.new("hotset_tensor[]", n_out), ffi.new("const char *[]", n_out)
        for index, name in enumerate(wanted):
            out_names[index] = self._name(name, kept)
            outputs[index].struct_size = TENSOR_SIZE
            if device != "cpu":
                outputs[index].device, outputs[index].device_id = lib.HOTSET_CUDA, int(device.partition(":")[2] or 0)
        check(run(in_names, inputs, n_in, out_names, outputs, n_out))
        results = [result(outputs[index], kept) for index in range(n_out)]
        if n_out == len(names):
            return results
        by_name = dict(zip(wanted, results, strict=True))
        return [by_name[name] for name in names]

    def _name(self, name, kept):
        pointer = self._names.get(name)
        if pointer is None:  # not of this graph: the library names it in the error
            if not isinstance(name, str):
                raise InvalidArgument(f"names of inputs and outputs are str, got {type(name).__name__}")
            pointer = ffi.new("char[]", text(name))
            kept.append(pointer)
        return pointer

    def run_with_ort_values(self, output_names, input_dict_ort_values, run_options=None):
        """As `run`, with OrtValues."""
        return [Tensor(array) for array in self.run(output_names, input_dict_ort_values, run_options)]

    def run_async(self, output_names, input_feed, callback, user_data=None, run_options=None):
        """Runs in a thread of its own and calls callback(results, user_data, error text or "") from it."""
        self._open()

        def work():
            try:
                results, error = self.run(output_names, input_feed, run_options), ""
            except Exception as failure:
                results, error = [], str(failure)
            callback(results, user_data, error)

        threading.Thread(target=work, daemon=True).start()

    def enable_fallback(self):
        """Accepted for compatibility: a run never changes the provider."""

    def disable_fallback(self):
        """Accepted for compatibility: a run never changes the provider."""

    def io_binding(self):
        """An IOBinding of this session."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding, run_options=None):
        """Runs with what is bound; errors as in `run`. A bound output buffer that is too small raises InvalidArgument with the size."""
        self._open()
        tag = ffi.NULL if run_options is None else run_options._handle
        iobinding._run(lambda handle: lib.hotset_binding_run(handle, tag))

    def run_with_iobinding_on_stream(self, iobinding, stream, run_options=None):
        """The same in the order of a CUDA stream and without waiting, as `run_on_stream`."""
        self._open()
        tag = ffi.NULL if run_options is None else run_options._handle
        iobinding._run(lambda handle: lib.hotset_binding_run_async(handle, tag, ffi.cast("void *", stream)), stream)

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
        """Counters since creation: runs, failed_runs, nodes_executed, shape_inferences, memory_layouts, arena_bytes,
        expert_tokens, approximate (whether routing is changed by options), experts."""
        return self._json(lib.hotset_session_stats)

    def expert_stats(self):
        """A dict for every MoE layer, in the order of the graph: node, op, experts, experts_per_token, routes (for each
        expert the tokens sent to it in runs that succeeded, padding included), routes_total, counters (recent use of each
        expert, 0...1), skipped and substituted (routes that approximate routing changed)."""
        return self.stats().get("experts", [])

    def save_expert_profile(self, path):
        """Writes how often each expert was chosen; a session of the same model starts from it with the option
        session.moe.offload.popularity_file. InvalidState before the first run, NotFound when the file cannot be written."""
        check(lib.hotset_session_save_profile(self._open(), text(os.fspath(path))))

    def trace(self):
        """Chrome trace events of the last run, with the option hotset.trace = 1."""
        return self._json(lib.hotset_session_trace)


def plan(path, sess_options=None):
    """The report of `InferenceSession.plan` for a model file, without mapping its weights."""
    out = ffi.new("char **")
    handle = ffi.NULL if sess_options is None else require_options(sess_options)._handle
    check(lib.hotset_plan_file(text(os.fspath(path)), handle, out))
    return take_json(out)


def doctor():
    """Instruction sets, kernel choices, build options and devices of this machine."""
    out = ffi.new("char **")
    check(lib.hotset_doctor(out))
    return take_json(out)
