# SPDX-License-Identifier: Apache-2.0
"""com.microsoft::QMoE against the float64 reference: layouts, widths, scales, zero points, rejections."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hotset
from ops.weight_node import NUMPY, relative_error, run_node
from reference import moe as reference
from reference import weights

NAMES = [
    "input",
    "router_probs",
    "fc1_experts_weights",
    "fc1_scales",
    "fc1_experts_bias",
    "fc2_experts_weights",
    "fc2_scales",
    "fc2_experts_bias",
    "fc3_experts_weights",
    "fc3_scales",
    "fc3_experts_bias",
    "fc1_zero_points",
    "fc2_zero_points",
    "fc3_zero_points",
    "router_weights",
]
BOUND = {"f32": 3e-6, "f16": 1e-3, "bf16": 8e-3}  # relative L2


def positional(named):
    return [named.get(name) for name in NAMES]


def run(named, attributes, **arguments):
    fed = (0, 1, 14) if "router_weights" in named else (0, 1)
    return run_node("QMoE", positional(named), attributes, fed=fed, **arguments)


def expected(named, attributes, dt="f32"):
    floats = {n: np.asarray(a, np.float32) if a.dtype != np.uint8 else a for n, a in named.items()}
    return reference.qmoe(floats, attributes, dt=dt, rounding="cpu")


def random_node(
    rng,
    dt="f32",
    experts=4,
    hidden=64,
    inter=64,
    tokens=(5,),
    bits=(4, 4, 4),
    block=32,
    asymmetric=False,
    prepacked=False,
    fc3=False,
    fused=True,
    biases=True,
    scale_dt=None,
    unpacked_zeros=False,
    given_weights=False,
):
    """Named inputs. Codes are random, so every code of every width occurs."""
    rows = 2 if fused and not fc3 else 1
    sizes = {1: (rows * inter, hidden), 2: (hidden, inter)} | ({3: (inter, hidden)} if fc3 else {})
    n_tokens = int(np.prod(tokens))
    named = {
        "input": rng.standard_normal((*tokens, hidden)).astype(NUMPY[dt]),
        "router_probs": (2 * rng.standard_normal((n_tokens, experts))).astype(NUMPY[dt]),
    }
    if given_weights:
        named["router_weights"] = rng.uniform(-0.2, 1, (n_tokens, experts)).astype(NUMPY[dt])
    for i, (n, k) in sizes.items():
        width, blocks = bits[i - 1], -(-k // block) if block else 1
        named[f"fc{i}_experts_weights"] = weights.pack_int(rng.integers(0, 1 << width, (experts, n, k)), width, prepacked)
        scales = rng.uniform(0.5, 1, (experts, n, blocks)) * rng.choice([-1, 1], (experts, n, blocks)) * 2.0 ** (1 - width) / np.sqrt(k)
        named[f"fc{i}_scales"] = scales.astype(NUMPY[scale_dt or dt]).reshape((experts, n, blocks) if block else (experts, n))
        if asymmetric:
            zeros = rng.integers(0, 1 << width, (experts, n, blocks))
            if not block:
                zeros = weights.pack_codes(zeros[..., 0], width)
            elif not (unpacked_zeros and width == 4):
                zeros = weights.pack_codes(zeros, width)
            named[f"fc{i}_zero_points"] = zeros.astype(np.uint8)
        if biases:
            named[f"fc{i}_experts_bias"] = rng.standard_normal((experts, n)).astype(NUMPY[dt])
    return named


SWIGLU = {"activation_type": "swiglu", "swiglu_fusion": 1}


def golden_codes(n, k, bits, salt):
    e, n, k = np.ogrid[:2, :n, :k]
    return (7 * k + 5 * n + 3 * e + k // 8 + n // 8 + salt) % (1 << bits)


def golden_scales(n, blocks, d):
    e, n, j = np.ogrid[:2, :n, :blocks]
    return ((1 + (3 * e + n + 2 * j) % 4) / d).astype(np.float32)


def golden_node(bits, dt="f32", block=32, asymmetric=False, prepacked=False):
    """E=2, H=128, I=64; bits: of FC1 and FC2."""
    d = {2: 16, 3: 32, 4: 64, 8: 1024}
    x = (np.arange(3 * 128).reshape(3, 128) * 37 % 29 - 14) / 16
    named = {"input": x.astype(NUMPY[dt]), "router_probs": np.array([[0, 1], [2, 0], [0.5, 0.5]], NUMPY[dt])}
    for i, (n, k) in {1: (128, 128), 2: (128, 64)}.items():
        width, blocks = bits[i - 1], -(-k // block) if block else 1
        named[f"fc{i}_experts_weights"] = weights.pack_int(golden_codes(n, k, width, i - 1), width, prepacked)
        scales = golden_scales(n, blocks, d[width]).astype(NUMPY[dt])
        named[f"fc{i}_scales"] = scales if block else scales[..., 0].copy()
        if asymmetric:
            named[f"fc{i}_zero_points"] = weights.pack_codes(golden_codes(n, blocks, 4, i + 1), 4)
    return named


@pytest.mark.parametrize(
    ("bits", "dt", "options", "listed", "total"),
    [
        ((2, 2), "f32", {}, [0.255480, -0.395787, 0.255480, 0.682276], 246.1978),
        ((2, 2), "f32", {"prepacked": True}, [0.255480, -0.395787, 0.255480, 0.682276], 246.1978),
        ((3, 3), "f32", {}, [-0.358634, 0.183355, 0.238738, -0.054897], 57.8385),
        ((4, 4), "f32", {}, [-0.945802, 1.140012, 0.867452, 0.979694], 502.9764),
        ((4, 4), "f32", {"prepacked": True}, [-0.945802, 1.140012, 0.867452, 0.979694], 502.9764),
        ((8, 8), "f32", {}, [0.335792, 0.354425, 0.190137, 0.473600], 88.2035),
        ((8, 8), "f32", {"prepacked": True}, [0.335792, 0.354425, 0.190137, 0.473600], 88.2035),
        ((4, 4), "f32", {"block": 0}, [-2.851973, 0.974990, -0.119006, 3.277085], 754.4501),
        ((4, 4), "f32", {"asymmetric": True}, [-2.494476, 2.278843, -5.195716, -2.251983], 1585.9989),
        ((3, 4), "f32", {}, [-0.281298, -0.056451, 0.443487, -0.056567], 65.1688),
    ],
)
def test_golden(bits, dt, options, listed, total):
    named = golden_node(bits, dt, **options)
    attributes = {
        "k": 2,
        **SWIGLU,
        "normalize_routing_weights": 1,
        "block_size": options.get("block", 32),
        "weights_prepacked": int(options.get("prepacked", False)),
    }
    attributes |= (
        {"expert_weight_bits": bits[0]} if bits[0] == bits[1] else {"fc1_expert_weight_bits": bits[0], "fc2_expert_weight_bits": bits[1]}
    )
    y = run(named, attributes, activation="float")
    np.testing.assert_allclose([*y[0, :3], y[2, 127]], listed, atol=2e-6, rtol=1e-6)
    assert abs(np.abs(y).sum(dtype=np.float64) - total) < 1e-4 * max(1, total / 500)


@pytest.mark.parametrize(
    ("bits", "first", "second"),
    [
        (2, "99f33f6cadbc0e00", "be04e18e14672d78"),
        (3, "7c4d4f6233b85928", "89ef91316d9254fc"),
        (4, "a8bf10303217fb27", "6ff4ce29b7f1c4a2"),
        (8, "2e32c42a5dda8e66", "38d951942424d4d1"),
    ],
)
def test_golden_bytes(bits, first, second):
    named = golden_node((bits, bits))
    for i, digest in ((1, first), (2, second)):
        assert hashlib.sha256(named[f"fc{i}_experts_weights"].tobytes()).hexdigest()[:16] == digest


@pytest.mark.parametrize("dt", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("prepacked", [False, True])
@pytest.mark.parametrize("tokens", [(1,), (2, 3), (70,)])
def test_swiglu(dt, bits, prepacked, tokens):
    rng = np.random.default_rng(bits)
    named = random_node(rng, dt, experts=6, hidden=128, inter=64, tokens=tokens, bits=(bits,) * 3, prepacked=prepacked)
    attributes = {
        "k": 4,
        **SWIGLU,
        "expert_weight_bits": bits,
        "block_size": 32,
        "normalize_routing_weights": 1,
        "swiglu_limit": 2.0,
        "activation_alpha": 1.702,
        "activation_beta": 1.0,
    }
    y = run(named, attributes, activation="float")  # the layout is told by the shapes alone
    assert y.dtype == NUMPY[dt]
    assert relative_error(y, expected(named, attributes, dt)) < BOUND[dt]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    dt=st.sampled_from(["f32", "f16", "bf16"]),
    bits=st.tuples(*[st.sampled_from([2, 3, 4, 8])] * 2),
    activation=st.sampled_from(["swiglu", "geglu", "silu", "relu2", "identity"]),
    fusion=st.integers(1, 2),
    fc3=st.booleans(),
    block=st.sampled_from([0, 16, 32, 64, 256]),
    asymmetric=st.booleans(),
    unpacked=st.booleans(),
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 12), st.integers(1, 12), st.integers(0, 40)),
    given_weights=st.booleans(),
    normalize=st.integers(0, 1),
    scale_dt=st.sampled_from(["f32", "f16", "bf16"]),
    threads=st.integers(1, 3),
)
def test_random(seed, dt, bits, activation, fusion, fc3, block, asymmetric, unpacked, sizes, given_weights, normalize, scale_dt, threads):
    rng = np.random.default_rng(seed)
    experts, hidden, inter, tokens = sizes[0], 8 * sizes[1], 8 * sizes[2], sizes[3]
    fc3 = fc3 and activation != "geglu"
    pair = activation in ("swiglu", "geglu")
    named = random_node(
        rng,
        dt,
        experts,
        hidden,
        inter,
        (tokens,),
        (*bits, bits[0]),
        block,
        asymmetric,
        fc3=fc3,
        fused=pair,
        scale_dt=scale_dt,
        unpacked_zeros=unpacked,
        given_weights=given_weights,
    )
    attributes = {
        "k": int(rng.integers(1, experts + 1)),
        "activation_type": activation,
        "swiglu_fusion": fusion if pair and not fc3 else 0,
        "normalize_routing_weights": normalize,
        "block_size": block,
        "weights_prepacked": 0,
        "fc1_expert_weight_bits": bits[0],
        "fc2_expert_weight_bits": bits[1],
        "fc3_expert_weight_bits": bits[0],
    }
    y, reference_y = run(named, attributes, activation="float", threads=threads), expected(named, attributes, dt)
    if given_weights and normalize:  # near a zero sum the quotient is anything
        return
    scale = max(float(np.abs(reference_y).max(initial=0)), 1e-2)
    np.testing.assert_allclose(np.asarray(y, np.float64), reference_y, rtol=0, atol=scale * {"f32": 2e-5, "f16": 3e-3, "bf16": 2.4e-2}[dt])


@pytest.mark.parametrize("scales", ["row", "row rank 3", "block of a row"])
@pytest.mark.parametrize("asymmetric", [False, True])
def test_one_scale_a_row(scales, asymmetric):
    """(E,N), (E,N,1) without block_size, and (E,N,1) with block_size >= K, whose zero points are packed per row."""
    rng = np.random.default_rng(3)
    block = 64 if scales == "block of a row" else 0
    named = random_node(rng, hidden=64, inter=48, block=block, asymmetric=asymmetric)
    attributes = {"k": 2, **SWIGLU} | ({"block_size": block} if block else {})
    y = expected(named, attributes)
    if scales == "row rank 3":
        for i in (1, 2):
            named[f"fc{i}_scales"] = named[f"fc{i}_scales"][..., None]
    assert relative_error(run(named, attributes, activation="float"), y) < 3e-6


@pytest.mark.parametrize("dt", ["f32", "f16"])
@pytest.mark.parametrize("tokens", [1, 9, 200])
def test_int8_activations(dt, tokens):
    rng = np.random.default_rng(4)
    named = random_node(rng, dt, experts=6, hidden=128, inter=96, tokens=(tokens,), asymmetric=True)
    attributes = {"k": 3, **SWIGLU, "block_size": 32, "normalize_routing_weights": 1}
    y = expected(named, attributes, dt)
    exact = run(named, attributes)
    assert relative_error(exact, y) < BOUND[dt]
    by_node = run(named, {**attributes, "accuracy_level": 4})
    assert np.array_equal(by_node, run(named, attributes, activation="int8"))
    assert np.array_equal(exact, run(named, {**attributes, "accuracy_level": 4}, activation="float"))
    assert 1e-4 < relative_error(by_node, y) < 1.5e-2


def test_accuracy_level_leaves_8_bit_exact():
    named = random_node(np.random.default_rng(5), bits=(8, 8, 8))
    attributes = {"k": 2, **SWIGLU, "block_size": 32, "expert_weight_bits": 8}
    assert np.array_equal(run(named, {**attributes, "accuracy_level": 4}), run(named, attributes))


@pytest.mark.parametrize("dt", ["f32", "bf16"])
def test_fusions_are_permutations(dt):
    """Interleaved rows, halves and a separate FC3 say the same."""
    rng = np.random.default_rng(6)
    named = random_node(rng, dt, hidden=64, inter=48, tokens=(40,), asymmetric=True)
    attributes = {"k": 2, "activation_type": "swiglu", "block_size": 32, "swiglu_limit": 1.0}
    y = run(named, {**attributes, "swiglu_fusion": 1})
    parts = ("experts_weights", "scales", "experts_bias", "zero_points")
    halves, separate = dict(named), dict(named)
    for part in parts:
        a = named[f"fc1_{part}"]
        gate, value = a[:, 0::2], a[:, 1::2]
        halves[f"fc1_{part}"] = np.concatenate([gate, value], 1)
        separate[f"fc1_{part}"], separate[f"fc3_{part}"] = gate.copy(), value.copy()
    assert np.array_equal(y, run(halves, {**attributes, "swiglu_fusion": 2}))
    assert np.array_equal(y, run(separate, {**attributes, "swiglu_fusion": 0}))


@pytest.mark.parametrize(("bits", "inter"), [(2, 36), (3, 24), (4, 34), (8, 33)])
def test_halves_with_one_stream_of_zero_points(bits, inter):
    """Row-wise zero points are one stream along N, in which the value rows begin at any bit."""
    named = random_node(np.random.default_rng(bits), hidden=64, inter=inter, bits=(bits,) * 3, block=0, asymmetric=True)
    attributes = {"k": 2, "activation_type": "swiglu", "swiglu_fusion": 2, "expert_weight_bits": bits}
    assert relative_error(run(named, attributes, activation="float"), expected(named, attributes)) < 3e-6


@pytest.mark.parametrize("fc1_square", [False, True])
@pytest.mark.parametrize("prepacked", [False, True])
def test_square_matrix_follows_the_other(fc1_square, prepacked):
    rng = np.random.default_rng(7)
    hidden, inter = (128, 64) if fc1_square else (64, 64)  # FC1 [2I,H] or FC2 [H,I] is square
    named = random_node(rng, hidden=hidden, inter=inter, prepacked=prepacked)
    attributes = {"k": 2, **SWIGLU, "block_size": 32}
    y = expected(named, {**attributes, "weights_prepacked": int(prepacked)})
    assert relative_error(run(named, attributes), y) < 3e-6
    with_attribute = run(named, {**attributes, "weights_prepacked": int(prepacked)})
    assert relative_error(with_attribute, y) < 3e-6


def test_all_square():
    rng = np.random.default_rng(8)
    attributes = {"k": 2, "activation_type": "silu", "block_size": 32}
    packed = random_node(rng, fused=False, prepacked=True)  # no FC3: as CUDA reads it
    assert relative_error(run(packed, attributes), expected(packed, {**attributes, "weights_prepacked": 1})) < 3e-6
    raw = random_node(rng, fc3=True)
    assert relative_error(run(raw, attributes), expected(raw, {**attributes, "weights_prepacked": 0})) < 3e-6
    odd = random_node(rng, fused=False, hidden=48, inter=48, block=16)  # 48 rows of K cannot be prepacked
    odd_attributes = {**attributes, "block_size": 16}
    assert relative_error(run(odd, odd_attributes), expected(odd, {**odd_attributes, "weights_prepacked": 0})) < 3e-6


def test_prepacked_in_raw_declaration():
    """weights_prepacked 1 with the shape (E, N, K/pack): only the attribute says how the bytes lie."""
    named = random_node(np.random.default_rng(9), hidden=128, inter=64, prepacked=True)
    attributes = {"k": 2, **SWIGLU, "block_size": 32, "weights_prepacked": 1}
    y = expected(named, attributes)
    named["fc1_experts_weights"] = named["fc1_experts_weights"].reshape(4, 128, 64)
    named["fc2_experts_weights"] = named["fc2_experts_weights"].reshape(4, 128, 32)
    assert relative_error(run(named, attributes), y) < 3e-6


def test_router_rank_3_and_weights():
    rng = np.random.default_rng(10)
    named = random_node(rng, tokens=(2, 5), given_weights=True)
    attributes = {"k": 2, **SWIGLU, "block_size": 32, "normalize_routing_weights": 1}
    y = expected(named, attributes)
    for name in ("router_probs", "router_weights"):
        named[name] = named[name].reshape(2, 5, 4)
    assert relative_error(run(named, attributes), y) < 3e-6


def test_nan_logit_spoils_its_row_only():
    named = random_node(np.random.default_rng(11), tokens=(4,))
    attributes = {"k": 2, **SWIGLU, "block_size": 32}
    clean = run(named, attributes)
    named["router_probs"][1, 2] = np.nan
    y = run(named, attributes)
    assert np.isnan(y[1]).all()
    assert np.array_equal(np.delete(y, 1, 0), np.delete(clean, 1, 0))


def test_long_calls_are_split():
    """More routes than one piece of workspace holds."""
    rng = np.random.default_rng(12)
    named = random_node(rng, experts=2, hidden=1024, inter=512, tokens=(7001,), biases=False)
    attributes = {"k": 2, **SWIGLU, "block_size": 32}
    y = run(named, attributes)
    for rows in (slice(0, 3), slice(3498, 3504), slice(6998, 7001)):
        part = {**named, "input": named["input"][rows], "router_probs": named["router_probs"][rows]}
        assert relative_error(y[rows], expected(part, attributes)) < 3e-6


def test_weights_as_graph_inputs():
    named = random_node(np.random.default_rng(13))
    attributes = {"k": 2, **SWIGLU, "block_size": 32}
    inputs = positional(named)
    fed = [i for i, a in enumerate(inputs) if a is not None]
    assert np.array_equal(run_node("QMoE", inputs, attributes, fed=fed), run(named, attributes))


REJECTED = {
    "bits": ({"expert_weight_bits": 5}, {}, "expert_weight_bits is 5, supported with quant_type 'int': 2 3 4 8"),
    "block": ({"block_size": 48}, {}, "block_size is 48"),
    "prepacked": ({"weights_prepacked": 2}, {}, "weights_prepacked is 2"),
    "quant_type": ({"quant_type": "int4"}, {}, "quant_type is 'int4'"),
    "fc3 bits": ({"fc3_expert_weight_bits": 8}, {}, "fc3_expert_weight_bits is 8"),
    "k": ({"k": 9}, {}, "k is 9, but there are 4 experts"),
    "scale block": ({"block_size": 16}, {}, r"fc1_scales has shape \[4,128,2\], expected \[4,128\] .* or \[4,128,4\] for block_size 16"),
    "weights": ({}, {"fc1_experts_weights": np.zeros((4, 128, 31), np.uint8)}, r"fc1_experts_weights has shape \[4,128,31\]"),
    "bias": ({}, {"fc2_experts_bias": np.zeros((4, 63), np.float32)}, r"fc2_experts_bias .* expected \[4,64\]"),
    "zero points": (
        {},
        {"fc1_zero_points": np.zeros((4, 128, 3), np.uint8)},
        r"fc1_zero_points has shape \[4,128,3\], expected \[4,128,1\]",
    ),
    "fc3 scales": ({}, {"fc3_scales": np.zeros((4, 64, 2), np.float32)}, "input 9 belongs to fc3_experts_weights"),
    "experts": ({}, {"fc2_experts_weights": np.zeros((3, 64, 32), np.uint8)}, "fc2_experts_weights"),
    "router": ({}, {"router_probs": np.zeros((4, 4), np.float32)}, r"router_probs \(input 1\) has shape \[4,4\]"),
    "hidden": ({}, {"input": np.zeros((5, 96), np.float32)}, "experts are for hidden size 64"),
    "raw shape": ({"weights_prepacked": 0}, {"fc1_experts_weights": np.zeros((4, 64, 64), np.uint8)}, "weights_prepacked 0 needs"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_rejected(name):
    attributes, changes, text = REJECTED[name]
    named = random_node(np.random.default_rng(0)) | changes
    with pytest.raises(hotset.InvalidModel, match=text):
        run(named, {"k": 2, **SWIGLU, "block_size": 32, **attributes})


def test_rejected_mixed_layouts():
    raw, packed = (random_node(np.random.default_rng(0), hidden=64, inter=128, prepacked=p) for p in (False, True))
    named = raw | {"fc2_experts_weights": packed["fc2_experts_weights"]}
    with pytest.raises(hotset.InvalidModel, match="fc1_experts_weights is declared raw, but fc2_experts_weights prepacked"):
        run(named, {"k": 2, **SWIGLU, "block_size": 32})


def test_rejected_transposed_quantisation():
    """Experts quantised along the wrong axis: weights (E, K, N/2) look prepacked, their scales give them away."""
    rng = np.random.default_rng(0)
    named = random_node(rng, hidden=64, inter=128, fc3=True)
    swapped = random_node(rng, hidden=128, inter=64, fc3=True)
    for i in (1, 2, 3):
        for part in ("experts_weights", "scales"):
            named[f"fc{i}_{part}"] = swapped[f"fc{i}_{part}"]
        named.pop(f"fc{i}_experts_bias")
    with pytest.raises(hotset.InvalidModel, match="hidden size 128|scales"):
        run(named, {"k": 2, "activation_type": "silu", "block_size": 32})


def test_global_scale_needs_another_kind():
    inputs = positional(random_node(np.random.default_rng(0))) + [np.ones(4, np.float32)]
    with pytest.raises(hotset.InvalidModel, match="input 15"):
        run_node("QMoE", inputs, {"k": 2, **SWIGLU, "block_size": 32})
