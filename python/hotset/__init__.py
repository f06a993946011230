# SPDX-License-Identifier: Apache-2.0
"""hotset: run Mixture-of-Experts ONNX models. InferenceSession follows onnxruntime; Generator makes text."""

from . import _program as _program  # first: Ctrl-C ends the command while it imports the rest
from ._errors import (
    BudgetTooSmall,
    Cancelled,
    DeviceError,
    Error,
    InternalError,
    InvalidArgument,
    InvalidModel,
    InvalidState,
    NotFound,
    OutOfDeviceMemory,
    OutOfMemory,
    Unsupported,
)
from ._native import lib as _lib
from ._native import string as _string
from .binding import IOBinding
from .devices import DeviceInfo, devices, get_all_providers, get_available_providers, get_device
from .generator import GenerationStats, Generator
from .options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OptionInfo,
    RunOptions,
    SessionOptions,
    option_table,
    set_default_logger_severity,
    set_default_logger_verbosity,
)
from .session import InferenceSession, ModelMetadata, NodeArg, doctor, plan
from .tensor import Tensor

OrtValue = Tensor  # the name that onnxruntime programs use
__version__ = _string(_lib.hotset_version())


def get_version_string():
    """The release, such as "0.1.0"."""
    return __version__


__all__ = [
    "BudgetTooSmall",
    "Cancelled",
    "DeviceError",
    "DeviceInfo",
    "Error",
    "ExecutionMode",
    "ExecutionOrder",
    "GenerationStats",
    "Generator",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "InternalError",
    "InvalidArgument",
    "InvalidModel",
    "InvalidState",
    "ModelMetadata",
    "NodeArg",
    "NotFound",
    "OptionInfo",
    "OrtValue",
    "OutOfDeviceMemory",
    "OutOfMemory",
    "RunOptions",
    "SessionOptions",
    "Tensor",
    "Unsupported",
    "devices",
    "doctor",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "get_version_string",
    "option_table",
    "plan",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
]
