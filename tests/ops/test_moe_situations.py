# SPDX-License-Identifier: Apache-2.0
"""MoE and QMoE in every layout: sizes that no vector width likes, experts with no row, one row and all rows, rows that are no numbers."""

import numpy as np
import pytest

import hotset
from ops import test_qmoe as integers
from ops import test_qmoe_float_kinds as floats
from ops.test_qmoe import SWIGLU
from ops.weight_node import NUMPY, relative_error, run_node
from reference import moe as reference

EXPERTS, K = 5, 2
SWIGLU_ARGUMENTS = {"kind": "swiglu", "fusion": 1}


def dense(rng, dt, hidden, inter, tokens):
    def array(*shape):
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(NUMPY[dt])

    inputs = [array(tokens, hidden), None, array(EXPERTS, 2 * inter, hidden), array(EXPERTS, 2 * inter)]
    return [*inputs, array(EXPERTS, hidden, inter), array(EXPERTS, hidden)]


def integer(bits, dt="f32", **more):
    def make(rng, hidden, inter, tokens):
        named = integers.random_node(rng, dt, EXPERTS, hidden, inter, (tokens,), (bits,) * 3, **more)
        block = more.get("block", 32)
        attributes = {"expert_weight_bits": bits, "block_size": block, "weights_prepacked": int(more.get("prepacked", False))}
        return "QMoE", integers.positional(named), attributes, lambda n, a: integers.expected(n, a, dt), named

    return make, dt


def small_float(kind, dt="f32", by_k=False, block=0):
    def make(rng, hidden, inter, tokens):
        named = floats.random_node(rng, kind, dt, EXPERTS, hidden, inter, tokens, by_k, block)
        attributes = {"quant_type": kind, "weights_prepacked": int(by_k), "block_size": block or -1}
        attributes["expert_weight_bits"] = 8 if kind == "fp8" else 4
        return "QMoE", floats.positional(named), attributes, lambda n, a: floats.expected(n, a, dt), named

    return make, dt


def plain(dt):
    def make(rng, hidden, inter, tokens):
        inputs = dense(rng, dt, hidden, inter, tokens)
        names = ["input", "router_probs", "w1", "b1", "w2", "b2"]

        def expected(named, attributes):
            a = {n: None if v is None else np.asarray(v, np.float32) for n, v in named.items()}
            x, logits, w1, b1, w2, b2 = (a[n] for n in names)
            return reference.moe(x, logits, w1, w2, K, b1=b1, b2=b2, normalize=True, dt=dt, rounding="cpu", **SWIGLU_ARGUMENTS)

        return "MoE", inputs, {}, expected, dict(zip(names, inputs, strict=True))

    return make, dt


LAYOUTS = {
    "dense float": plain("f32"),
    "dense float16": plain("f16"),
    "dense bfloat16": plain("bf16"),
    "2 bits": integer(2, block=32),
    "2 bits, zero points": integer(2, block=16, asymmetric=True),
    "3 bits": integer(3, block=32),
    "4 bits": integer(4, block=32),
    "4 bits, float16, zero points": integer(4, "f16", block=128, asymmetric=True),
    "4 bits, a scale a row": integer(4, block=0, asymmetric=True),
    "8 bits": integer(8, block=64, asymmetric=True),
    "2 bits prepacked": integer(2, block=32, prepacked=True),
    "4 bits prepacked": integer(4, block=32, prepacked=True),
    "4 bits prepacked, bfloat16": integer(4, "bf16", block=64, prepacked=True),
    "8 bits prepacked": integer(8, block=64, prepacked=True),
    "MXFP4": small_float("fp4"),
    "MXFP4 along K": small_float("fp4", by_k=True),
    "NVFP4": small_float("nvfp4"),
    "NVFP4 along K, bfloat16": small_float("nvfp4", "bf16", by_k=True),
    "FP8": small_float("fp8"),
    "FP8 squares": small_float("fp8", block=128),
}
SIZES = [(2880, 96), (96, 2880), (160, 1408), (1536, 160)]
SIZES_PREPACKED = [(2880, 192), (192, 2880), (64, 1408), (1536, 320)]


