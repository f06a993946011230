# SPDX-License-Identifier: Apache-2.0
"""Cases of sums over an axis: reductions, softmax, norms, matrix products; and of DequantizeLinear."""

import ml_dtypes
import numpy as np

from .registry import FLOATS, cases, draw, formula, is_float

SHAPES = [
    ((3, 5), (1,)),
    ((2, 0, 3), (0,)),
    ((4, 7, 65), (0, 2)),
    ((33, 17), None),
    ((2, 3, 4, 5), (1, -1)),
    ((1031,), (0,)),
    ((7, 1), (1,)),
    ((2, 900), (-1,)),
]
EMPTY = {"ReduceMax", "ReduceMin", "ReduceMean"}  # no value for nothing


@cases("ReduceSum", "ReduceMean", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSum")
def reduce(rng, dtype, i, op):
    shape, axes = SHAPES[i]
    if op in EMPTY and 0 in shape:
        axes = (2,)
    if op == "ReduceProd" and not is_float(dtype):
        x = draw(rng, dtype, shape, 1, 3) if i < 2 else np.ones(shape, dtype)
    elif op == "ReduceProd":
        x = draw(rng, dtype, shape, 0.9, 1.1)
    else:
        x = draw(rng, dtype, shape, (0.5 if is_float(dtype) else 1) if op == "ReduceLogSum" else -4, 4)
    keep = {"keepdims": int(i % 2)}
    functions = {
        "ReduceSum": np.sum, "ReduceProd": np.prod, "ReduceMax": np.max, "ReduceMin": np.min, "ReduceMean": np.mean,
        "ReduceSumSquare": lambda x, **k: np.sum(x * x, **k), "ReduceL1": lambda x, **k: np.sum(np.abs(x), **k),
        "ReduceL2": lambda x, **k: np.sqrt(np.sum(x * x, **k)), "ReduceLogSum": lambda x, **k: np.log(np.sum(x, **k)),
    }  # fmt: skip

    def oracle(x, *_):
        if is_float(dtype) or x.dtype == bool:
            return functions[op](x, axis=axes, keepdims=bool(i % 2))
        exact = (
            functions[op](x.astype(object), axis=axes, keepdims=bool(i % 2))
            if op in ("ReduceSum", "ReduceSumSquare", "ReduceL1")
            else functions[op](x, axis=axes, keepdims=bool(i % 2))
        )
        return np.trunc(exact.astype(np.float64)).astype(x.dtype) if op not in ("ReduceMax", "ReduceMin") else exact

    return formula([x] + ([] if axes is None else [np.array(axes, np.int64)]), oracle, attributes=keep)


@cases("Softmax", "LogSoftmax")
def softmax(rng, dtype, i, op):
    shape = SHAPES[i][0]
    axis = int(rng.integers(-len(shape), len(shape)))
    x = draw(rng, dtype, shape, -20, 20)
    if i == 4:
        x[0, 0, 0, 0] = -np.inf

    def oracle(x):
        if not x.size:
            return x
        z = x - x.max(axis, keepdims=True)
        return np.exp(z) / np.exp(z).sum(axis, keepdims=True) if op == "Softmax" else z - np.log(np.exp(z).sum(axis, keepdims=True))

    return formula([x], oracle, attributes={"axis": axis})


@cases("LpNormalization")
def lp_normalization(rng, dtype, i):
    shape = SHAPES[i][0]
    axis, p = int(rng.integers(0, len(shape))), 1 + i % 2
    x = draw(rng, dtype, shape)
    if i == 2:
        x[:, 0] = 0

    def oracle(x):
        norm = np.abs(x).sum(axis, keepdims=True) if p == 1 else np.sqrt((x * x).sum(axis, keepdims=True))
        return np.divide(x, norm, out=np.zeros_like(x), where=norm != 0)

    return formula([x], oracle, attributes={"axis": axis, "p": p}, opset=22 if i % 3 else 21)


def normalize(x, axes, epsilon, center):
    mean = x.mean(axes, keepdims=True) if center and x.size else np.zeros((1,) * x.ndim)
    inverse = 1 / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + epsilon)
    return (x - mean) * inverse, mean, inverse


NORM_SHAPES = [(3, 5), (0, 7), (4, 3, 65), (33, 100), (2, 3, 256), (1, 1031), (700, 12), (1, 1)]


@cases("LayerNormalization", "RMSNormalization")
def norm(rng, dtype, i, op):
    shape = NORM_SHAPES[i]
    axis = -1 if i % 2 or len(shape) < 3 else 1
    axes = tuple(range(axis % len(shape), len(shape)))
    center, epsilon = op == "LayerNormalization", float(np.float32([1e-5, 1e-3][i % 2]))
    inputs = [draw(rng, dtype, shape), draw(rng, dtype, shape[axes[0] :])] + (
        [draw(rng, dtype, shape[axes[0] :])] if center and i % 3 else []
    )
    return formula(
        inputs,
        lambda x, g, b=0: normalize(x, axes, epsilon, center)[0] * g + b,
        attributes={"axis": axis, "epsilon": epsilon},
        opset=21 if center else 23,
    )


def simplified(rng, dtype, i):
    shape, epsilon = NORM_SHAPES[i], float(np.float32([1e-6, 1e-3][i % 2]))
    return formula(
        [draw(rng, dtype, shape), draw(rng, dtype, shape[-1:])],
        lambda x, g: normalize(x, -1, epsilon, False)[0] * g,
        attributes={"axis": -1, "epsilon": epsilon},
    )


cases("SimplifiedLayerNormalization", types=FLOATS)(simplified)


cases("SimplifiedLayerNormalization", domain="com.microsoft")(simplified)


