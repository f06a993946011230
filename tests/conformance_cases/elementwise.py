# SPDX-License-Identifier: Apache-2.0
"""Cases of operators that compute each element alone, with broadcasting."""

import math

import ml_dtypes
import numpy as np

from .registry import BF16, Case, cases, draw, formula, is_float, schema_types, widen

SHAPES = [(3, 5), (2, 0, 3), (), (33, 17), (1,), (7,), (4, 1, 65), (1031,)]
PAIRS = [
    ((3, 1, 5), (4, 1)),
    ((0, 5), (1, 5)),
    ((3, 5), (3, 5)),
    ((), (7,)),
    ((2, 3, 33), (33,)),
    ((130, 17), (130, 1)),
    ((2, 1, 3, 1), (5, 1, 4)),
    ((257,), ()),
]
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0]

# Range of the inputs; functions that are not here take [-4, 4).
RANGE = {
    "Log": (0.05, 9), "Sqrt": (0, 9), "Asin": (-1, 1), "Acos": (-1, 1), "Tan": (-1.4, 1.4), "Reciprocal": (0.5, 9),
}  # fmt: skip
ATTRIBUTES = {
    "LeakyRelu": [{}, {"alpha": 0.3}],
    "Elu": [{}, {"alpha": 0.7}],
    "HardSigmoid": [{}, {"alpha": 0.5, "beta": 0.25}],
    "Gelu": [{}, {"approximate": "tanh"}],
    "Swish": [{}, {"alpha": 1.5}],
    "IsInf": [{}, {"detect_negative": 0}, {"detect_positive": 0}],
}
# Where onnx.reference computes in float32 or with another formula.
ORACLES = {
    "Gelu": lambda x, approximate="none": gelu_tanh(x) if approximate == "tanh" else gelu(x),
    "Swish": lambda x, alpha=1.0: x * sigmoid(alpha * x),
    "Sigmoid": lambda x: sigmoid(x),
    "Elu": lambda x, alpha=1.0: np.where(x > 0, x, np.float64(np.float32(alpha)) * np.expm1(x)),
    "Erf": lambda x: erf(x),
    "LeakyRelu": lambda x, alpha=0.01: np.where(x >= 0, x, np.float64(np.float32(alpha)) * x),
    "HardSigmoid": lambda x, alpha=0.2, beta=0.5: np.clip(float(np.float32(alpha)) * x + float(np.float32(beta)), 0, 1),
    "Softplus": lambda x: np.logaddexp(x, 0),
}
FUNCTIONS = [
    "Neg", "Abs", "Sign", "Exp", "Log", "Sqrt", "Reciprocal", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Erf", "Floor",
    "Ceil", "Round", "IsNaN", "IsInf", "Not", "BitwiseNot", "Sigmoid", "Tanh", "Softplus", "Relu", "Gelu", "Swish", "LeakyRelu", "Elu",
    "HardSigmoid", "Identity",
]  # fmt: skip


def erf(x):
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def gelu(x):
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def sigmoid(x):
    z = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + z), z / (1 + z))


def tail(op, i):
    """A single number is not drawn from the tail of the gates, where 1 + erf(x) has no digits left."""
    return (0 if op in ("Gelu", "QuickGelu", "Swish") and SHAPES[i] in ((), (1,)) else -4, 4)


@cases(*FUNCTIONS)
def function(rng, dtype, i, op):
    low, high = RANGE.get(op) or tail(op, i)
    x = draw(rng, dtype, SHAPES[i], low, high)
    if (
        x.size > 300
        and is_float(dtype)
        and op not in ("Sin", "Cos", "Tan", "Asin", "Acos", "Log", "Sqrt", "Sinh", "Cosh", "Gelu", "Swish", "Softplus")
    ):
        x[: len(SPECIAL)] = np.array(SPECIAL).astype(dtype).reshape((-1,) + (1,) * (x.ndim - 1))
    if op in ("IsNaN", "IsInf") and x.ndim:
        x[..., :1] = np.array([np.nan, np.inf, -np.inf])[i % 3]
    if op == "Round":
        x = (np.round(x.astype(np.float32) * 2) / 2).astype(dtype)  # ties go to even
    choices = ATTRIBUTES.get(op, [{}])
    attributes = choices[i % len(choices)]
    common = {
        "attributes": attributes,
        "opset": 24 if op == "Swish" else 21,
        "outputs": (np.bool_,) if op in ("IsNaN", "IsInf") else (None,),
    }
    if op == "Sign" and dtype in (np.float16, BF16) and x.size > 300:
        common["skip"] = "d"  # the sign of NaN
    if op == "Gelu" and dtype == np.float64 and attributes:
        common["skip"] = "i"  # its constants are float32
    if op in ORACLES:
        return formula([x], lambda x: ORACLES[op](x, **attributes), **common)
    return Case([x], **common)


@cases("Gelu", "QuickGelu", domain="com.microsoft")
def contrib_gelu(rng, dtype, i, op):
    x = draw(rng, dtype, SHAPES[i], *tail(op, i))
    if op == "Gelu":
        return formula([x], gelu)
    alpha = float(np.float32(1.702 if i % 2 else 0.5))
    return formula([x], lambda x: x * sigmoid(alpha * x), attributes={} if i % 2 else {"alpha": 0.5})


