# SPDX-License-Identifier: Apache-2.0
"""com.microsoft::MatMulNBits against the float64 reference and onnxruntime."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hotset
from ops.weight_node import NUMPY, relative_error, run_node, run_onnxruntime
from reference import weights as reference

BOUND = {"f32": 3e-6, "f16": 6e-4, "bf16": 5e-3}  # relative L2


def matmul_node(rng, dt="f32", m=(3,), n=40, k=64, bits=4, block=32, zeros=None, bias=False, prepacked=False, scale_dt=None):
    """Inputs 0-5 and attributes. zeros: None, "packed", "float"."""
    blocks = -(-k // block)
    codes = rng.integers(0, 1 << bits, (n, blocks * block))
    if prepacked:
        b = reference.sm80_pack(codes[:, :k], bits).reshape(n, blocks, -1)
    else:
        b = reference.pack_codes(codes.reshape(n, blocks, block), bits)
    scales = rng.uniform(0.5, 1, (n, blocks)) * rng.choice([-1, 1], (n, blocks)) * 2.0 ** (1 - bits) / np.sqrt(max(k, 1))
    zero_points = None
    if zeros == "packed":
        zero_points = reference.pack_codes(rng.integers(0, 1 << bits, (n, blocks)), bits)
    elif zeros == "float":
        zero_points = rng.uniform(0, (1 << bits) - 1, (n, blocks)).astype(NUMPY[dt])
    inputs = [
        rng.standard_normal((*m, k)).astype(NUMPY[dt]),
        b,
        scales.astype(NUMPY[scale_dt or dt]),
        zero_points,
        None,
        rng.standard_normal(n).astype(NUMPY[dt]) if bias else None,
    ]
    return inputs, {"K": k, "N": n, "bits": bits, "block_size": block, **({"weight_prepacked": 1} if prepacked else {})}


def expected(inputs, attributes):
    a, b, scales, zeros, _, bias = inputs
    w = reference.matmul_nbits_weight(
        b,
        scales.astype(np.float64),
        attributes["N"],
        attributes["K"],
        attributes["block_size"],
        attributes["bits"],
        zeros,
        attributes.get("weight_prepacked", 0),
    )
    y = a.astype(np.float64) @ w.T
    return y if bias is None else y + bias.astype(np.float64)


def run(inputs, attributes, **arguments):
    return run_node("MatMulNBits", inputs, attributes, fed=(0,), **arguments)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    dt=st.sampled_from(["f32", "f16", "bf16"]),
    scale_dt=st.sampled_from(["f32", "f16", "bf16"]),
    m=st.sampled_from([(0,), (1,), (2, 1), (5,), (3, 7), (70,)]),
    n=st.integers(1, 100),
    k=st.integers(1, 300),
    bits=st.sampled_from([2, 4, 8]),
    block=st.sampled_from([16, 32, 64, 128, 256]),
    zeros=st.sampled_from([None, "packed", "float"]),
    bias=st.booleans(),
    flat=st.booleans(),
    threads=st.integers(1, 3),
)
def test_random(seed, dt, scale_dt, m, n, k, bits, block, zeros, bias, flat, threads):
    inputs, attributes = matmul_node(np.random.default_rng(seed), dt, m, n, k, bits, block, zeros, bias, scale_dt=scale_dt)
    y = expected(inputs, attributes)
    if flat:
        for i in (2, 3):
            inputs[i] = None if inputs[i] is None else inputs[i].reshape(-1)
    got = run(inputs, attributes, activation="float", threads=threads)
    assert got.shape == y.shape and got.dtype == NUMPY[dt]
    # one result may be the small difference of large terms
    scale = np.abs(y).max(initial=0) + 1
    np.testing.assert_allclose(got.astype(np.float64), y, rtol=0, atol=scale * {"f32": 1e-5, "f16": 1e-3, "bf16": 8e-3}[dt])


@pytest.mark.parametrize("dt", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("n", "k", "m"), [(8, 64, 1), (24, 192, 5), (520, 320, 1), (144, 128, 300)])
def test_prepacked(dt, bits, n, k, m):
    inputs, attributes = matmul_node(np.random.default_rng(1), dt, (m,), n, k, bits, 64, "packed", True, True)
    assert relative_error(run(inputs, attributes, activation="float"), expected(inputs, attributes)) < BOUND[dt]


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("block", [32, 128])
@pytest.mark.parametrize("m", [1, 4, 100])
@pytest.mark.parametrize("zeros", [None, "packed", "float"])
def test_int8_activations(bits, block, m, zeros):
    inputs, attributes = matmul_node(np.random.default_rng(2), m=(m,), n=100, k=288, bits=bits, block=block, zeros=zeros, bias=True)
    y = expected(inputs, attributes)
    by_node = run(inputs, {**attributes, "accuracy_level": 4})
    assert np.array_equal(by_node, run(inputs, attributes, activation="int8"))
    assert np.array_equal(run(inputs, attributes), run(inputs, {**attributes, "accuracy_level": 4}, activation="float"))
    assert relative_error(run(inputs, attributes), y) < 3e-6
    assert 1e-4 < relative_error(by_node, y) < 1.5e-2


@pytest.mark.parametrize("dt", ["f32", "f16"])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", [None, "packed", "float"])
@pytest.mark.parametrize(("n", "k", "block"), [(48, 96, 32), (33, 144, 64), (64, 256, 16)])
def test_onnxruntime_agrees(dt, bits, zeros, n, k, block):
    if bits == 8 and zeros == "float":
        pytest.skip("onnxruntime has no kernel for it")
    inputs, attributes = matmul_node(np.random.default_rng(3), dt, (4,), n, k, bits, block, zeros, True)
    attributes["accuracy_level"] = 1  # float32 sums
    theirs = run_onnxruntime("MatMulNBits", inputs, attributes, fed=(0,))
    ours = run(inputs, attributes)
    assert relative_error(ours, expected(inputs, attributes)) < BOUND[dt]
    assert relative_error(ours, theirs) < (2e-2 if dt == "f16" or bits != 4 else 1e-5)  # it may quantise activations elsewhere


@pytest.mark.parametrize(("n", "k"), [(0, 32), (5, 0)])
@pytest.mark.parametrize("bias", [False, True])
def test_empty_weights(n, k, bias):
    inputs, attributes = matmul_node(np.random.default_rng(4), n=n, k=k, bias=bias)
    got = run(inputs, attributes)
    assert got.shape == (3, n)
    assert np.array_equal(got, np.broadcast_to(inputs[5] if bias else np.float32(0), (3, n)))


def test_rows_do_not_depend_on_threads():
    inputs, attributes = matmul_node(np.random.default_rng(5), m=(19,), n=700, k=256)
    one = run(inputs, attributes, threads=1)
    for threads in (2, 3, 5):
        assert np.array_equal(one, run(inputs, attributes, threads=threads))


REJECTED = {
    "bits": ({"bits": 3}, {}, hotset.InvalidModel, "bits is 3, supported: 2 4 8"),
    "block": ({"block_size": 24}, {}, hotset.InvalidModel, "block_size is 24"),
    "sm90": ({"weight_prepacked": 2}, {}, hotset.Unsupported, "weight_prepacked 2"),
    "prepacked": ({"weight_prepacked": 3}, {}, hotset.InvalidModel, "weight_prepacked is 3"),
    "prepacked size": ({"weight_prepacked": 1, "K": 48}, {}, hotset.InvalidModel, "K must be a multiple of 64"),
    "B": ({"N": 41}, {}, hotset.InvalidModel, r"B \(input 1\) has shape \[40,2,16\], expected 1312 elements"),
    "scales": ({}, {2: np.ones((40, 3), np.float32)}, hotset.InvalidModel, r"scales \(input 2\) has shape \[40,3\]"),
    "zero points": ({}, {3: np.ones((40, 2), np.uint8)}, hotset.InvalidModel, r"zero_points \(input 3\) has shape \[40,2\]"),
    "bias": ({}, {5: np.ones(39, np.float32)}, hotset.InvalidModel, r"bias \(input 5\) has shape \[39\]"),
    "g_idx": ({}, {4: np.zeros(64, np.int32)}, hotset.Unsupported, "g_idx"),
    "A": ({}, {0: np.ones((3, 65), np.float32)}, hotset.InvalidModel, r"A \(input 0\) has shape \[3,65\]"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_rejected(name):
    changes, arrays, error, text = REJECTED[name]
    inputs, attributes = matmul_node(np.random.default_rng(0))
    for i, array in arrays.items():
        inputs[i] = array
    with pytest.raises(error, match=text):
        run(inputs, {**attributes, **changes})


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("b", "scales"), [((0, 2, 16), (0, 2)), ((5, 0, 16), (5, 2)), ((5, 2, 0), (0,)), ((0, 0, 0), (0,))])
def test_a_projection_that_is_left_out(b, scales, bias):
    """B without elements: Y is the bias, or zero, as onnxruntime has it."""
    inputs = [np.ones((3, 64), np.float32), np.zeros(b, np.uint8), np.zeros(scales, np.float32), None, None]
    inputs += [np.arange(5, dtype=np.float32)] if bias else []
    attributes = {"K": 64, "N": 5, "bits": 4, "block_size": 32}
    got = run(inputs, attributes)
    assert np.array_equal(got, np.broadcast_to(inputs[5] if bias else 0, (3, 5)))
    assert np.array_equal(got, run_onnxruntime("MatMulNBits", inputs, attributes, (0,)))


def test_b_that_is_neither_empty_nor_whole():
    inputs = [np.ones((3, 64), np.float32), np.zeros((0, 2, 8), np.uint8), np.zeros((5, 2), np.float32)]
    with pytest.raises(hotset.InvalidModel, match=r"B \(input 1\) has shape \[0,2,8\]"):
        run(inputs, {"K": 64, "N": 5, "bits": 4, "block_size": 32})
