# SPDX-License-Identifier: Apache-2.0
"""com.microsoft::GatherBlockQuantized against the reference and onnxruntime."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hotset
from ops.weight_node import NUMPY, run_node, run_onnxruntime
from reference import weights as reference

E4M3 = ml_dtypes.float8_e4m3fn
ROUNDING = {"f32": 1e-7, "f16": 6e-4, "bf16": 5e-3}


def packed_node(rng, dt="f32", rows=9, k=96, bits=4, block=32, asymmetric=False, indices=(2, 3), index_dtype=np.int64):
    """uint8 data: (inputs, attributes, expected)."""
    blocks = -(-k // block)
    codes = rng.integers(0, 1 << bits, (rows, k))
    zeros = rng.integers(0, 1 << bits, (rows, blocks))
    scales = rng.standard_normal((rows, blocks)).astype(NUMPY[dt])
    index = rng.integers(-rows, rows, indices).astype(index_dtype)
    inputs = [reference.pack_codes(codes, bits), index, scales, reference.pack_codes(zeros, bits) if asymmetric else None]
    y = reference.gather_block_quantized(codes, index, scales, block, zeros if asymmetric else 1 << (bits - 1))
    return inputs, {"bits": bits, "block_size": block, "gather_axis": 0, "quantize_axis": 1}, y


def run(inputs, attributes, **arguments):
    return run_node("GatherBlockQuantized", inputs, attributes, fed=(1,), output_dtype=inputs[2].dtype, **arguments)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    dt=st.sampled_from(["f32", "f16", "bf16"]),
    rows=st.integers(1, 20),
    k8=st.integers(1, 80),
    bits=st.sampled_from([2, 4, 8]),
    block=st.sampled_from([16, 32, 128]),
    asymmetric=st.booleans(),
    indices=st.sampled_from([(), (0,), (1,), (2, 3), (150,)]),
    index_dtype=st.sampled_from([np.int32, np.int64]),
)
def test_packed_bytes(seed, dt, rows, k8, bits, block, asymmetric, indices, index_dtype):
    inputs, attributes, y = packed_node(
        np.random.default_rng(seed), dt, rows, k8 * 8 // bits, bits, block, asymmetric, indices, index_dtype
    )
    got = run(inputs, attributes)
    assert got.shape == y.shape and got.dtype == NUMPY[dt]
    np.testing.assert_allclose(got.astype(np.float64), y, rtol=ROUNDING[dt], atol=1e-30)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from([ml_dtypes.int4, ml_dtypes.uint4]),
    shape=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    axes=st.tuples(st.integers(-4, 3), st.integers(-4, 3)),
    asymmetric=st.booleans(),
    indices=st.sampled_from([(), (3,), (2, 2)]),
)
def test_4_bit_types_on_any_axis(seed, dtype, shape, axes, asymmetric, indices):
    rng = np.random.default_rng(seed)
    gather, quantize = (a % len(shape) for a in axes)
    low, high = (-8, 8) if dtype == ml_dtypes.int4 else (0, 16)
    codes = rng.integers(low, high, shape)
    scale_shape = list(shape)
    scale_shape[quantize] = -(-shape[quantize] // 16)
    scales = rng.standard_normal(scale_shape).astype(np.float32)
    zeros = rng.integers(low, high, scale_shape)
    index = rng.integers(-shape[gather], shape[gather], indices)
    inputs = [codes.astype(dtype), index, scales, zeros.astype(dtype) if asymmetric else None]
    attributes = {"block_size": 16, "gather_axis": gather, "quantize_axis": quantize - len(shape)}
    y = reference.gather_block_quantized(codes, index, scales, 16, zeros if asymmetric else 0, gather, quantize)
    got = run(inputs, attributes)
    assert got.shape == y.shape
    np.testing.assert_allclose(got, y, rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("dt", ["f32", "f16"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("asymmetric", [False, True])
def test_onnxruntime_agrees(dt, bits, asymmetric):
    inputs, attributes, y = packed_node(np.random.default_rng(1), dt, bits=bits, asymmetric=asymmetric)
    theirs = run_onnxruntime("GatherBlockQuantized", inputs, attributes, (1,), NUMPY[dt])
    got = run(inputs, attributes)
    np.testing.assert_allclose(got, y, rtol=ROUNDING[dt], atol=1e-30)
    np.testing.assert_allclose(got.astype(np.float32), theirs.astype(np.float32), rtol=2 * ROUNDING[dt], atol=1e-30)


FLOATS = {
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e5m2": ml_dtypes.float8_e5m2,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e2m1": ml_dtypes.float4_e2m1fn,
}


@pytest.mark.parametrize("scale", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("kind", FLOATS)
def test_every_code_of_the_float_types(kind, scale):
    """All codes, scales for each block, for a row, for a column of blocks, and one for all; also as onnxruntime computes them."""
    codes = np.arange(256).reshape(4, 64) % (16 if kind == "e2m1" else 256)
    data = codes.astype(np.uint8).view(FLOATS[kind])
    rng = np.random.default_rng(4)
    index = np.array([[3, -4], [1, 9]])
    rows = data.astype(np.float64)[index % 4]
    rows[1, 1] = 0  # index 9 is outside
    for shape, block in (((4, 4), 16), ((4, 1), 0), ((1, 2), 32), ((1, 1), 0), ((4, 1), 64)):
        scales = rng.uniform(0.5, 2, shape).astype(NUMPY[scale])
        factors = np.repeat(np.broadcast_to(scales, (4, shape[1])), block or 64, 1).astype(np.float64)
        y = rows * factors[index % 4]
        attributes = {"block_size": block, "gather_axis": 0, "quantize_axis": 1}
        got = run([data, index, scales], attributes)
        assert got.dtype == NUMPY[scale]
        largest = float(ml_dtypes.finfo(NUMPY[scale]).max)
        with np.errstate(over="ignore"):
            y = np.where(np.abs(y) > largest, np.copysign(np.inf, y), y)
        np.testing.assert_allclose(got.astype(np.float64), y, rtol=ROUNDING[scale], atol=6e-8 if scale == "f16" else 1e-30)
        if scale != "bf16":
            theirs = run_onnxruntime("GatherBlockQuantized", [data, index, scales], attributes, (1,), NUMPY[scale])
            np.testing.assert_allclose(got.astype(np.float32), theirs.astype(np.float32), rtol=2 * ROUNDING[scale], atol=1.2e-7)


@pytest.mark.parametrize("gather", [0, 1, 2])
@pytest.mark.parametrize("quantize", [0, 1, 2])
def test_scales_of_floats_broadcast_on_any_axis(gather, quantize):
    rng = np.random.default_rng(5)
    shape = (3, 20, 18)
    data = rng.standard_normal(shape).astype(ml_dtypes.float8_e4m3fn)
    index = rng.integers(0, shape[gather], 5)
    for ones in range(8):
        blocks = [-(-n // 16) if i == quantize else n for i, n in enumerate(shape)]
        narrow = [1 if ones >> i & 1 and i != quantize else n for i, n in enumerate(blocks)]
        scales = rng.uniform(0.5, 2, narrow).astype(np.float32)
        wide = np.repeat(np.broadcast_to(scales, blocks), 16, quantize)
        wide = np.take(wide, range(shape[quantize]), quantize)
        got = run([data, index, scales], {"block_size": 16, "gather_axis": gather, "quantize_axis": quantize})
        np.testing.assert_allclose(got, np.take(data.astype(np.float32) * wide, index, gather), rtol=1e-6)


def test_index_outside_gives_zeros():
    inputs, attributes, _ = packed_node(np.random.default_rng(2), rows=4)
    inputs[1] = np.array([0, 4, -5, -1, 2**40], np.int64)
    got = run(inputs, attributes)
    assert not got[[1, 2, 4]].any()
    inputs[1] = np.array([0, 3], np.int64)
    assert np.array_equal(got[[0, 3]], run(inputs, attributes))


@pytest.mark.parametrize(
    ("change", "array", "text"),
    [
        ({"bits": 3}, {}, "bits is 3"),
        ({"block_size": 8}, {}, "block_size is 8"),
        ({"block_size": 0}, {}, "block_size is 0, which goes with data of a float type, not uint8"),
        ({}, {0: np.zeros((9, 96), np.int8)}, r"data \(input 0\) is int8, expected uint8"),
        ({}, {0: np.zeros((9, 96), E4M3), 3: np.zeros((9, 3), E4M3)}, r"zero_points \(input 3\) do not go with data of type float8e4m3fn"),
        ({}, {0: np.zeros((9, 96), E4M3), 2: np.ones((1, 1), np.float32)}, r"scales \(input 2\) have shape \[1,1\], expected \[9,3\]"),
        ({"quantize_axis": 0, "gather_axis": 1}, {}, "packed along its last axis"),
        ({"gather_axis": 2}, {}, "gather_axis is 2"),
        ({}, {2: np.ones((9, 4), np.float32)}, r"scales \(input 2\) have shape \[9,4\], expected \[9,3\]"),
        ({}, {3: np.ones((9, 3), np.uint8)}, r"zero_points \(input 3\) have shape \[9,3\], expected \[9,2\]"),
    ],
)
def test_rejected(change, array, text):
    inputs, attributes, _ = packed_node(np.random.default_rng(3))
    for i, a in array.items():
        inputs[i] = a
    with pytest.raises(hotset.InvalidModel, match=text):
        run(inputs, {**attributes, **change})
