# SPDX-License-Identifier: Apache-2.0
"""Normalisation, alone and with a residual sum."""

import numpy as np
import pytest

from helpers import BF16, assert_close, check_node, check_widened, failure, run

TYPES = [np.float32, np.float16, BF16]
SUM = (None, "", "", None)


def numbers(shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def normalize(total, gamma, beta, epsilon, center):
    """In float64, not rounded."""
    total = total - total.mean(-1, keepdims=True) if center else total
    y = total / np.sqrt((total * total).mean(-1, keepdims=True) + epsilon) * gamma.astype(np.float64)
    return y if beta is None else y + beta.astype(np.float64)


@pytest.mark.parametrize("width", [1, 7, 64, 100, 256, 2880])
@pytest.mark.parametrize("rows", [1, 3])
def test_simplified(width, rows):
    for dtype in TYPES:
        x, gamma = numbers((rows, width), dtype=dtype), numbers(width, 1, dtype)
        want = normalize(x.astype(np.float64), gamma, None, 1e-6, False).astype(dtype)
        assert_close(run("SimplifiedLayerNormalization", [x, gamma], {"epsilon": 1e-6, "axis": -1, "stash_type": 1})[0], want)
        assert_close(run("RMSNormalization", [x, gamma], {"epsilon": 1e-6}, opset=23)[0], want)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 256), (2, 5, 64), (3, 33), (700, 100)])
def test_skip(dtype, center, with_bias, shape):
    width = shape[-1]
    x, skip, gamma, beta, bias = (numbers(s, i, dtype) for i, s in enumerate([shape, shape, width, width, width]))
    total = x.astype(np.float64) + skip.astype(np.float64) + (bias.astype(np.float64) if with_bias else 0)
    want = normalize(total, gamma, beta if center else None, 1e-5, center).astype(dtype)
    inputs = [x, skip, gamma] + ([beta] if center else []) + ([bias] if with_bias else [])
    op = "SkipLayerNormalization" if center else "SkipSimplifiedLayerNormalization"
    y, summed = run(op, inputs, {"epsilon": 1e-5}, domain="com.microsoft", output_types=SUM)
    assert_close(y, want, 2)
    assert_close(summed, total.astype(dtype))
    (alone,) = run(op, inputs, {"epsilon": 1e-5}, domain="com.microsoft")
    np.testing.assert_array_equal(alone.view(np.uint8), y.view(np.uint8))


def test_norm_uses_the_unrounded_sum():
    x, skip = np.full((1, 64), 2048, np.float16), np.full((1, 64), 1, np.float16)
    x[0, ::2] = -1024
    y, summed = run(
        "SkipSimplifiedLayerNormalization", [x, skip, np.ones(64, np.float16)], {"epsilon": 1e-5}, domain="com.microsoft", output_types=SUM
    )
    total = x.astype(np.float64) + 1
    assert_close(y, normalize(total, np.ones(64), None, 1e-5, False).astype(np.float16))
    np.testing.assert_array_equal(summed, total.astype(np.float16))


@pytest.mark.parametrize("op", ["SkipSimplifiedLayerNormalization", "SkipLayerNormalization"])
def test_against_onnxruntime(op):
    x, gamma, beta = numbers((2, 3, 96)), numbers(96, 1), numbers(96, 2)
    inputs = [x, x[::-1], gamma] + ([beta] if op == "SkipLayerNormalization" else [])
    check_node(op, inputs, {"epsilon": 1e-5}, domain="com.microsoft", output_types=SUM, factor=2)
    check_node(op, [x, x[:1], *inputs[2:]], {"epsilon": 1e-5}, domain="com.microsoft", factor=2)
    check_node(op, [x, x[0], *inputs[2:]], {"epsilon": 1e-5}, domain="com.microsoft", factor=2)


def test_mixed_types():
    """As DirectML exports write them; onnxruntime refuses these."""
    x, skip, gamma = numbers((3, 100), 0, np.float16), numbers((3, 100), 1), numbers(100, 2)
    total = x.astype(np.float64) + skip.astype(np.float64)
    y, summed = run("SkipSimplifiedLayerNormalization", [x, skip, gamma], {"epsilon": 1e-5}, domain="com.microsoft", output_types=SUM)
    assert_close(y, normalize(total, gamma, None, 1e-5, False).astype(np.float16))
    assert_close(summed, total.astype(np.float16))
    (y,) = run("SimplifiedLayerNormalization", [skip, gamma.astype(np.float16)], {"epsilon": 1e-5})
    assert_close(y, normalize(skip.astype(np.float64), gamma.astype(np.float16), None, 1e-5, False).astype(np.float32))


@pytest.mark.parametrize("axis", [-1, 1, 2])
def test_layer_normalization(axis):
    x = numbers((4, 5, 60))
    scale, bias = numbers(x.shape[axis:], 1), numbers(x.shape[axis:], 2)
    check_node("LayerNormalization", [x, scale, bias], {"axis": axis}, output_types=(None, np.float32, np.float32), factor=4)
    check_node("LayerNormalization", [x, scale], {"axis": axis, "epsilon": 1e-3}, factor=4)
    for dtype in (np.float16, BF16):
        check_widened("LayerNormalization", [a.astype(dtype) for a in (x, scale, bias)], {"axis": axis}, factor=2)


def test_failures():
    x = numbers((2, 8))
    assert "gamma of shape [7]" in failure("SimplifiedLayerNormalization", [x, numbers(7)])
    assert "skip of shape [3,8]" in failure("SkipSimplifiedLayerNormalization", [x, numbers((3, 8)), numbers(8)], domain="com.microsoft")
    assert "int64" in failure("SimplifiedLayerNormalization", [np.zeros((2, 8), np.int64), numbers(8)])