def crowd(rng, tokens):
    """Logits by which expert 2 gets every row, expert 0 one, expert 4 none, and the rest share."""
    logits = rng.uniform(-1, 1, (tokens, EXPERTS))
    logits[:, 2] = 3
    logits[:, 4] = -9
    logits[:, 0] = -3
    logits[tokens // 2, 0] = 2
    return logits


def case(layout, hidden, inter, tokens, seed=0):
    make, dt = LAYOUTS[layout]
    rng = np.random.default_rng(seed)
    op, inputs, attributes, expected, named = make(rng, hidden, inter, tokens)
    inputs[1] = named["router_probs"] = crowd(rng, tokens).astype(NUMPY[dt])
    attributes = {"k": K, "normalize_routing_weights": 1, **SWIGLU, **attributes}
    return op, inputs, attributes, expected, named, dt


def sizes_of(layout):
    return SIZES_PREPACKED if "prepacked" in layout else SIZES


@pytest.mark.parametrize(("layout", "size"), [(layout, size) for layout in LAYOUTS for size in sizes_of(layout)])
def test_odd_sizes_and_crowded_experts(layout, size):
    """21 rows as described, then the one row that has expert 0 alone, and two rows."""
    op, inputs, attributes, expected, named, dt = case(layout, *size, 21)
    ids = np.argsort(-np.asarray(inputs[1], np.float64), axis=1, kind="stable")[:, :K]
    counts = np.bincount(ids.reshape(-1), minlength=EXPERTS)
    assert (counts[0], counts[2], counts[4]) == (1, 21, 0)
    reference_rows = expected(named, attributes)
    for rows in (range(21), [10], [0, 20]):
        part = [inputs[0][list(rows)], inputs[1][list(rows)], *inputs[2:]]
        assert relative_error(run_node(op, part, attributes, activation="float"), reference_rows[list(rows)]) < integers.BOUND[dt]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("tokens", [3, 40])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_row_that_is_no_number_stays_alone(layout, tokens, value):
    op, inputs, attributes, _, _, _ = case(layout, 192, 64, tokens)
    activations = ["float"] if op == "MoE" else ["float", "int8"]
    clean = [run_node(op, inputs, attributes, activation=activation) for activation in activations]
    inputs[0] = inputs[0].copy()
    inputs[0][1, 7] = value
    for activation, y in zip(activations, clean, strict=True):
        spoilt = run_node(op, inputs, attributes, activation=activation)
        np.testing.assert_array_equal(np.delete(spoilt, 1, 0), np.delete(y, 1, 0))
        assert np.isfinite(y.astype(np.float32)).all()
        if activation == "float":
            assert not np.isfinite(spoilt[1].astype(np.float32)).any()


@pytest.mark.parametrize("dt", ["f32", "f16", "bf16"])
def test_ties_equal_logits_and_every_expert(dt):
    """Equal logits: the lower experts, with equal weights; k = E takes all of them."""
    rng = np.random.default_rng(1)
    named = integers.random_node(rng, dt, EXPERTS, 64, 32, (4,))
    named["router_probs"] = np.zeros((4, EXPERTS), NUMPY[dt])
    for k in (1, 3, EXPERTS):
        attributes = {"k": k, **SWIGLU, "block_size": 32}
        y = integers.run(named, attributes, activation="float")
        assert relative_error(y, integers.expected(named, attributes, dt)) < integers.BOUND[dt]


REFUSED = {
    "3 bits prepacked": (
        {"bits": (3, 3, 3)},
        {"expert_weight_bits": 3, "weights_prepacked": 1},
        "fc2_experts_weights holds 3-bit codes, which cannot be prepacked",
    ),
    "K that cannot be prepacked": (
        {"hidden": 96, "inter": 64},
        {"weights_prepacked": 1},
        "fc1_experts_weights with N 128 and K 96 cannot be prepacked: K must be a multiple of 64 and N of 4",
    ),
    "N that cannot be prepacked": (
        {"hidden": 64, "inter": 66, "fused": False},
        {"weights_prepacked": 1, "activation_type": "silu"},
        "K must be a multiple of 64 and N of 4",
    ),
    "declared prepacked, but cannot be": (
        {"hidden": 96, "inter": 64, "declare_prepacked": True},
        {},
        "fc1_experts_weights with N 128 and K 96 cannot be prepacked",
    ),
    "fractional zero points": ({}, {"zero_point_offset": 0.5}, "zero_point_offset"),
    "shared experts": ({}, {"num_shared_experts": 1}, "num_shared_experts"),
    "float zero points": ({"asymmetric": True, "float_zeros": True}, {}, r"fc1_zero_points \(input 11\) is float, expected uint8"),
    "no scales": ({"drop": "fc2_scales"}, {}, r"input 6 \(scales\) is missing"),
    "FC3 without scales": ({"fc3": True, "drop": "fc3_scales"}, {"swiglu_fusion": 0}, r"fc3_scales \(input 9\) is missing"),
    "gate and value in FC1, and FC3": ({"fc3": True}, {}, "FC1 holds gate and value"),
    "geglu with FC3": ({"fc3": True}, {"activation_type": "geglu"}, "geglu takes no fc3_experts_weights"),
    "a scale too many": ({"block": 0, "extra_block": True}, {"block_size": 0}, r"fc1_scales has shape \[4,128,2\], expected \[4,128\]"),
    "one scale for many blocks": ({"block": 0, "extra_axis": True}, {"block_size": 32}, r"fc1_scales has shape \[4,128,1\]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_nodes(name):
    """Refused when the model is loaded, with the node's name."""
    arguments, attributes, text = REFUSED[name]
    arguments = dict(arguments)
    extras = {key: arguments.pop(key, None) for key in ("drop", "declare_prepacked", "float_zeros", "extra_block", "extra_axis")}
    named = integers.random_node(np.random.default_rng(0), **arguments)
    if extras["drop"]:
        named.pop(extras["drop"])
    if extras["declare_prepacked"]:
        for i, shape in ((1, (4, 96, 64)), (2, (4, 64, 48))):
            named[f"fc{i}_experts_weights"] = named[f"fc{i}_experts_weights"].reshape(shape)
    if extras["float_zeros"]:
        named["fc1_zero_points"] = named["fc1_zero_points"].astype(np.float32)
    if extras["extra_block"]:
        named["fc1_scales"] = np.stack([named["fc1_scales"]] * 2, -1)
    if extras["extra_axis"]:
        named["fc1_scales"] = named["fc1_scales"][..., None]
    with pytest.raises(hotset.Error, match=text) as error:
        integers.run(named, {"k": 2, **SWIGLU, "block_size": 32, **attributes})
    assert "'node' (QMoE)" in str(error.value) and error.type in (hotset.InvalidModel, hotset.Unsupported)


ACT_SCALES = {
    "type": (np.ones(3, np.float16), r"fc1_act_scale \(input 17\) is float16 \[3\], expected float \[1\] or \[3\]"),
    "shape": (np.ones(2, np.float32), r"fc1_act_scale \(input 17\) is float \[2\], expected float \[1\] or \[3\]"),
    "rank": (np.ones((3, 1), np.float32), r"fc1_act_scale \(input 17\) is float \[3,1\]"),
}


@pytest.mark.parametrize("kind", ["fp8", "wfp4afp8"])
def test_scales_of_activations(kind):
    """Checked, and of no use to kernels that do not quantise activations."""
    named = floats.random_node(np.random.default_rng(7), "fp8" if kind == "fp8" else "fp4")
    attributes = {"k": 2, **SWIGLU, "quant_type": kind, "expert_weight_bits": 8 if kind == "fp8" else 4}
    y = floats.run(named, attributes)
    for scale in (np.ones(1, np.float32), np.full(3, 0.5, np.float32)):
        assert np.array_equal(y, floats.run(named | {"fc1_act_scale": scale, "fc2_act_scale": scale}, attributes))
    for wrong, text in ACT_SCALES.values():
        with pytest.raises(hotset.InvalidModel, match=text):
            floats.run(named | {"fc1_act_scale": wrong}, attributes)


def test_router_inputs_of_any_rank():
    """What counts are as many rows of E numbers as there are tokens."""
    named = integers.random_node(np.random.default_rng(3), experts=4, tokens=(1,), given_weights=True)
    attributes = {"k": 2, **SWIGLU, "block_size": 32}
    y = integers.run(named, attributes)
    for shape in ((4,), (1, 1, 4), (1, 1, 1, 4)):
        reshaped = named | {name: named[name].reshape(shape) for name in ("router_probs", "router_weights")}
        assert np.array_equal(y, integers.run(reshaped, attributes))
    with pytest.raises(hotset.InvalidModel, match="expected 1 rows of 4 experts"):
        integers.run(named | {"router_probs": np.zeros((4, 1), np.float32)}, attributes)
