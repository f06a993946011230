# SPDX-License-Identifier: Apache-2.0
"""Blocks at the edges of their range: one large value of either sign, nothing but zeros, numbers that are none, a short last block.

Weights are read through the identity: row i of the result is column i of the weights, exactly what codes and scales say.
Integer activations take q = rne(x * 127 / max|x|) of each 32 neighbours (native/cpu_avx/quant_gemm.h)."""

import numpy as np
import pytest

from ops.test_matmul_nbits import expected, matmul_node, run
from ops.test_qmoe import expected as expected_experts
from ops.test_qmoe import run as run_experts
from ops.test_qmoe_shapes import sizes
from ops.weight_node import relative_error
from reference import weights

K, N, BLOCK = 128, 6, 32
MID = {2: 2, 4: 8, 8: 128}


def node_of(codes, scales, bits, a, block=BLOCK, zeros=None):
    """codes [N, K] unsigned, scales [N, K / block]."""
    n, k = codes.shape
    packed = weights.pack_codes(codes.reshape(n, k // block, block), bits)
    return [a, packed, scales.astype(np.float32), zeros, None, None], {"K": k, "N": n, "bits": bits, "block_size": block}


def columns(codes, scales, bits, activation="float"):
    """The weights [N, K] as the node uses them."""
    inputs, attributes = node_of(codes, scales, bits, np.eye(codes.shape[1], dtype=np.float32))
    return run(inputs, attributes, activation=activation).T


def one_large(sign, at=5, small=0.01):
    """Every block has one large value, at the same place, among small ones."""
    w = np.random.default_rng(0).uniform(-small, small, (N, K)).astype(np.float32)
    w[:, at::BLOCK] = sign
    return w


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("sign", [1, -1])
def test_positive_scales_clip_the_largest_positive_value(bits, sign):
    """With scale = max / 2^(bits-1), -max is the lowest code and +max has none: it becomes the largest, one step below."""
    w = one_large(sign)
    codes, scales, _ = weights.quantise_int(w[None], bits, BLOCK)
    got = columns(codes[0], scales[0], bits)
    assert (scales > 0).all() and (codes[0][:, 5::BLOCK] == (2 * MID[bits] - 1 if sign > 0 else 0)).all()
    np.testing.assert_array_equal(got[:, 5::BLOCK], np.float32(sign if sign < 0 else 1 - 1 / MID[bits]))
    np.testing.assert_array_equal(got, (codes[0].astype(np.float32) - MID[bits]) * scales[0].repeat(BLOCK, 1))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("sign", [1, -1])
def test_signed_scales_keep_the_largest_value(bits, sign):
    """Exporters map the value of largest magnitude to the lowest code, whatever its sign: the scale takes the other one."""
    w = one_large(sign)
    scales = np.full((N, K // BLOCK), -sign / MID[bits], np.float32)
    codes = np.clip(np.rint(w / scales.repeat(BLOCK, 1)) + MID[bits], 0, 2 * MID[bits] - 1).astype(np.int64)
    got = columns(codes, scales, bits)
    assert (codes[:, 5::BLOCK] == 0).all()
    np.testing.assert_array_equal(got[:, 5::BLOCK], np.float32(sign))
    np.testing.assert_array_equal(got, (codes.astype(np.float32) - MID[bits]) * scales.repeat(BLOCK, 1))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("activation", ["float", "int8"])
def test_blocks_of_zeros(bits, activation):
    """Of the middle code with any scale, of any codes with scale 0: no 0/0, no trace in the sum."""
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 2 * MID[bits], (N, K))
    scales = rng.uniform(0.5, 1, (N, K // BLOCK)).astype(np.float32)
    codes[:, :BLOCK] = MID[bits]
    scales[:, 1] = 0
    got = columns(codes, scales, bits, activation)
    assert not got[:, : 2 * BLOCK].any() and got[:, 2 * BLOCK :].any()
    inputs, attributes = node_of(np.full((N, K), MID[bits]), scales * 0, bits, rng.standard_normal((3, K)).astype(np.float32))
    assert not run(inputs, attributes, activation=activation).any()


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("activation", ["float", "int8"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("m", [1, 3, 70])
def test_a_scale_that_is_no_number_spoils_its_column_only(bits, activation, value, m):
    rng = np.random.default_rng(2)
    inputs, attributes = matmul_node(rng, m=(m,), n=40, k=K, bits=bits)
    clean = run(inputs, attributes, activation=activation)
    inputs[2] = inputs[2].copy()
    inputs[2][7, 1] = value
    got = run(inputs, attributes, activation=activation)
    assert not np.isfinite(got[:, 7]).any()
    np.testing.assert_array_equal(np.delete(got, 7, 1), np.delete(clean, 7, 1))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("activation", ["float", "int8"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("m", [2, 5, 70])
def test_an_activation_that_is_no_number_stays_in_its_row(bits, activation, value, m):
    rng = np.random.default_rng(3)
    inputs, attributes = matmul_node(rng, m=(m,), n=40, k=K, bits=bits)
    clean = run(inputs, attributes, activation=activation)
    inputs[0] = inputs[0].copy()
    inputs[0][1, 70] = value
    got = run(inputs, attributes, activation=activation)
    assert not np.isfinite(got[1]).any()
    np.testing.assert_array_equal(np.delete(got, 1, 0), np.delete(clean, 1, 0))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_groups_of_activations_with_one_large_value(bits, sign, size):
    """It becomes code 127 or -127, none beyond; what is below half a step beside it vanishes."""
    rng = np.random.default_rng(4)
    inputs, attributes = matmul_node(rng, m=(3,), n=40, k=K, bits=bits)
    large = np.zeros((3, K), np.float32)
    large[:, 9::32] = sign * size
    inputs[0] = large + np.float32(size / 300) * (large == 0)
    got = run(inputs, attributes, activation="int8")
    want = expected([large, *inputs[1:]], attributes)
    np.testing.assert_allclose(got, want, rtol=0, atol=3e-6 * np.abs(want).max())
    # -128 x -128, the lowest codes of both sides, is reached by no activation: -max is -127.
    inputs[1] = np.zeros_like(inputs[1])
    got, want = run(inputs, attributes, activation="int8"), expected([large, *inputs[1:]], attributes)
    np.testing.assert_allclose(got, want, rtol=0, atol=3e-6 * np.abs(want).max())


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_groups_of_activations_that_are_zero_or_nearly(bits):
    """0/0 and 127/x beyond the range of float32 give no NaN."""
    rng = np.random.default_rng(5)
    inputs, attributes = matmul_node(rng, m=(6,), n=40, k=K, bits=bits)
    a = inputs[0].copy()
    a[0] = 0
    a[1, :64] = 0
    a[2] = np.float32(1e-45)  # the smallest number above 0
    a[3] = np.where(np.arange(K) % 2, np.float32(-1e-40), np.float32(1e-40))
    a[4] = -0.0
    inputs[0] = a
    got, want = run(inputs, attributes, activation="int8"), expected(inputs, attributes)
    assert np.isfinite(got).all() and not got[0].any() and not got[4].any()
    assert np.abs(got[2:4]).max() <= 1e-38
    np.testing.assert_allclose(got[[1, 5]], want[[1, 5]], rtol=0, atol=1.5e-2 * np.abs(want).max())


@pytest.mark.parametrize("block", [16, 32, 128, 256])
@pytest.mark.parametrize(
    ("hidden", "inter"), [(1536, 308), (64, 1536), (96, 310), (64, 6), (64, 2), (1536, 307), (96, 309), (64, 5), (64, 1)]
)
def test_inner_sizes_that_no_block_divides(hidden, inter, block):
    """1536 / 5 and other odd sizes: the last block and the last vector of a row are short. Of 4-bit codes a row has whole bytes."""
    bits = 8 if inter % 2 else 4
    named, attributes = sizes(hidden, inter, 2, 1, block, 3, hidden + inter, bits=(bits,) * 3)
    want = expected_experts(named, attributes)
    assert relative_error(run_experts(named, attributes, activation="float"), want) < 3e-6
    assert relative_error(run_experts(named, attributes, activation="int8"), want) < 3e-2


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("k", [1536, 307, 33, 5, 1])
@pytest.mark.parametrize("block", [16, 256])
def test_products_of_odd_length(bits, k, block):
    inputs, attributes = matmul_node(np.random.default_rng(6), m=(4,), n=33, k=k, bits=bits, block=block, zeros="packed")
    want = expected(inputs, attributes)
    scale = np.abs(want).max() + 1
    np.testing.assert_allclose(run(inputs, attributes, activation="float"), want, rtol=0, atol=1e-5 * scale)
    np.testing.assert_allclose(run(inputs, attributes, activation="int8"), want, rtol=0, atol=3e-2 * scale)
