# SPDX-License-Identifier: Apache-2.0
"""IOBinding: buffers bound once and used by every run."""

import numpy as np

from ._errors import InvalidArgument, Unsupported, check
from ._native import ffi, lib, own, text
from .tensor import PACKED, TENSOR_SIZE, Tensor, copy_out, dtype_code, fill, require_cpu, shape_of


def create_binding(session_handle):
    """A hotset_binding that keeps its session alive."""
    out = ffi.new("hotset_binding **")
    check(lib.hotset_binding_create(out, session_handle))
    return own(out[0], lambda handle, free=lib.hotset_binding_free, parent=session_handle: free(handle))


def _raw(element_type, shape, address):
    tensor = ffi.new("hotset_tensor *")
    tensor.struct_size = TENSOR_SIZE
    tensor.dtype = dtype_code(element_type)
    tensor.device = lib.HOTSET_CPU
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
        self._outputs = {}  # name -> (tensor, array of the caller or None)

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
        require_cpu(device_type)
        self._set_input(name, _raw(element_type, shape, buffer_ptr), None)

    def bind_output(self, name, device_type="cpu", device_id=0, element_type=None, shape=None, buffer_ptr=None):
        """Results go to the address `buffer_ptr`; without it the binding allocates."""
        require_cpu(device_type)
        self._set_output(name, ffi.NULL if buffer_ptr is None else _raw(element_type, shape, buffer_ptr), None)

    def bind_ortvalue_output(self, name, ortvalue):
        """Results are written into the OrtValue, which must be large enough: else the run raises InvalidArgument."""
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
        """Nothing to wait for: bound memory is host memory."""

    def synchronize_outputs(self):
        """Nothing to wait for: bound memory is host memory."""

    def _result(self, name):
        tensor = ffi.new("hotset_tensor *")
        tensor.struct_size = TENSOR_SIZE
        check(lib.hotset_binding_output(self._handle, text(name), tensor))
        array = self._outputs[name][1]
        if array is None:
            return copy_out(tensor), True
        shape = shape_of(tensor)
        return array.reshape(-1)[: int(np.prod(shape))].reshape(shape), False

    def get_outputs(self):
        """Results in the order of binding: views of bound arrays, copies of what the binding allocated."""
        return [Tensor(self._result(name)[0]) for name in self._outputs]

    def get_outputs_as_ortvaluevector(self):
        """The same list."""
        return self.get_outputs()

    def copy_outputs_to_cpu(self):
        """Copies of all results, in the order of binding."""
        return [array if copied else array.copy() for array, copied in map(self._result, self._outputs)]
