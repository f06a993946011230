# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays as hotset_tensor views and back, without copies; packed 4-bit types are the one exception."""

import ml_dtypes
import numpy as np

from . import dlpack
from ._errors import InvalidArgument, Unsupported
from ._native import ffi, lib, own

_DTYPES = {
    lib.HOTSET_FLOAT32: np.float32,
    lib.HOTSET_UINT8: np.uint8,
    lib.HOTSET_INT8: np.int8,
    lib.HOTSET_UINT16: np.uint16,
    lib.HOTSET_INT16: np.int16,
    lib.HOTSET_INT32: np.int32,
    lib.HOTSET_INT64: np.int64,
    lib.HOTSET_BOOL: np.bool_,
    lib.HOTSET_FLOAT16: np.float16,
    lib.HOTSET_FLOAT64: np.float64,
    lib.HOTSET_UINT32: np.uint32,
    lib.HOTSET_UINT64: np.uint64,
    lib.HOTSET_BFLOAT16: ml_dtypes.bfloat16,
    lib.HOTSET_FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn,
    lib.HOTSET_FLOAT8E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
    lib.HOTSET_FLOAT8E5M2: ml_dtypes.float8_e5m2,
    lib.HOTSET_FLOAT8E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
    lib.HOTSET_FLOAT8E8M0: ml_dtypes.float8_e8m0fnu,
    lib.HOTSET_UINT4: ml_dtypes.uint4,
    lib.HOTSET_INT4: ml_dtypes.int4,
    lib.HOTSET_FLOAT4E2M1: ml_dtypes.float4_e2m1fn,
}
_DTYPES = {code: np.dtype(dtype) for code, dtype in _DTYPES.items()}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
PACKED = {lib.HOTSET_UINT4, lib.HOTSET_INT4, lib.HOTSET_FLOAT4E2M1}
TENSOR_SIZE = ffi.sizeof("hotset_tensor")


def numpy_dtype(code):
    """The NumPy element type of a hotset_dtype, or Unsupported."""
    try:
        return _DTYPES[code]
    except KeyError:
        raise Unsupported(f"element type {code} has no NumPy counterpart") from None


def dtype_code(dtype):
    """The hotset_dtype of a NumPy element type (or its number), or InvalidArgument."""
    if isinstance(dtype, int):
        numpy_dtype(dtype)
        return dtype
    dtype = np.dtype(dtype)
    code = _CODES.get(dtype)
    if code is None:
        swapped = dtype.newbyteorder()
        hint = f"; convert with .astype('{swapped.name}')" if swapped in _CODES and dtype.itemsize > 1 else ""
        raise InvalidArgument(f"element type {dtype!s} ({dtype.str}) is not a tensor type{hint}")
    return code


def type_name(code):
    """The type as onnxruntime writes it, such as 'tensor(float)'."""
    return f"tensor({ffi.string(lib.hotset_dtype_name(code)).decode()})"


def _pack(array):
    codes = array.reshape(-1).view(np.uint8) & 15
    if codes.size % 2:
        codes = np.append(codes, np.uint8(0))
    return codes[0::2] | codes[1::2] << 4


def _unpack(data, dtype, shape):
    count = int(np.prod(shape))
    codes = np.stack([data & 15, data >> 4], axis=-1).reshape(-1)[:count]
    if dtype == np.dtype(ml_dtypes.int4):
        codes = (codes ^ 8) - np.uint8(8)  # ml_dtypes keeps the sign in the upper bits
    return codes.view(dtype).reshape(shape)


def _check_type(code, name, expected):
    if expected is not None and code != expected:
        raise InvalidArgument(
            f"'{name}' is {type_name(code)}, expected {type_name(expected)}; convert with .astype({numpy_dtype(expected).name!r})"
        )


def fill(tensor, array, name, expected=None):
    """Make `tensor` a view of `array`, a Tensor or anything that speaks DLPack; returns the object whose memory is in use, to be kept
    until the call is over.

    What would need a conversion is refused with the conversion to write, so that no copy goes unnoticed.
    """
    if not isinstance(array, np.ndarray):
        view = getattr(array, "_tensor", None)
        if view is None and not isinstance(array, Tensor):
            if not dlpack.speaks(array):
                raise InvalidArgument(f"'{name}' is {type(array).__name__}, not numpy.ndarray; convert with numpy.asarray(value, dtype)")
            view, array = dlpack.take(array, name)
        if view is not None:
            _check_type(view.dtype, name, expected)
            for field in ("struct_size", "dtype", "device", "device_id", "rank", "data", "bytes", "shape"):
                setattr(tensor, field, getattr(view, field))
            return array
        array = array._array
    code = _CODES.get(array.dtype)
    if code is None:
        code = dtype_code(array.dtype)
    _check_type(code, name, expected)
    if not array.flags.c_contiguous:
        raise InvalidArgument(f"'{name}' is not contiguous in C order; convert with numpy.ascontiguousarray(array)")
    if array.ndim > lib.HOTSET_MAX_RANK:
        raise InvalidArgument(f"'{name}' has {array.ndim} dimensions, at most {lib.HOTSET_MAX_RANK} are supported")
    buffer = ffi.from_buffer(_pack(array) if code in PACKED else array)
    tensor.struct_size = TENSOR_SIZE
    tensor.dtype = code
    tensor.device = lib.HOTSET_CPU
    tensor.rank = array.ndim
    tensor.data = buffer
    tensor.bytes = len(buffer)
    tensor.shape[0 : array.ndim] = array.shape
    return buffer


