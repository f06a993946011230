# SPDX-License-Identifier: Apache-2.0
"""Cast between all types, against onnxruntime where it has them and ml_dtypes elsewhere."""

import ml_dtypes
import numpy as np
import pytest

from helpers import BF16, check_node, failure, onnx_type, run

NUMBERS = [np.float32, np.float16, np.float64, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64, bool]
FLOATS8 = {17: ml_dtypes.float8_e4m3fn, 18: ml_dtypes.float8_e4m3fnuz, 19: ml_dtypes.float8_e5m2, 20: ml_dtypes.float8_e5m2fnuz}
EDGES = np.array(
    [
        0,
        -0.0,
        1.5,
        2.5,
        0.3,
        -0.3,
        300,
        -300,
        448,
        464,
        465,
        480,
        57344,
        61439,
        61440,
        1e9,
        -5e9,
        1e-3,
        2**-6,
        2**-7,
        2**-9,
        2**-10,
        1.5 * 2**-9,
    ]
    + [2**-16, 2**-17, 1.5 * 2**-16, 3e38, np.nan, np.inf, -np.inf],
    np.float32,
)


@pytest.mark.parametrize("source", NUMBERS)
@pytest.mark.parametrize("target", NUMBERS)
def test_numbers(source, target):
    x = np.array([0, 1, 2, 3, 100, 127], np.float32)
    if np.dtype(source).kind in "fi" and np.dtype(target).kind != "u":
        x = np.concatenate([x, -x])
    if np.dtype(source).kind == "f" and np.dtype(target).kind == "f":
        x = np.concatenate([x, [0.1, 1e-8, 65519, 65520, 1e30, np.inf, -np.inf, np.nan]])
    with np.errstate(over="ignore"):
        x = x.astype(source)
    check_node("Cast", [x], {"to": onnx_type(target)}, output_types=(target,))


@pytest.mark.parametrize("target", [np.int8, np.uint8, np.int16, np.int32])
def test_integers_keep_low_bits(target):
    x = np.arange(-70000, 70000, 777)
    np.testing.assert_array_equal(run("Cast", [x], {"to": onnx_type(target)}, output_types=(target,))[0], x.astype(target))


def test_floats_beyond_the_integers_saturate():
    x = np.array([1e30, -1e30, np.nan, np.inf], np.float32)
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    assert run("Cast", [x], {"to": 7}, output_types=(np.int64,))[0].tolist() == [high, low, 0, high]
    assert run("Cast", [x], {"to": 12}, output_types=(np.uint32,))[0].tolist() == [2**32 - 1, 0, 0, 2**32 - 1]


def test_bfloat16():
    x = np.concatenate([EDGES, np.random.default_rng(0).standard_normal(1000).astype(np.float32)])
    (y,) = run("Cast", [x], {"to": 16}, output_types=(BF16,))
    np.testing.assert_array_equal(y.view(np.uint16)[~np.isnan(x)], x.astype(BF16).view(np.uint16)[~np.isnan(x)])
    (back,) = run("Cast", [y], {"to": 1}, output_types=(np.float32,))
    np.testing.assert_array_equal(back, y.astype(np.float32))
    for target in (np.float16, np.int64, bool):
        z = np.array([0, 1, 2.5, 100], BF16)
        np.testing.assert_array_equal(
            run("Cast", [z], {"to": onnx_type(target)}, output_types=(target,))[0], z.astype(np.float32).astype(target)
        )


@pytest.mark.parametrize("to", FLOATS8)
@pytest.mark.parametrize("source", [np.float32, np.float16])
def test_float8_without_saturation(to, source):
    with np.errstate(over="ignore"):
        x = np.concatenate([EDGES, np.random.default_rng(0).standard_normal(500).astype(np.float32)]).astype(source)
    (y,) = run("Cast", [x], {"to": to, "saturate": 0}, output_types=(FLOATS8[to],))
    want = x.astype(np.float32).astype(FLOATS8[to])
    np.testing.assert_array_equal(y.astype(np.float32), want.astype(np.float32))
    np.testing.assert_array_equal(np.signbit(y.astype(np.float32)), np.signbit(want.astype(np.float32)))


@pytest.mark.parametrize("to", FLOATS8)
def test_float8_saturates(to):
    dtype = FLOATS8[to]
    largest = float(ml_dtypes.finfo(dtype).max)
    (y,) = run("Cast", [EDGES], {"to": to}, output_types=(dtype,))
    want = np.where(np.isnan(EDGES), EDGES, np.clip(EDGES, -largest, largest)).astype(dtype)
    np.testing.assert_array_equal(y.astype(np.float32), want.astype(np.float32))


@pytest.mark.parametrize("to", FLOATS8)
def test_float8_reads_every_code(to):
    codes = np.arange(256).astype(np.uint8).view(FLOATS8[to])
    (y,) = run("Cast", [codes], {"to": 1}, output_types=(np.float32,))
    np.testing.assert_array_equal(y, codes.astype(np.float32))


def test_e8m0():
    codes = np.arange(256).astype(np.uint8).view(ml_dtypes.float8_e8m0fnu)
    (y,) = run("Cast", [codes], {"to": 1}, opset=24, output_types=(np.float32,))
    np.testing.assert_array_equal(y, codes.astype(np.float32))
    (up,) = run("Cast", [np.array([1, 1.01, 2, 3, 0.75], np.float32)], {"to": 24}, opset=24, output_types=(ml_dtypes.float8_e8m0fnu,))
    assert up.astype(np.float32).tolist() == [1, 2, 2, 4, 1]


@pytest.mark.parametrize(("dtype", "to"), [(ml_dtypes.int4, 22), (ml_dtypes.uint4, 21)])
def test_four_bit_integers(dtype, to):
    x = np.arange(16).astype(np.int8).astype(dtype)[:15].reshape(3, 5)
    check_node("Cast", [x], {"to": 1}, constant=(0,), output_types=(np.float32,))
    check_node("Cast", [x], {"to": 3}, constant=(0,), output_types=(np.int8,))


def test_large_casts_are_shared_among_threads():
    x = np.random.default_rng(0).standard_normal(300_001).astype(np.float32)
    np.testing.assert_array_equal(run("Cast", [x], {"to": 10}, output_types=(np.float16,))[0], x.astype(np.float16))
    np.testing.assert_array_equal(run("Cast", [x], {"to": 7}, output_types=(np.int64,))[0], x.astype(np.int64))


def test_cast_like_and_failure():
    check_node("CastLike", [np.array([1.5, -2], np.float32), np.array([1])], output_types=(np.int64,))
    assert "string" in failure("Cast", [np.array([1.0], np.float32)], {"to": 8}, output_types=(8,))