@cases("Clip")
def clip(rng, dtype, i):
    bounds = [np.array(b, dtype) if b is not None else None for b in [(1, 3), (None, 2), (1, None), (None, None)][i % 4]]

    def clipped(x, low=None, high=None):
        x = x if low is None else np.maximum(x, low)
        return x if high is None else np.minimum(x, high)

    x = draw(rng, dtype, SHAPES[i])
    return formula([x, *bounds], lambda *_: clipped(*(None if a is None else widen(a) for a in (x, *bounds))))


COMPARISONS = ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"]
LOGIC = ["And", "Or", "Xor"]


@cases("Add", "Sub", "Mul", *COMPARISONS, *LOGIC, "BitwiseAnd", "BitwiseOr", "BitwiseXor")
def binary(rng, dtype, i, op):
    a, b = (draw(rng, dtype, shape) for shape in PAIRS[i])
    if op in COMPARISONS and is_float(dtype) and a.ndim == b.ndim == 2 and a.size:
        b[0, :] = a[0, 0]
        a[-1, 0] = np.nan
    return Case([a, b], outputs=(np.bool_,) if op in COMPARISONS + LOGIC else (None,))


@cases("Div")
def div(rng, dtype, i):
    a, b = draw(rng, dtype, PAIRS[i][0], -90, 90), draw(rng, dtype, PAIRS[i][1], 1, 9)
    if not is_float(dtype):  # truncates
        return formula([a, b], lambda a, b: np.trunc(a.astype(np.float64) / b).astype(a.dtype))
    return Case([a, b])


@cases("Mod")
def mod(rng, dtype, i):
    a, b = draw(rng, dtype, PAIRS[i][0], -90, 90), draw(rng, dtype, PAIRS[i][1], 1, 9)
    fmod = 1 if is_float(dtype) else i % 2
    return formula([a, b], np.fmod if fmod else np.mod, attributes={"fmod": fmod})


@cases(
    "Pow",
    types={
        f"{a}, exponent {b}" if a != b else a: (ta, tb)
        for a, ta in schema_types("Pow").items()
        for b, tb in schema_types("Pow", "T1").items()
        if a == b or b in ("float32", "int64")
    },
)
def power(rng, dtypes, i):
    a, b = (draw(rng, dtype, shape, 1, 4) for dtype, shape in zip(dtypes, PAIRS[i], strict=True))
    if not is_float(dtypes[0]) and is_float(dtypes[1]):
        b = np.round(b.astype(np.float32)).astype(dtypes[1])
    if i % 4 == 3:
        b = np.full_like(b, 2)
    return formula([a, b], lambda a, b: np.power(a.astype(np.float64), b).astype(a.dtype))


@cases("BitShift")
def bit_shift(rng, dtype, i):
    a, b = draw(rng, dtype, PAIRS[i][0], 0, 100), draw(rng, dtype, PAIRS[i][1], 0, 7)
    return Case([a, b], {"direction": ("LEFT", "RIGHT")[i % 2]})


@cases("Max", "Min", "Sum")
def variadic(rng, dtype, i, op):
    shapes = [*PAIRS[i], (1,)][: 1 + i % 3] if i else PAIRS[0]
    arrays = [draw(rng, dtype, shape) for shape in shapes]
    if is_float(dtype) and op != "Sum" and arrays[0].size > 100:
        arrays[0].reshape(-1)[:2] = np.nan, np.inf
    functions = {"Max": np.maximum, "Min": np.minimum, "Sum": np.add}

    def joined(*xs):
        y = xs[0]
        for x in xs[1:]:
            y = functions[op](y, x)
        return y

    return formula(arrays, joined)


@cases("Where", parameter="T")
def where(rng, dtype, i):
    a, b = (draw(rng, dtype, shape) for shape in PAIRS[i])
    return Case([rng.random(PAIRS[i][i % 2]) < 0.5, a, b], outputs=(dtype,))


CAST_TO = ["float32", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool", "float64", "uint16", "float8_e4m3fn", "float8_e5m2"]


@cases("Cast", "CastLike", count=len(CAST_TO))
def cast(rng, dtype, i, op):
    to = np.dtype(getattr(ml_dtypes, CAST_TO[i], CAST_TO[i]))
    x = draw(rng, dtype, SHAPES[i % len(SHAPES)], 0 if to.kind == "u" else -7, 7)
    constant = (0,) if dtype in (ml_dtypes.int4, ml_dtypes.uint4) else ()

    def convert(x, *_):
        y = x != 0 if to == np.bool_ else (x.astype(np.float32) if to.kind not in "iub" and to != np.float64 else x).astype(to)
        return y.astype(np.float64) if to.kind not in "iub" else y

    if op == "CastLike":
        return formula([x, np.zeros(2, to)], convert, outputs=(to,), constant=constant, source="exact")
    from onnx import helper

    return formula(
        [x], convert, attributes={"to": int(helper.np_dtype_to_tensor_dtype(to))}, outputs=(to,), constant=constant, source="exact"
    )
