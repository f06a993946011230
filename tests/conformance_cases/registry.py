# SPDX-License-Identifier: Apache-2.0
"""What a case of the conformance table is, and the list of all case generators by operator."""

import dataclasses
from collections.abc import Callable

import ml_dtypes
import numpy as np
from onnx import defs

BF16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = {name: np.dtype(name) for name in ("float32", "float16")} | {"bfloat16": BF16}
LATEST = 24  # opset whose schema says which types an operator is defined for

ONNX_TYPES = {
    "float": "float32",
    "double": "float64",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e5m2": "float8_e5m2",
    "float8e8m0": "float8_e8m0fnu",
}
ONNX_TYPES |= {name: name for name in ("float16", "bfloat16", "int4", "uint4", "bool")}
ONNX_TYPES |= {f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}


@dataclasses.dataclass
class Case:
    """One node and how it is compared."""

    inputs: list
    attributes: dict = dataclasses.field(default_factory=dict)
    outputs: tuple = (None,)  # element types by position, as helpers.node_model takes them
    opset: int = 21
    constant: tuple = ()  # positions of inputs that are initializers
    oracle: Callable | None = None  # () -> expected outputs in float64; None: onnx.reference on the widened model
    source: str = "onnx"  # what the oracle is: onnx, reference (tests/reference), formula, copy
    skip: str = ""  # code of REASONS: why onnxruntime is not compared
    factor: float = 1.0  # on the tolerance of the type
    view: Callable = list  # the parts of the outputs that the operator defines
    model: bytes | None = None  # instead of one node


@dataclasses.dataclass
class Generator:
    op: str
    domain: str
    types: dict  # label -> value given to make
    make: Callable  # (rng, type, i) -> Case or None
    count: int


GENERATORS = []

# Why a case is not compared with onnxruntime. The first two are found out by trying.
REASONS = {
    "k": "onnxruntime's CPU provider has no kernel for the operator and type",
    "r": "onnxruntime refuses this form",
    "d": "the kernels define the case differently (routing, gelu, prepacked weights, NaN); compared with the oracle only",
    "i": "onnxruntime quantises or rounds activations, weights or constants in between",
}


def schema_types(op, parameter=None):
    """Element types of the standard operator by the name onnxruntime uses."""
    schema = defs.get_schema(op, LATEST)
    constraints = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    allowed = constraints[parameter or schema.inputs[0].type_str]
    names = [text.removeprefix("tensor(").removesuffix(")") for text in allowed]
    return {ONNX_TYPES[n]: np.dtype(getattr(ml_dtypes, ONNX_TYPES[n], ONNX_TYPES[n])) for n in names if n in ONNX_TYPES}


def cases(*ops, domain="", types=None, parameter=None, count=8):
    """Registers make(rng, type, i) for operators; several operators: make(rng, type, i, op)."""

    def register(make):
        for op in ops:
            given = types if types is not None else FLOATS if domain else schema_types(op, parameter)
            one = make if len(ops) == 1 else lambda rng, dtype, i, op=op: make(rng, dtype, i, op)
            GENERATORS.append(Generator(op, domain, given, one, count))
        return make

    return register


def is_float(dtype):
    return dtype in (np.float32, np.float16, np.float64, BF16)


def draw(rng, dtype, shape, low=-4.0, high=4.0):
    """Numbers of the type: floats uniform in [low, high), integers of the same range but never below the type's."""
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return rng.random(shape) < 0.5
    if dtype.kind in "iu" or dtype in (ml_dtypes.int4, ml_dtypes.uint4):
        unsigned = dtype.kind == "u" or dtype == ml_dtypes.uint4
        return rng.integers(max(int(low), 0) if unsigned else int(np.floor(low)), max(int(high), 1), shape).astype(np.int64).astype(dtype)
    low = 0.5 if dtype == ml_dtypes.float8_e8m0fnu else low  # powers of two, no zero
    return np.asarray(rng.uniform(low, high, shape)).astype(np.float32 if dtype != np.float64 else dtype).astype(dtype)


def widen(array):
    """The same numbers in a type that NumPy computes with: float64, or integers of a byte and more."""
    array = np.asarray(array)
    if array.dtype in (ml_dtypes.int4, ml_dtypes.uint4):
        return array.astype(np.int8 if array.dtype == ml_dtypes.int4 else np.uint8)
    return array.astype(np.float64) if array.dtype.kind not in "iub" else array


def wide(case):
    """Inputs of a case, widened."""
    return [None if a is None else widen(a) for a in case.inputs]


def formula(inputs, function, *, source="formula", **arguments):
    """A case whose expected outputs are function(*widened inputs): an array or a list of arrays."""
    case = Case(inputs, source=source, **arguments)
    if source == "exact":
        case.factor = 0.0

    def oracle():
        with np.errstate(all="ignore"):
            y = function(*wide(case))
        return y if isinstance(y, (list, tuple)) else [y]

    case.oracle = oracle
    return case
