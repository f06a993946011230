# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one class a status, each also the built-in exception that callers already handle."""

from ._native import ffi, lib


class Error(Exception):
    """Any failure reported by hotset; the text is the library's."""


class InvalidArgument(Error, ValueError):
    """A wrong call: name, shape, element type, option value."""


class WrongType(InvalidArgument, TypeError):
    """An argument of a wrong type."""


class NotFound(Error, FileNotFoundError):
    """A file is missing or cannot be opened."""


class InvalidModel(Error, ValueError):
    """The model file is damaged or breaks a rule of its operators."""


class Unsupported(Error, NotImplementedError):
    """A valid model or option that this build or machine cannot serve."""


class BudgetTooSmall(Error, MemoryError):
    """A memory budget is too small; the text says how much is needed."""


class OutOfMemory(Error, MemoryError):
    """Host memory ran out."""


class OutOfDeviceMemory(Error, MemoryError):
    """Device memory ran out."""


class DeviceError(Error, RuntimeError):
    """The driver or the device failed."""


class Cancelled(Error):
    """The call was stopped by the caller; the session stays usable."""


class InvalidState(Error, RuntimeError):
    """The object is closed, busy, or was inherited through fork."""


class InternalError(Error, RuntimeError):
    """A defect of the library: please report it."""


_BY_STATUS = {
    lib.HOTSET_ERROR_INVALID_ARGUMENT: InvalidArgument,
    lib.HOTSET_ERROR_NOT_FOUND: NotFound,
    lib.HOTSET_ERROR_INVALID_MODEL: InvalidModel,
    lib.HOTSET_ERROR_UNSUPPORTED: Unsupported,
    lib.HOTSET_ERROR_BUDGET: BudgetTooSmall,
    lib.HOTSET_ERROR_OUT_OF_MEMORY: OutOfMemory,
    lib.HOTSET_ERROR_OUT_OF_DEVICE_MEMORY: OutOfDeviceMemory,
    lib.HOTSET_ERROR_DEVICE: DeviceError,
    lib.HOTSET_ERROR_CANCELLED: Cancelled,
    lib.HOTSET_ERROR_INVALID_STATE: InvalidState,
    lib.HOTSET_ERROR_INTERNAL: InternalError,
}


def check(status):
    if status:
        message = ffi.string(lib.hotset_last_error()).decode("utf-8", "replace")
        name = ffi.string(lib.hotset_status_name(status)).decode()
        raise _BY_STATUS.get(status, Error)(message or name)
