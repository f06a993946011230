# SPDX-License-Identifier: Apache-2.0
"""com.microsoft::GatherBlockQuantized against the reference and onnxruntime."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hotset
from ops.weight_node import NUMPY, run_node, run_onnxruntime
from reference import moe as reference

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
