# SPDX-License-Identifier: Apache-2.0
"""QMoE with weights that are small floats: MXFP4, NVFP4, FP8 per expert and in squares."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hotset
from ops.test_qmoe import BOUND, NAMES, SWIGLU, golden_codes
from ops.weight_node import NUMPY, relative_error, run_node, run_onnxruntime
from reference import moe as reference
from reference import weights

ALL_NAMES = [*NAMES, "fc1_global_scale", "fc2_global_scale", "fc1_act_scale", "fc2_act_scale", "fc1_act_block_scale", "fc2_act_block_scale"]
E4M3, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu


def positional(named):
    return [named.get(name) for name in ALL_NAMES]


def run(named, attributes, **arguments):
    return run_node("QMoE", positional(named), attributes, **arguments)


def expected(named, attributes, dt="f32"):
    plain = {n: np.asarray(a, np.float32) if a.dtype.itemsize > 1 else a for n, a in named.items()}
    kind = {"mxfp4": "fp4"}.get(attributes["quant_type"], attributes["quant_type"])
    return reference.qmoe(plain, {**attributes, "quant_type": kind}, dt=dt, rounding="cpu")


def random_node(rng, kind, dt="f32", experts=3, hidden=64, inter=96, tokens=5, by_k=False, block=0, fc3=False, biases=True, rows=2):
    named = {
        "input": rng.standard_normal((tokens, hidden)).astype(NUMPY[dt]),
        "router_probs": rng.standard_normal((tokens, experts)).astype(NUMPY[dt]),
    }
    sizes = {1: ((1 if fc3 else rows) * inter, hidden), 2: (hidden, inter)} | ({3: (inter, hidden)} if fc3 else {})
    for i, (n, k) in sizes.items():
        w = (rng.standard_normal((experts, n, k)) / np.sqrt(k)).astype(np.float32)
        if kind == "fp8":
            codes, scales = weights.quantise_fp8(w, block)
            named[f"fc{i}_experts_weights"] = codes.view(E4M3)
            named[f"fc{i}_scales" if block else f"fc{i}_global_scale"] = scales
        else:
            codes, scales, global_scale = (weights.quantise_nvfp4 if kind == "nvfp4" else weights.quantise_mxfp4)(w)
            named[f"fc{i}_experts_weights"] = weights.pack_fp4(codes, by_k)
            named[f"fc{i}_scales"] = scales.view(E4M3 if kind == "nvfp4" else E8M0)
            named[f"fc{i}_global_scale"] = global_scale * rng.uniform(0.5, 2, experts).astype(np.float32)
        if biases:
            named[f"fc{i}_experts_bias"] = rng.standard_normal((experts, n)).astype(NUMPY[dt])
    return named


def golden_inputs():
    x = (np.arange(3 * 128).reshape(3, 128) * 37 % 29 - 14) / 16
    return {"input": x.astype(np.float32), "router_probs": np.array([[0, 1], [2, 0], [0.5, 0.5]], np.float32)}


def check_golden(named, attributes, listed, total):
    y = run(named, {"k": 2, **SWIGLU, "normalize_routing_weights": 1, **attributes})
    np.testing.assert_allclose([*y[0, :3], y[2, 127]], listed, atol=1.1e-6 * max(1, total / 384), rtol=1e-6)
    assert abs(np.abs(y).sum(dtype=np.float64) - total) < max(1e-4, 1e-6 * total)


@pytest.mark.parametrize("by_k", [False, True])
@pytest.mark.parametrize(
    ("kind", "block", "first_byte", "period", "global_scales", "listed", "total"),
    [
        ("nvfp4", 16, 0x30, 16, [1 / 16, 1 / 32], [-0.121035, -0.697284, 0.881728, 0.202788], 588.0668),
        ("fp4", 32, 122, 4, [1, 0.5], [0.067832, 0.866811, -0.008786, 4.826012], 2953.0796),
    ],
)
def test_golden_fp4(kind, block, first_byte, period, global_scales, listed, total, by_k):
    named = golden_inputs()
    for i, (n, k) in {1: (128, 128), 2: (128, 64)}.items():
        named[f"fc{i}_experts_weights"] = weights.pack_fp4(golden_codes(n, k, 4, i - 1), by_k)
        e, row, j = np.ogrid[:2, :n, : k // block]
        scales = (first_byte + (3 * e + row + 2 * j) % period).astype(np.uint8)
        named[f"fc{i}_scales"] = scales.view(E4M3 if kind == "nvfp4" else E8M0)
        named[f"fc{i}_global_scale"] = np.array(global_scales, np.float32)
    check_golden(named, {"quant_type": kind, "weights_prepacked": int(by_k)}, listed, total)


@pytest.mark.parametrize(
    ("block", "listed", "total"),
    [
        (0, [-0.000168, -0.000076, -0.000464, -0.002999], 0.8319),
        (32, [0.001408, 0.001890, 0.002184, -0.001121], 0.5671),
        (128, [-0.001113, -0.000141, -0.001524, -0.002410], 0.4419),
    ],
)
def test_golden_fp8(block, listed, total):
    named = golden_inputs()
    for i, (n, k) in {1: (128, 128), 2: (128, 64)}.items():
        codes = golden_codes(n, k, 8, i - 1)
        codes = np.where((codes & 127) >= 0x48, (codes & 128) | (codes & 0x3F), codes)
        named[f"fc{i}_experts_weights"] = codes.astype(np.uint8).view(E4M3)
        if block:
            e, a, b = np.ogrid[:2, : -(-n // block), : -(-k // block)]
            named[f"fc{i}_scales"] = ((1 + (3 * e + a + 2 * b) % 4) / 64).astype(np.float32)
        else:
            named[f"fc{i}_global_scale"] = np.array([1 / 16, 1 / 32], np.float32)
    check_golden(named, {"quant_type": "fp8", "expert_weight_bits": 8, "block_size": block}, listed, total)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(["fp4", "mxfp4", "nvfp4", "fp8", "fp8 squares"]),
    dt=st.sampled_from(["f32", "f16", "bf16"]),
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.integers(0, 30)),
    by_k=st.booleans(),
    activation=st.sampled_from(["swiglu", "silu"]),
    fusion=st.integers(1, 2),
    fc3=st.booleans(),
    biases=st.booleans(),
    threads=st.integers(1, 3),
)
def test_random(seed, kind, dt, sizes, by_k, activation, fusion, fc3, biases, threads):
    rng = np.random.default_rng(seed)
    experts, hidden, inter, tokens = sizes[0], 32 * sizes[1], 32 * sizes[2], sizes[3]
    quant_type, squares = kind.split()[0], kind == "fp8 squares"
    fc3, block = fc3 and squares, 16 if squares else 0
    if quant_type == "fp8":
        hidden, inter = hidden - 5, inter - 3  # odd sizes, partial squares
    named = random_node(
        rng,
        "fp4" if quant_type == "mxfp4" else quant_type,
        dt,
        experts,
        hidden,
        inter,
        tokens,
        by_k,
        block,
        fc3,
        biases,
        rows=2 if activation == "swiglu" else 1,
    )
    attributes = {
        "k": int(rng.integers(1, experts + 1)),
        "activation_type": activation,
        "quant_type": quant_type,
        "block_size": block or -1,
        "swiglu_fusion": 0 if fc3 or activation == "silu" else fusion,
        "weights_prepacked": int(by_k),
        "expert_weight_bits": 8 if quant_type == "fp8" else 4,
    }
    y, got = expected(named, attributes, dt), run(named, attributes, threads=threads)
    scale = max(float(np.abs(y).max(initial=0)), 1e-2)
    np.testing.assert_allclose(np.asarray(got, np.float64), y, rtol=0, atol=scale * {"f32": 2e-5, "f16": 3e-3, "bf16": 2.4e-2}[dt])


@pytest.mark.parametrize("dt", ["f32", "f16"])
@pytest.mark.parametrize("kind", ["nvfp4", "fp4"])
def test_onnxruntime_agrees(kind, dt):
    """Its kernel takes weights packed along K, rounds scales and weights (to bfloat16 with float32) and activations."""
    named = random_node(np.random.default_rng(1), kind, dt, by_k=True)
    attributes = {"k": 2, **SWIGLU, "quant_type": kind, "weights_prepacked": 1, "block_size": 16 if kind == "nvfp4" else 32}
    inputs = positional(named)
    theirs = run_onnxruntime("QMoE", inputs, attributes)
    assert relative_error(run(named, attributes), theirs) < {"f32": 6e-3, "f16": 3e-3}[dt]


def test_wfp4afp8_is_mxfp4():
    named = random_node(np.random.default_rng(2), "fp4")
    attributes = {"k": 2, **SWIGLU, "quant_type": "fp4"}
    y = run(named, attributes)
    named["fc1_act_scale"], named["fc2_act_scale"] = np.ones(1, np.float32), np.ones(3, np.float32)
    assert np.array_equal(y, run(named, {**attributes, "quant_type": "wfp4afp8", "weights_prepacked": 1}))


def test_scales_as_bytes_and_without_global_scale():
    named = random_node(np.random.default_rng(3), "fp4", by_k=True)
    attributes = {"k": 2, **SWIGLU, "quant_type": "fp4", "weights_prepacked": 1}
    for i in (1, 2):
        named[f"fc{i}_global_scale"] = np.ones(3, np.float32)
    y = run(named, attributes)
    for i in (1, 2):
        named[f"fc{i}_scales"] = named[f"fc{i}_scales"].view(np.uint8)
        named.pop(f"fc{i}_global_scale")
    assert np.array_equal(y, run(named, attributes))


LAYERS = {"fp4": (2880, 96, 32), "nvfp4": (2048, 768, 16), "fp8": (2048, 768, 0), "fp8 squares": (2048, 768, 128)}


@pytest.mark.parametrize("by_k", [False, True])
@pytest.mark.parametrize("tokens", [1, 3, 24])
@pytest.mark.parametrize("kind", LAYERS)
def test_sizes_of_real_layers(kind, tokens, by_k):
    """Exact activations: as good as float32 sums. int8 activations, when asked for: what 8 bits keep of them."""
    hidden, inter, block = LAYERS[kind]
    quant_type = kind.split()[0]
    if quant_type == "fp8" and by_k:
        pytest.skip("one layout only")
    squares = block if quant_type == "fp8" else 0
    named = random_node(
        np.random.default_rng(5), quant_type, experts=4, hidden=hidden, inter=inter, tokens=tokens, by_k=by_k, block=squares
    )
    bits = 8 if quant_type == "fp8" else 4
    attributes = {
        "k": 2,
        **SWIGLU,
        "quant_type": quant_type,
        "block_size": block or -1,
        "weights_prepacked": int(by_k),
        "expert_weight_bits": bits,
    }
    y = expected(named, attributes)
    assert relative_error(run(named, attributes), y) < 1e-6
    assert 1e-4 < relative_error(run(named, attributes, activation="int8"), y) < 2e-2


def test_int8_activations_are_asked_for_by_option_only():
    named = random_node(np.random.default_rng(6), "fp4", by_k=True)
    attributes = {"k": 2, **SWIGLU, "quant_type": "fp4", "weights_prepacked": 1}
    exact = run(named, attributes)
    assert np.array_equal(exact, run(named, {**attributes, "accuracy_level": 4}))
    assert not np.array_equal(exact, run(named, attributes, activation="int8"))
    # By its name the activations of this kind are floats.
    named, attributes = random_node(np.random.default_rng(6), "fp4"), {"k": 2, **SWIGLU, "quant_type": "wfp4afp8"}
    assert np.array_equal(run(named, attributes), run(named, attributes, activation="int8"))


def test_not_a_number():
    named = random_node(np.random.default_rng(4), "fp8", tokens=2)
    named["router_probs"][:] = [[9, 0, 0], [0, 9, 0]]
    weights = named["fc2_experts_weights"].view(np.uint8)
    weights[1, 5, 7] = 0x7F
    y = run(named, {"k": 1, **SWIGLU, "quant_type": "fp8", "expert_weight_bits": 8})
    assert np.isfinite(y[0]).all() and np.isnan(y[1, 5]) and np.isfinite(np.delete(y[1], 5)).all()


REJECTED = {
    "bits": ("nvfp4", {"expert_weight_bits": 8}, {}, "expert_weight_bits is 8"),
    "fp8 bits": ("fp8", {"expert_weight_bits": 4}, {}, "expert_weight_bits is 4"),
    "block": ("nvfp4", {"block_size": 32}, {}, "block_size is 32, expected -1 or 16"),
    "global": ("nvfp4", {}, {"fc2_global_scale": None}, r"fc2_global_scale \(input 16\) is missing"),
    "global shape": ("nvfp4", {}, {"fc1_global_scale": np.ones(1, np.float32)}, r"fc1_global_scale .* expected float \[3\]"),
    "scale type": ("nvfp4", {}, {"fc1_scales": np.ones((3, 192, 4), np.float32)}, "fc1_scales .* is float, expected float8e4m3fn"),
    "scale shape": ("fp4", {}, {"fc1_scales": np.ones((3, 192, 4), np.uint8)}, r"fc1_scales has shape \[3,192,4\], expected \[3,192,2\]"),
    "zero points": ("fp4", {}, {"fc1_zero_points": np.ones((3, 192, 1), np.uint8)}, "fc1_zero_points"),
    "fp8 scales": ("fp8", {}, {"fc1_scales": np.ones((3, 12, 4), np.float32)}, "fc1_scales .* needs block_size"),
    "fp8 weights": ("fp8", {}, {"fc1_experts_weights": np.zeros((3, 64, 192), np.uint8)}, "fc1_experts_weights has shape"),
    "activations": ("nvfp4", {}, {"fc1_act_scale": np.ones(1, np.float32)}, "input 17"),
    "fc3": (
        "nvfp4",
        {"activation_type": "silu", "swiglu_fusion": 0},
        {"fc3_experts_weights": np.zeros((3, 64, 48), np.uint8), "fc3_scales": np.zeros((3, 96, 4), np.uint8)},
        "fc1|fc3",
    ),
}


@pytest.mark.parametrize("name", REJECTED)
def test_rejected(name):
    kind, attributes, changes, text = REJECTED[name]
    named = random_node(np.random.default_rng(0), kind) | changes
    named = {n: a for n, a in named.items() if a is not None}
    with pytest.raises(hotset.InvalidModel, match=text):
        run(named, {"k": 2, **SWIGLU, "quant_type": kind, **attributes})


def test_bounds_are_those_of_integers():
    named = random_node(np.random.default_rng(5), "nvfp4", "bf16", tokens=40)
    attributes = {"k": 2, **SWIGLU, "quant_type": "nvfp4"}
    assert relative_error(run(named, attributes), expected(named, attributes, "bf16")) < BOUND["bf16"]
