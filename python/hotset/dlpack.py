# SPDX-License-Identifier: Apache-2.0
"""DLPack capsules and hotset_tensor views of each other's memory, without copies.

The protocol is that of the Python array API standard: a producer has `__dlpack__(stream=...)` and `__dlpack_device__()`.
"""

import ctypes

from ._errors import InvalidArgument, check
from ._native import ffi, lib, own

CPU, CUDA, PINNED = 1, 2, 3  # DLDeviceType
_NAME = b"dltensor"
_DEFAULT_STREAM = 1  # CUDA's default stream, as the standard numbers it: what runs and copies come after

_api = ctypes.pythonapi
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", _api))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
# For a capsule that is being destroyed, which nobody may refer to again: by its address.
_is_valid_at = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer_at = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _destroy(capsule):
    if _is_valid_at(capsule, _NAME):  # nobody took what is in it (who does renames the capsule)
        delete(ffi.cast("void *", _pointer_at(capsule, _NAME)))


def delete(managed):
    """Calls the deleter of a DLManagedTensor."""
    fields = ffi.cast("void **", managed)  # 48 bytes of DLTensor, the producer's context, the deleter
    deleter = ffi.cast("void (*)(void *)", fields[7])
    if deleter != ffi.NULL:
        deleter(managed)


def speaks(value):
    """Whether an object is a DLPack producer."""
    return hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__")


def take(value, name):
    """A hotset_tensor view of a producer's memory, and what keeps that alive."""
    device, _ = value.__dlpack_device__()
    try:
        capsule = value.__dlpack__(stream=_DEFAULT_STREAM) if device == CUDA else value.__dlpack__()
        managed = _pointer(capsule, _NAME)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidArgument(f"'{name}' cannot be taken by DLPack: {error}") from error
    tensor = ffi.new("hotset_tensor *")
    tensor.struct_size = ffi.sizeof("hotset_tensor")
    check(lib.hotset_tensor_from_dlpack(tensor, ffi.cast("void *", managed)))
    return tensor, capsule  # which keeps its name, so that it calls the deleter when it goes


def give(tensor):
    """A capsule that shares device memory which the library allocated into `tensor`."""
    out = ffi.new("void **")
    check(lib.hotset_tensor_to_dlpack(tensor, out))
    return _new(int(ffi.cast("uintptr_t", out[0])), _NAME, ctypes.cast(_destroy, ctypes.c_void_p))


def free_with_last_reference(tensor):
    """Owns what the library allocated into `tensor`: the result keeps it, and frees it when it goes."""
    return own(tensor, lambda kept, free=lib.hotset_tensor_free: free(kept))
