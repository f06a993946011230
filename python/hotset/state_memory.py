# SPDX-License-Identifier: Apache-2.0
"""Memory of the states of a decode loop, (sequences, heads, time, head size) and others: on the host, or on the session's GPU."""

import math

import numpy as np

from ._errors import OutOfMemory, check
from ._native import ffi, lib
from .device_tensor import DeviceTensor, describe
from .tensor import fill, numpy_dtype

_TIME_AXIS = 2


class HostStates:
    """In an array."""

    def __init__(self, shape, dtype, name):
        self.shape = tuple(shape)
        try:
            self._array = np.zeros(shape, dtype)
        except (MemoryError, ValueError):  # ValueError: more than an address can hold
            raise OutOfMemory(
                f"a cache of {math.prod(shape) * np.dtype(dtype).itemsize} bytes, shape {list(shape)}, does not fit in memory: "
                "choose a smaller max_length"
            ) from None
        self._name = name
        self._kept = []

    def view(self):
        """A hotset_tensor of it; shapes of views may be made smaller."""
        tensor = ffi.new("hotset_tensor *")
        self._kept.append(fill(tensor, self._array, self._name))
        return tensor

    def clear(self):
        self._array[...] = 0

    def move_up(self, rows, longest):
        """The sequences `rows` (ascending) become the first ones; they have up to `longest` tokens."""
        for to, row in enumerate(rows):
            if to != row:
                self._array[to, :, :longest] = self._array[row, :, :longest]

    def take_rows(self, source, shape, rows, longest):
        """Copies the sequences `rows` of another memory, whose content has this shape; of the time axis only `longest`, None: all."""
        content = source._array.reshape(-1)[: math.prod(shape)].reshape(shape)
        if longest is not None:
            content = content[:, :, :longest]
        kept = content[rows]
        self._array.reshape(-1)[: kept.size].reshape(kept.shape)[...] = kept


class DeviceStates:
    """On a GPU; what moves there moves in whole rows of the innermost axes."""

    def __init__(self, shape, dtype, device_id):
        self.shape = tuple(shape)
        self._memory = DeviceTensor.allocate(dtype, shape, device_id)
        self._device_id = device_id
        self._element = numpy_dtype(dtype).itemsize
        self.clear()

    def view(self):
        """A hotset_tensor of it; shapes of views may be made smaller."""
        tensor = ffi.new("hotset_tensor *", self._memory._tensor[0])
        tensor.owner = ffi.NULL
        return tensor

    def clear(self):
        size = math.prod(self.shape) * self._element
        zeros = np.zeros(min(size, 1 << 24), np.uint8)
        source = ffi.new("hotset_tensor *")
        for at in range(0, size, max(zeros.size, 1)):
            kept = fill(source, zeros[: size - at], "zeros")  # alive until the copy is done
            check(lib.hotset_tensor_copy(self._bytes(at, len(kept)), source))

    def _bytes(self, offset, count):
        tensor = describe(lib.HOTSET_UINT8, (count,), self._device_id)
        tensor.data = ffi.cast("char *", self._memory._tensor.data) + offset
        tensor.bytes = count
        return tensor

    def _copy(self, to, source, start, count):
        check(lib.hotset_tensor_copy(self._bytes(to, count), source._bytes(start, count)))

    def move_up(self, rows, longest):
        """The sequences `rows` (ascending) become the first ones; they have up to `longest` tokens."""
        size = math.prod(self.shape[1:]) * self._element
        for to, row in enumerate(rows):
            if to != row:
                self._copy(to * size, self, row * size, size)

    def take_rows(self, source, shape, rows, longest):
        """Copies the sequences `rows` of another memory, whose content has this shape; of the time axis only `longest`, None: all."""
        if longest is None:
            planes, size, kept = 1, math.prod(shape[1:]) * self._element, math.prod(shape[1:]) * self._element
        else:
            inner = math.prod(shape[_TIME_AXIS + 1 :]) * self._element
            planes, size, kept = shape[1], shape[_TIME_AXIS] * inner, longest * inner
        for to, row in enumerate(rows):
            for plane in range(planes):
                self._copy((to * planes + plane) * kept, source, (row * planes + plane) * size, kept)
