# SPDX-License-Identifier: Apache-2.0
"""Tensors in the memory of a GPU."""

import numpy as np

from . import dlpack
from ._errors import InvalidArgument, Unsupported, check
from ._native import ffi, lib
from .tensor import PACKED, TENSOR_SIZE, Tensor, dtype_code, fill, numpy_dtype, shape_of, type_name


def describe(element_type, shape, device_id=0):
    """A hotset_tensor without memory, to be allocated on a GPU."""
    tensor = ffi.new("hotset_tensor *")
    tensor.struct_size = TENSOR_SIZE
    tensor.dtype = dtype_code(element_type)
    tensor.device = lib.HOTSET_CUDA
    tensor.device_id = device_id
    if len(shape) > lib.HOTSET_MAX_RANK:
        raise InvalidArgument(f"{len(shape)} dimensions, at most {lib.HOTSET_MAX_RANK} are supported")
    tensor.rank = len(shape)
    tensor.shape[0 : len(shape)] = list(shape)
    return tensor


class DeviceTensor(Tensor):
    """A tensor in the memory of a GPU: an OrtValue that runs take and give without copies. `numpy()` copies to host memory;
    torch.from_dlpack and cupy.from_dlpack share it."""

    def __init__(self, tensor, kept=None, stream=None):
        """`tensor` is a hotset_tensor; `kept` owns its memory; its content comes with `stream` (None: it is there)."""
        self._tensor = tensor
        self._kept = kept
        self._stream = stream

    def _come_before(self, stream):
        """Later work of a stream, which is numbered as in DLPack, finds the content."""
        if self._stream is not None and stream not in (-1, self._stream):
            check(lib.hotset_stream_order(self._tensor.device_id, ffi.cast("void *", self._stream), ffi.cast("void *", stream or 0)))

    @classmethod
    def allocate(cls, element_type, shape, device_id=0):
        """Memory with arbitrary content."""
        tensor = describe(element_type, shape, device_id)
        check(lib.hotset_tensor_allocate(tensor))
        return cls(tensor, dlpack.free_with_last_reference(tensor))

    @classmethod
    def copy_of(cls, array, device_id=0):
        """A copy of an array in host memory."""
        host = ffi.new("hotset_tensor *")
        kept = fill(host, array, "array")
        value = cls.allocate(host.dtype, array.shape, device_id)
        check(lib.hotset_tensor_copy(value._tensor, host))
        del kept
        return value

    @property
    def _array(self):
        return self.numpy()

    def numpy(self):
        """A copy in host memory."""
        code = self._tensor.dtype
        if code in PACKED:
            raise Unsupported("4-bit elements in device memory have no NumPy array")
        self._come_before(None)
        array = np.empty(self.shape(), numpy_dtype(code))
        host = ffi.new("hotset_tensor *")
        kept = fill(host, array, "array")
        check(lib.hotset_tensor_copy(host, self._tensor))
        del kept
        return array

    def __array__(self, dtype=None, copy=None):
        if copy is False:
            raise ValueError("device memory cannot be an array without a copy")
        return self.numpy().astype(dtype, copy=False) if dtype is not None else self.numpy()

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """A capsule that shares the memory, whose content the `stream` of the consumer finds from now on."""
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            if tuple(dl_device) == (dlpack.CPU, 0) and copy is not False:
                return self.numpy().__dlpack__()
            raise BufferError(f"the tensor is on {self.__dlpack_device__()}, not on {tuple(dl_device)}")
        self._come_before(stream)
        source = self
        if copy:
            self._come_before(None)
            source = DeviceTensor.allocate(self._tensor.dtype, self.shape(), self._tensor.device_id)
            check(lib.hotset_tensor_copy(source._tensor, self._tensor))
        if source._tensor.owner == ffi.NULL:
            raise BufferError("memory that was bound by address or taken by DLPack: share it from its owner")
        return dlpack.give(source._tensor)

    def __dlpack_device__(self):
        return (dlpack.CUDA, self._tensor.device_id)

    def shape(self):
        """A list of ints."""
        return list(shape_of(self._tensor))

    def element_type(self):
        """The number of the ONNX type."""
        return self._tensor.dtype

    def data_type(self):
        """As onnxruntime writes it: "tensor(float)"."""
        return type_name(self._tensor.dtype)

    def device_name(self):
        """Always "cuda"."""
        return "cuda"

    def data_ptr(self):
        """The address of the first element in device memory."""
        return int(ffi.cast("uintptr_t", self._tensor.data))

    def tensor_size_in_bytes(self):
        """Size of the elements."""
        return lib.hotset_tensor_bytes(self._tensor.dtype, self._tensor.shape, self._tensor.rank)

    def update_inplace(self, np_arr):
        """Copy `np_arr`, of the same shape and element type, into this tensor."""
        host = ffi.new("hotset_tensor *")
        kept = fill(host, np_arr, "np_arr", self._tensor.dtype)
        if shape_of(host) != shape_of(self._tensor):
            raise InvalidArgument(f"got {np_arr.shape}, this tensor is {tuple(self.shape())}")
        check(lib.hotset_tensor_copy(self._tensor, host))
        del kept

    def _view_as(self, tensor, stream):
        """The same memory with the type and shape of a result in it."""
        view = ffi.new("hotset_tensor *", self._tensor[0])
        view.dtype, view.rank, view.shape = tensor.dtype, tensor.rank, tensor.shape
        return DeviceTensor(view, self, stream)

    def __repr__(self):
        return f"DeviceTensor({self.data_type()}, shape={self.shape()}, cuda:{self._tensor.device_id})"