def shape_of(tensor):
    return tuple(tensor.shape[0 : tensor.rank])


def adopt(tensor):
    """An array over memory that the library allocated into `tensor`; the last view of it frees the memory."""
    dtype = numpy_dtype(tensor.dtype)
    kept = ffi.new("hotset_tensor *", tensor)
    memory = own(ffi.cast("char *", kept.data), lambda _, free=lib.hotset_tensor_free: free(kept), kept.bytes)
    return _array(memory, dtype, tensor)


def _array(memory, dtype, tensor):
    shape = shape_of(tensor)
    size = lib.hotset_tensor_bytes(tensor.dtype, tensor.shape, tensor.rank)
    if size == 0:
        return np.empty(shape, dtype)
    data = np.frombuffer(ffi.buffer(memory, size), np.uint8)
    return _unpack(data, dtype, shape) if tensor.dtype in PACKED else data.view(dtype).reshape(shape)


def copy_out(tensor):
    """A copy of memory that belongs to somebody else."""
    return _array(ffi.cast("char *", tensor.data), numpy_dtype(tensor.dtype), tensor).copy()


class Tensor:
    """A tensor in host memory, with the methods of onnxruntime's OrtValue. It shares memory with its array. DeviceTensor is the same
    on a GPU."""

    def __init__(self, array):
        fill(ffi.new("hotset_tensor *"), array, "array")
        self._array = array

    @classmethod
    def ortvalue_from_numpy(cls, numpy_obj, device_type="cpu", device_id=0):
        """Shares the memory of a contiguous array of any tensor type; with the device "cuda", a copy in device memory."""
        if is_cuda(device_type):
            from .device_tensor import DeviceTensor

            return DeviceTensor.copy_of(numpy_obj, device_id)
        return cls(numpy_obj)

    @classmethod
    def ortvalue_from_shape_and_type(cls, shape, element_type=np.float32, device_type="cpu", device_id=0):
        """Uninitialised memory; `element_type` is a NumPy type or the number of an ONNX one."""
        if is_cuda(device_type):
            from .device_tensor import DeviceTensor

            return DeviceTensor.allocate(element_type, shape, device_id)
        return cls(np.empty(shape, numpy_dtype(dtype_code(element_type))))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data, onnx_element_type):
        """`data` read as elements of an ONNX type of the same size, such as uint16 as bfloat16."""
        dtype = numpy_dtype(onnx_element_type)
        if dtype.itemsize != data.dtype.itemsize:
            raise InvalidArgument(
                f"{data.dtype} has {data.dtype.itemsize} bytes an element, {type_name(onnx_element_type)} {dtype.itemsize}"
            )
        return cls(data.view(dtype))

    @classmethod
    def from_dlpack(cls, data, is_bool_tensor=False):
        """Shares the memory of any tensor that speaks DLPack, in host or device memory."""
        if data.__dlpack_device__()[0] == dlpack.CUDA:
            from .device_tensor import DeviceTensor

            tensor, kept = dlpack.take(data, "data")
            if is_bool_tensor:
                tensor.dtype = lib.HOTSET_BOOL
            return DeviceTensor(tensor, kept)
        array = np.from_dlpack(data)
        return cls(array.view(np.bool_) if is_bool_tensor else array)

    def __dlpack__(self, **arguments):
        return self._array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()

    def numpy(self):
        """The array itself, not a copy."""
        return self._array

    def __array__(self, dtype=None, copy=None):
        return np.array(self._array, dtype=dtype, copy=copy)

    def shape(self):
        """A list of ints."""
        return list(self._array.shape)

    def element_type(self):
        """The number of the ONNX type."""
        return dtype_code(self._array.dtype)

    def data_type(self):
        """As onnxruntime writes it: "tensor(float)"."""
        return type_name(self.element_type())

    def device_name(self):
        """Always "cpu"."""
        return "cpu"

    def data_ptr(self):
        """The address of the first element."""
        return self._array.ctypes.data

    def tensor_size_in_bytes(self):
        """Size of the array; a 4-bit element counts as a byte here."""
        return self._array.nbytes

    def has_value(self):
        """Always true."""
        return True

    def is_tensor(self):
        """Always true."""
        return True

    def is_sparse_tensor(self):
        """Always false."""
        return False

    def is_tensor_sequence(self):
        """Always false."""
        return False

    def update_inplace(self, np_arr):
        """Copy `np_arr`, of the same shape and element type, into this tensor."""
        if np_arr.shape != self._array.shape or np_arr.dtype != self._array.dtype:
            raise InvalidArgument(f"got {np_arr.dtype} {np_arr.shape}, this tensor is {self._array.dtype} {self._array.shape}")
        self._array[...] = np_arr

    def __repr__(self):
        return f"Tensor({self.data_type()}, shape={self.shape()})"


def is_cuda(device_type):
    """Whether onnxruntime's name of a device is a GPU's; Unsupported for others than "cpu" and "cuda"."""
    name = device_type.lower()
    if name not in ("cpu", "cuda", "gpu"):
        raise Unsupported(f"device '{device_type}' is unknown: tensors live in host memory ('cpu') or on a GPU ('cuda')")
    return name != "cpu"
