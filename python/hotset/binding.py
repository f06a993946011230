# SPDX-License-Identifier: Apache-2.0
"""IOBinding: buffers bound once and used by every run."""

import numpy as np

from ._errors import InvalidArgument, Unsupported, check
from ._native import ffi, lib, own, text
from .device_tensor import DeviceTensor
from .dlpack import free_with_last_reference
from .tensor import PACKED, TENSOR_SIZE, Tensor, copy_out, dtype_code, fill, is_cuda, shape_of


def create_binding(session_handle):
    """A hotset_binding that keeps its session alive."""
    out = ffi.new("hotset_binding **")
    check(lib.hotset_binding_create(out, session_handle))
    return own(out[0], lambda handle, free=lib.hotset_binding_free, parent=session_handle: free(handle))


def _raw(element_type, shape, address, device_type, device_id):
    tensor = ffi.new("hotset_tensor *")
    tensor.struct_size = TENSOR_SIZE
    tensor.dtype = dtype_code(element_type)
    tensor.device, tensor.device_id = (lib.HOTSET_CUDA, device_id) if is_cuda(device_type) else (lib.HOTSET_CPU, 0)
    tensor.rank = len(shape)
    tensor.shape[0 : len(shape)] = list(shape)
    tensor.data = ffi.cast("void *", address)
    tensor.bytes = lib.hotset_tensor_bytes(tensor.dtype, tensor.shape, tensor.rank)
    return tensor


class IOBinding:
    """As onnxruntime's. Arrays are bound, not copied: change their contents between runs and run again."""

    def __init__(self, session):
        self._session = session
        self._handle = create_binding(session._open())
        self._inputs = {}  # name -> (tensor, what must stay alive)
        self._outputs = {}  # name -> (tensor, array or DeviceTensor of the caller, or None)
        self._taken = {}  # name -> DeviceTensor that was the binding's, until the next run
        self._stream = None  # in whose order the last run was

    def _set_input(self, name, tensor, kept):
        check(lib.hotset_binding_set_input(self._handle, text(name), tensor))
        self._inputs[name] = (tensor, kept)

    def _set_output(self, name, tensor, kept):
        check(lib.hotset_binding_set_output(self._handle, text(name), tensor))
        self._outputs[name] = (tensor, kept)

    def bind_cpu_input(self, name, arr_on_cpu):
        """Binds a contiguous array of the type that the input has; InvalidArgument otherwise. It is kept, and read by each run."""
        tensor = ffi.new("hotset_tensor *")
        kept = fill(tensor, arr_on_cpu, name, self._session._input_dtypes.get(name))
        self._set_input(name, tensor, kept)

    def bind_ortvalue_input(self, name, ortvalue):
        """As bind_cpu_input. Bind the same OrtValue to present and past of a cache to update it in place."""
        self.bind_cpu_input(name, ortvalue)

    def bind_input(self, name, device_type, device_id, element_type, shape, buffer_ptr):
        """Binds memory at an address, which the caller keeps valid."""
        self._set_input(name, _raw(element_type, shape, buffer_ptr, device_type, device_id), None)

    def bind_output(self, name, device_type="cpu", device_id=0, element_type=None, shape=None, buffer_ptr=None):
        """Results go to the address `buffer_ptr`; without it the binding allocates, on the device that is named."""
        if buffer_ptr is not None:
            tensor = _raw(element_type, shape, buffer_ptr, device_type, device_id)
        elif is_cuda(device_type):
            tensor = ffi.new("hotset_tensor *", {"struct_size": TENSOR_SIZE, "device": lib.HOTSET_CUDA, "device_id": device_id})
        else:
            tensor = ffi.NULL
        self._set_output(name, tensor, None)

    def bind_ortvalue_output(self, name, ortvalue):
        """Results are written into the OrtValue, which must be large enough: else the run raises InvalidArgument."""
        if isinstance(ortvalue, DeviceTensor):
            tensor = ffi.new("hotset_tensor *")
            fill(tensor, ortvalue, name)
            self._set_output(name, tensor, ortvalue)
            return
        array = ortvalue.numpy()
        if dtype_code(array.dtype) in PACKED:
            raise Unsupported(f"'{name}': 4-bit results cannot be written into a NumPy array, which holds one value a byte")
        if not array.flags.writeable:
            raise InvalidArgument(f"'{name}': the array is read-only")
        tensor = ffi.new("hotset_tensor *")
        fill(tensor, array, name)
        self._set_output(name, tensor, array)

    def clear_binding_inputs(self):
        """Forgets the bound inputs."""
        self._clear(self._inputs, self._outputs, lib.hotset_binding_set_output)

    def clear_binding_outputs(self):
        """Forgets the bound outputs."""
        self._clear(self._outputs, self._inputs, lib.hotset_binding_set_input)

    def _clear(self, dropped, kept, bind):
        check(lib.hotset_binding_clear(self._handle))
        dropped.clear()
        for name, (tensor, _) in kept.items():
            check(bind(self._handle, text(name), tensor))

    def synchronize_inputs(self):
        """Nothing to do: a run comes after the work in CUDA's default stream. Wait here for work in other streams."""

    def synchronize_outputs(self):
        """Nothing to wait for: a run returns when its results are there."""

    def _run(self, run, stream=None):
        self._taken.clear()
        self._stream = stream
        check(run(self._handle))

    def _result(self, name):
        """The result and whether it is a copy of the caller's own."""
        if name in self._taken:
            return self._taken[name], True
        tensor = ffi.new("hotset_tensor *")
        tensor.struct_size = TENSOR_SIZE
        check(lib.hotset_binding_output(self._handle, text(name), tensor))
        bound = self._outputs[name][1]
        if isinstance(bound, DeviceTensor):
            return bound._view_as(tensor, self._stream), False
        if tensor.device == lib.HOTSET_CUDA:
            return self._take(name, tensor), True
        if bound is None:
            return copy_out(tensor), True
        shape = shape_of(tensor)
        return bound.reshape(-1)[: int(np.prod(shape))].reshape(shape), False

    def _take(self, name, tensor):
        if self._outputs[name][0] != ffi.NULL and self._outputs[name][0].data != ffi.NULL:
            return DeviceTensor(tensor, self, self._stream)  # at an address that the caller gave
        check(lib.hotset_binding_take_output(self._handle, text(name), tensor))
        self._taken[name] = DeviceTensor(tensor, free_with_last_reference(tensor), self._stream)
        return self._taken[name]

    def get_outputs(self):
        """Results in the order of binding: views of bound arrays and device tensors, copies of what the binding allocated in host
        memory. What it allocated in device memory is handed over: the next run allocates again."""
        return [value if isinstance(value, DeviceTensor) else Tensor(value) for value, _ in map(self._result, self._outputs)]

    def get_outputs_as_ortvaluevector(self):
        """The same list."""
        return self.get_outputs()

    def copy_outputs_to_cpu(self):
        """Arrays in host memory with copies of all results, in the order of binding."""
        results = []
        for value, is_copy in map(self._result, self._outputs):
            if isinstance(value, DeviceTensor):
                results.append(value.numpy())
            else:
                results.append(value if is_copy else value.copy())
        return results
