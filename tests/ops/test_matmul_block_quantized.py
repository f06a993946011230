# SPDX-License-Identifier: Apache-2.0
"""com.microsoft::MatMulBlockQuantizedFp4Weight and ...Fp8Weight against float64. onnxruntime's CPU provider has no kernel for them."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hotset
from ops.weight_node import NUMPY, relative_error, run_node

FP4, FP8 = "MatMulBlockQuantizedFp4Weight", "MatMulBlockQuantizedFp8Weight"
E4M3, E2M1 = ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn
BOUND = {"f32": 1e-6, "f16": 6e-4, "bf16": 5e-3}  # relative L2


def node(rng, op, dt="f32", m=(3,), n=40, k=64, block=None, bias=False, extra=False):
    """Inputs, attributes, the expected Y and the sizes of its terms. extra: input_scale, or the a_scale that rounds A to E4M3."""
    block = block or (16 if op == FP4 else 128)
    a = rng.standard_normal((*m, k)).astype(NUMPY[dt])
    w = rng.integers(0, 256, (n, k // 2 if op == FP4 else k)).astype(np.uint8)
    shape = (n, -(-k // block))
    if op == FP4:
        codes = np.stack([w & 15, w >> 4], -1).reshape(n, k)
        scales = rng.integers(0x10, 0x38, shape).astype(np.uint8)
        values, block_scales = codes.view(E2M1).astype(np.float64), scales.view(E4M3).astype(np.float64)
        inputs = [a, w, scales, np.float32(0.37), np.float32(3) if extra else None]
        factor = np.float64(np.float32(0.37))
    else:
        w[(w & 127) == 127] = 0x38
        scales = block_scales = rng.uniform(-0.02, 0.02, shape).astype(np.float32)
        values, factor = w.view(E4M3).astype(np.float64), 1.0
        inputs = [a, w.view(E4M3), scales, np.float32(0.01) if extra else None]
    weight = values * np.repeat(block_scales.astype(np.float64), block, 1)[:, :k] * factor
    x = a.astype(np.float64)
    if extra and op == FP8:
        scaled = np.clip(a.astype(np.float32) / np.float32(0.01), -448, 448)
        x = (scaled.astype(E4M3).astype(np.float32) * np.float32(0.01)).astype(np.float64)
    y, size = x @ weight.T, np.abs(x) @ np.abs(weight.T)
    if bias:
        inputs.append(rng.standard_normal(n).astype(NUMPY[dt]))
        y = y + inputs[-1].astype(np.float64)
    while inputs[-1] is None:
        inputs.pop()
    return inputs, {"block_size": block}, y, size


def run(op, inputs, attributes, **arguments):
    return run_node(op, inputs, attributes, fed=(0,), output_dtype=inputs[0].dtype, **arguments)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    op=st.sampled_from([FP4, FP8]),
    dt=st.sampled_from(["f32", "f16", "bf16"]),
    m=st.sampled_from([(0,), (1,), (2, 3), (9,), (40,)]),
    n=st.integers(1, 70),
    half_k=st.integers(1, 150),
    block=st.sampled_from([16, 32, 128, 256]),
    bias=st.booleans(),
    extra=st.booleans(),
    threads=st.integers(1, 3),
)
def test_random(seed, op, dt, m, n, half_k, block, bias, extra, threads):
    inputs, attributes, y, size = node(np.random.default_rng(seed), op, dt, m, n, 2 * half_k, block, bias, extra)
    got = run(op, inputs, attributes, threads=threads)
    assert got.shape == y.shape and got.dtype == NUMPY[dt]
    # Many terms that cancel leave a small sum: rounding is that of the sum, errors of float32 sums go by the terms.
    assert (np.abs(got.astype(np.float64) - y) <= 1e-6 * (size + 1) + 2 * BOUND[dt] * np.abs(y)).all()


@pytest.mark.parametrize("tokens", [1, 4, 33])
@pytest.mark.parametrize("op", [FP4, FP8])
def test_sizes_of_real_layers(op, tokens):
    inputs, attributes, y, _ = node(np.random.default_rng(1), op, m=(tokens,), n=640, k=2880, bias=True)
    assert relative_error(run(op, inputs, attributes), y) < 1e-6
    assert 1e-4 < relative_error(run(op, inputs, attributes, activation="int8"), y) < 2e-2
    assert np.array_equal(run(op, inputs, attributes, activation="float"), run(op, inputs, attributes))


@pytest.mark.parametrize("op", [FP4, FP8])
def test_default_block_size(op):
    inputs, attributes, *_ = node(np.random.default_rng(2), op, k=272)
    assert np.array_equal(run(op, inputs, {}), run(op, inputs, attributes))


def test_bytes_for_small_floats():
    inputs, attributes, *_ = node(np.random.default_rng(3), FP8)
    y = run(FP8, inputs, attributes)
    assert np.array_equal(y, run(FP8, [inputs[0], inputs[1].view(np.uint8), *inputs[2:]], attributes))
    inputs, attributes, *_ = node(np.random.default_rng(3), FP4)
    y = run(FP4, inputs, attributes)
    inputs[2], inputs[3] = inputs[2].view(E4M3), inputs[3].reshape(1)
    assert np.array_equal(y, run(FP4, inputs, attributes))


def test_every_e4m3_rounding_of_activations():
    """Numbers around each E4M3 value and beyond the largest; NaN stays NaN, infinity becomes 448."""
    values = np.arange(256, dtype=np.uint8).view(E4M3).astype(np.float32)
    values = np.sort(values[np.isfinite(values)])
    middles = (values[1:] + values[:-1]) / 2
    x = np.concatenate([values, middles, np.nextafter(middles, 1e9), np.nextafter(middles, -1e9), [500, -500, 1e30, np.inf, -np.inf]])
    x = x.astype(np.float32)
    one = [x[:, None], np.array([[0x38]], np.uint8), np.ones((1, 1), np.float32), np.float32(1)]
    want = np.clip(x, -448, 448).astype(E4M3).astype(np.float32)
    assert np.array_equal(run(FP8, one, {})[:, 0], want)
    assert np.isnan(run(FP8, [np.full((1, 1), np.nan, np.float32), *one[1:]], {})).all()


def test_no_numbers_stay_in_their_column():
    inputs, attributes, *_ = node(np.random.default_rng(4), FP8, n=6)
    weights = inputs[1].view(np.uint8)
    weights[2, 5] = 0xFF
    y = run(FP8, inputs, attributes)
    assert np.isnan(y[:, 2]).all() and np.isfinite(np.delete(y, 2, 1)).all()
    inputs, attributes, *_ = node(np.random.default_rng(4), FP4, n=6)
    inputs[2][3, 1] = 0x7F
    y = run(FP4, inputs, attributes)
    assert np.isnan(y[:, 3]).all() and np.isfinite(np.delete(y, 3, 1)).all()


def test_empty_sizes():
    bias = np.arange(5, dtype=np.float32)
    y = run(FP8, [np.zeros((2, 0), np.float32), np.zeros((5, 0), np.uint8), np.zeros((5, 0), np.float32), None, bias], {})
    assert np.array_equal(y, np.broadcast_to(bias, (2, 5)))
    scale = np.float32(1)
    y = run(FP4, [np.zeros((2, 0), np.float32), np.zeros((5, 0), np.uint8), np.zeros((5, 0), np.uint8), scale, None, bias], {})
    assert np.array_equal(y, np.broadcast_to(bias, (2, 5)))
    assert run(FP8, [np.zeros((2, 3), np.float32), np.zeros((0, 3), np.uint8), np.zeros((0, 1), np.float32)], {}).shape == (2, 0)


REJECTED = {
    "block": (FP4, {"block_size": 24}, {}, "block_size is 24, expected a power of two"),
    "block too small": (FP8, {"block_size": 8}, {}, "block_size is 8"),
    "type of B": (FP4, {}, {1: np.zeros((40, 32), np.int8)}, r"B \(input 1\) is int8, expected uint8"),
    "rank of B": (FP8, {}, {1: np.zeros((40, 1, 64), np.uint8)}, r"B \(input 1\) has shape \[40,1,64\], expected \[N, K\]"),
    "depth": (FP4, {}, {0: np.zeros((3, 62), np.float32)}, r"A \(input 0\) has shape \[3,62\], expected a last dimension of K = 64"),
    "scales": (FP4, {}, {2: np.zeros((40, 3), np.uint8)}, r"weight_scale \(input 2\) has shape \[40,3\], expected \[40,4\]"),
    "type of scales": (FP8, {}, {2: np.zeros((40, 1), np.float16)}, r"b_scale \(input 2\) is float16, expected float"),
    "global": (FP4, {}, {3: np.ones(2, np.float32)}, r"weight_scale_2 \(input 3\) has shape \[2\], expected one element"),
    "type of global": (FP4, {}, {3: np.float16(1)}, r"weight_scale_2 \(input 3\) is float16, expected float"),
    "input scale": (FP4, {}, {4: np.ones(3, np.float32)}, r"input_scale \(input 4\) has shape \[3\]"),
    "a scale": (FP8, {}, {3: np.ones(3, np.float32)}, r"a_scale \(input 3\) has shape \[3\]"),
    "bias": (FP8, {}, {4: np.zeros(41, np.float32)}, r"bias \(input 4\) has shape \[41\], expected \[40\]"),
    "missing": (FP4, {}, {3: None}, "input 3"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_rejected(case):
    op, change, arrays, text = REJECTED[case]
    inputs, attributes, *_ = node(np.random.default_rng(5), op)
    inputs += [None] * (6 - len(inputs) if op == FP4 else 5 - len(inputs))
    for i, array in arrays.items():
        inputs[i] = array
    with pytest.raises(hotset.InvalidModel, match=text):
        run(op, inputs, {**attributes, **change})