@cases("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain="com.microsoft")
def skip_norm(rng, dtype, i, op):
    center = op == "SkipLayerNormalization"
    shape = [(1, 3, 5), (2, 0, 7), (4, 3, 65), (1, 33, 100), (2, 3, 256), (1, 1, 1031), (7, 100, 12), (3, 64)][i]
    width, epsilon = shape[-1:], float(np.float32([1e-12, 1e-5][i % 2]))
    inputs = [draw(rng, dtype, shape), draw(rng, dtype, shape), draw(rng, dtype, width)]
    inputs += ([draw(rng, dtype, width) if i % 4 else None] if center else []) + ([draw(rng, dtype, width)] if i % 3 == 0 else [])

    def oracle(x, skip, gamma, *rest):
        beta, bias = (rest[0] if rest and center else None), (rest[-1] if len(rest) > (1 if center else 0) else None)
        total = x + skip + (0 if bias is None else bias)
        return [normalize(total, -1, epsilon, center)[0] * gamma + (0 if beta is None else beta), total]

    return formula(inputs, oracle, attributes={"epsilon": epsilon}, outputs=(None, "", "", None))


PRODUCTS = [
    ((3, 5), (5, 7)),
    ((0, 5), (5, 7)),
    ((4,), (4,)),
    ((2, 1, 33, 17), (3, 17, 9)),
    ((1, 300), (300, 129)),
    ((3, 0), (0, 4)),
    ((2, 3, 5), (5,)),
    ((70, 65), (65, 70)),
]


@cases("MatMul")
def matmul(rng, dtype, i):
    return formula([draw(rng, dtype, shape) for shape in PRODUCTS[i]], np.matmul, constant=(1,) if i % 2 else ())


@cases("Gemm")
def gemm(rng, dtype, i):
    m, k, n = [(3, 5, 7), (0, 5, 7), (1, 300, 129), (33, 17, 9), (3, 0, 4), (70, 65, 70), (1, 1, 1), (9, 64, 32)][i]
    ta, tb = i % 2, i // 2 % 2
    alpha, beta = ((0.5, 2.0) if is_float(dtype) else (2.0, 3.0)) if i % 3 else (1.0, 1.0)
    inputs = [draw(rng, dtype, (k, m) if ta else (m, k)), draw(rng, dtype, (n, k) if tb else (k, n))]
    if i != 3:
        inputs.append(draw(rng, dtype, [(n,), (m, n), (1, n), (m, 1), (), (1,)][i % 6]))

    def oracle(a, b, c=0):
        y = alpha * ((a.T if ta else a) @ (b.T if tb else b)) + beta * c
        return y if is_float(dtype) else y.astype(a.dtype)

    return formula(inputs, oracle, attributes={"transA": ta, "transB": tb, "alpha": alpha, "beta": beta})


@cases("FusedMatMul", domain="com.microsoft")
def fused_matmul(rng, dtype, i):
    a, b = PRODUCTS[[0, 1, 3, 4, 7, 5, 0, 3][i]]
    ta, tb = i % 2, i // 2 % 2
    a, b = ((*s[:-2], s[-1], s[-2]) if t else s for s, t in ((a, ta), (b, tb)))
    turn = lambda x, t: np.swapaxes(x, -1, -2) if t else x  # noqa: E731
    return formula(
        [draw(rng, dtype, a), draw(rng, dtype, b)],
        lambda a, b: 0.25 * (turn(a, ta) @ turn(b, tb)),
        attributes={"transA": ta, "transB": tb, "alpha": 0.25},
    )


CODES = ["int8", "uint8", "int16", "uint16", "int32", "int4", "uint4", "float8_e4m3fn", "float8_e5m2"]
SCALES = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
QUANTISED = {f"{c}, {s} scales": (np.dtype(getattr(ml_dtypes, c, c)), scale) for c in CODES for s, scale in SCALES.items()}


def dequantize(rng, types, i):
    codes, scale_type = types
    shape, axis, block, scale_shape = [
        ((5, 7), 0, 0, ()), ((5, 7), 1, 0, (7,)), ((6, 7), 0, 2, (3, 7)), ((5, 7), 1, 4, (5, 2)), ((0, 7), 1, 0, (7,)),
        ((33, 130), 0, 0, (33,)),
    ][i]  # fmt: skip
    if codes == np.int32 and block:
        return None
    four = codes in (ml_dtypes.int4, ml_dtypes.uint4)
    low, high = (-8, 8) if codes == ml_dtypes.int4 else (0, 16) if four else (-100, 100)
    scale = draw(rng, scale_type, scale_shape, 0.01, 1)
    zero = codes.kind in "iu" and codes != np.int32 and i % 2 or four and i % 2
    inputs = [draw(rng, codes, shape, low, high), scale] + ([draw(rng, codes, scale_shape, low, high)] if zero else [])

    def oracle(x, s, z=0):
        def spread(a):
            if np.ndim(a) == 0:
                return np.asarray(a, np.float64)
            if block:
                return np.repeat(a, block, axis).astype(np.float64).take(range(shape[axis]), axis)
            return np.asarray(a, np.float64).reshape([-1 if d == axis else 1 for d in range(len(shape))])

        return (x.astype(np.float64) - spread(z)) * spread(s)

    attributes = {"axis": axis} | ({"block_size": block} if block else {})
    return formula(inputs, oracle, attributes=attributes, outputs=(scale_type,), constant=(0, 1, 2), opset=23)


cases("DequantizeLinear", types=QUANTISED, count=6)(dequantize)


@cases("DequantizeLinear", domain="com.microsoft", types={k: v for k, v in QUANTISED.items() if not k.startswith("float8")}, count=6)
def contrib_dequantize(rng, types, i):
    case = dequantize(rng, types, i)
    return None if case is None or "block_size" in case.attributes else case
