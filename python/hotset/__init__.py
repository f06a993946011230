# SPDX-License-Identifier: Apache-2.0
"""hotset: run Mixture-of-Experts ONNX models. InferenceSession follows onnxruntime; Generator makes text."""

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
)
from .session import InferenceSession, ModelMetadata, NodeArg, doctor, get_available_providers, plan
from .tensor import Tensor

OrtValue = Tensor  # the name that onnxruntime programs use
__version__ = _string(_lib.hotset_version())


def get_device():
    return "GPU" if "CUDAExecutionProvider" in get_available_providers() else "CPU"


__all__ = [
    "BudgetTooSmall",
    "Cancelled",
    "DeviceError",
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
    "doctor",
    "get_available_providers",
    "get_device",
    "option_table",
    "plan",
    "set_default_logger_severity",
]
