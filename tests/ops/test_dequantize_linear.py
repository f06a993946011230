# SPDX-License-Identifier: Apache-2.0
"""DequantizeLinear per tensor, along an axis and in blocks."""

import ml_dtypes
import numpy as np
import pytest

from helpers import BF16, assert_close, check_node, failure, run


def codes(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    if dtype in (ml_dtypes.int4, ml_dtypes.uint4):
        low = -8 if dtype == ml_dtypes.int4 else 0
        return rng.integers(low, low + 16, shape).astype(np.int8).astype(dtype)
    return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, ml_dtypes.int4, ml_dtypes.uint4])
@pytest.mark.parametrize("with_zero", [False, True])
@pytest.mark.parametrize(("axis", "block", "scale_shape"), [(0, 0, ()), (0, 0, (5,)), (1, 0, (7,)), (0, 2, (3, 7)), (1, 4, (5, 2))])
def test_forms(dtype, with_zero, axis, block, scale_shape):
    x, scale = codes((5, 7), dtype), np.random.default_rng(1).standard_normal(scale_shape).astype(np.float32)
    inputs = [x, scale] + ([codes(scale_shape, dtype, 2)] if with_zero else [])
    attributes = {"axis": axis} | ({"block_size": block} if block else {})
    check_node("DequantizeLinear", inputs, attributes, constant=(0, 1, 2), output_types=(np.float32,))
    narrow = [x, scale.astype(np.float16), *inputs[2:]]
    check_node("DequantizeLinear", narrow, attributes, constant=(0, 1, 2), output_types=(np.float16,))


def test_large_blocks_and_bfloat16():
    x, scale = codes((256, 1000), np.int8), np.random.default_rng(1).random((8, 1000)).astype(np.float32)
    want = x.astype(np.float32) * np.repeat(scale, 32, 0)
    assert_close(run("DequantizeLinear", [x, scale], {"axis": 0, "block_size": 32}, output_types=(np.float32,))[0], want)
    (y,) = run("DequantizeLinear", [x, scale.astype(BF16)], {"axis": 0, "block_size": 32}, output_types=(BF16,))
    assert_close(y, (x.astype(np.float32) * np.repeat(scale.astype(BF16).astype(np.float32), 32, 0)).astype(BF16))


def test_int32():
    check_node("DequantizeLinear", [np.arange(-5, 5, dtype=np.int32), np.float32(0.5)], output_types=(np.float32,))


def test_failures():
    x = codes((5, 7), np.int8)
    assert "scale of shape [4]" in failure("DequantizeLinear", [x, np.ones(4, np.float32)], output_types=(np.float32,))
    assert "zero point" in failure("DequantizeLinear", [x, np.float32(1), np.uint8(1)], output_types=(np.float32,))
