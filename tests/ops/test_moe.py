# SPDX-License-Identifier: Apache-2.0
"""com.microsoft::MoE against the float64 reference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hotset
from ops.weight_node import NUMPY, relative_error, run_node
from reference import moe as reference

BOUND = {"f32": 2e-6, "f16": 1e-3, "bf16": 8e-3}  # relative L2: sums of float32, then one rounding step


def moe_inputs(rng, dt="f32", experts=4, hidden=24, inter=20, tokens=(5,), rows=1, fc3=False, biases=True):
    """Inputs 0-7 of the operator; `rows`: FC1 rows a feature."""
    draw = lambda *shape: (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(NUMPY[dt])  # noqa: E731
    bias = lambda n: draw(experts, n) if biases else None  # noqa: E731
    return [
        rng.standard_normal((*tokens, hidden)).astype(NUMPY[dt]),
        rng.standard_normal((int(np.prod(tokens)), experts)).astype(NUMPY[dt]),
        draw(experts, rows * inter, hidden),
        bias(rows * inter),
        draw(experts, hidden, inter),
        bias(hidden),
        draw(experts, inter, hidden) if fc3 else None,
        bias(inter) if fc3 else None,
    ]


def expected(inputs, attributes, dt="f32"):
    f = [None if a is None else np.asarray(a, np.float32) for a in inputs]
    return reference.moe(
        f[0],
        f[1],
        f[2],
        f[4],
        attributes.get("k", 1),
        dt=dt,
        b1=f[3],
        b2=f[5],
        W3=f[6],
        b3=f[7],
        normalize=attributes.get("normalize_routing_weights", 0),
        sparse_mixer=attributes.get("use_sparse_mixer", 0),
        rounding="cpu",
        **reference.activation_arguments(attributes),
    )


GOLDEN_X = np.array([[1, -2, 0.5, 0], [0.25, 1, -1, 2]], np.float32)
GOLDEN_LOGITS = np.array([[2, 1, 0], [0, 0, 3]], np.float32)  # the second row's tie goes to the lower expert


def golden_weights():
    e, h, i = 3, 4, 2
    w1 = ((np.arange(e * 2 * i * h) % 7 - 3) / 4).astype(np.float32).reshape(e, 2 * i, h)
    w2 = ((np.arange(e * h * i) % 5 - 2) / 2).astype(np.float32).reshape(e, h, i)
    b1 = ((np.arange(e * 2 * i) % 3 - 1) / 8).astype(np.float32).reshape(e, 2 * i)
    b2 = ((np.arange(e * h) % 4) / 16).astype(np.float32).reshape(e, h)
    return w1, b1, w2, b2


FUSED_2 = [[-0.016981, 0.108434, -0.010596, 0.129594], [0.086145, -0.021224, 0.290027, 0.188710]]
GOLDEN = {
    "swiglu": (
        {"activation_type": "swiglu", "swiglu_fusion": 1},
        [[0.013220, 0.056554, 0.177669, 0.144818], [-0.017191, 0.362074, -0.018648, 0.321617]],
    ),
    "swiglu without fusion attribute": (
        {"activation_type": "swiglu"},
        [[0.013220, 0.056554, 0.177669, 0.144818], [-0.017191, 0.362074, -0.018648, 0.321617]],
    ),
    "swiglu normalised": (
        {"activation_type": "swiglu", "swiglu_fusion": 1, "normalize_routing_weights": 1},
        [[0.014528, 0.062149, 0.195247, 0.159146], [-0.018006, 0.379246, -0.019532, 0.336870]],
    ),
    "swiglu clamped": (
        {
            "activation_type": "swiglu",
            "swiglu_fusion": 1,
            "normalize_routing_weights": 1,
            "activation_alpha": 1.702,
            "activation_beta": 1.0,
            "swiglu_limit": 1.0,
        },
        [[-0.054244, 0.112163, 0.105392, 0.196661], [0.043303, 0.821398, -0.189495, 0.588601]],
    ),
    "swiglu halves": ({"activation_type": "swiglu", "swiglu_fusion": 2, "normalize_routing_weights": 1}, FUSED_2),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_fused(name):
    attributes, y = GOLDEN[name]
    w1, b1, w2, b2 = golden_weights()
    got = run_node("MoE", [GOLDEN_X, GOLDEN_LOGITS, w1, b1, w2, b2], {"k": 2, **attributes})
    np.testing.assert_allclose(got, y, atol=1.5e-6)


@pytest.mark.parametrize(
    ("activation", "y"),
    [
        ("relu", [[0.571501, -0.223250, 0.410750, -0.384001], [0, 0.0625, 0.125, 0.1875]]),
        ("silu", [[0.558482, -0.232838, 0.491933, -0.338786], [0.144890, -0.072707, 0.385732, 0.192341]]),
        ("gelu", [[0.602836, -0.251816, 0.502953, -0.389540], [0.053455, 0.016698, 0.208951, 0.191327]]),
        ("identity", [[0.691765, -0.326706, 0.684897, -0.417618], [0.810891, -0.721714, 1.666751, 0.200839]]),
    ],
)
def test_golden_plain(activation, y):
    w1, b1, w2, b2 = golden_weights()
    inputs = [GOLDEN_X, GOLDEN_LOGITS, w1[:, :2].copy(), b1[:, :2].copy(), w2, b2]
    got = run_node("MoE", inputs, {"k": 2, "activation_type": activation, "normalize_routing_weights": 1})
    np.testing.assert_allclose(got, y, atol=1.5e-6)


@pytest.mark.parametrize("activation", ["silu", "swiglu"])
def test_golden_separate_fc3(activation):
    w1, b1, w2, b2 = golden_weights()
    gate, value = [a.copy() for a in (w1[:, :2], b1[:, :2])], [a.copy() for a in (w1[:, 2:], b1[:, 2:])]
    inputs = [GOLDEN_X, GOLDEN_LOGITS, *gate, w2, b2, *value]
    got = run_node("MoE", inputs, {"k": 2, "activation_type": activation, "normalize_routing_weights": 1})
    np.testing.assert_allclose(got, FUSED_2, atol=1.5e-6)


@pytest.mark.parametrize("dt", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("tokens", [(1,), (7,), (2, 3), (300,)])
def test_swiglu_types(dt, tokens):
    rng = np.random.default_rng(1)
    inputs = moe_inputs(rng, dt, experts=6, hidden=72, inter=40, tokens=tokens, rows=2)
    attributes = {
        "k": 3,
        "activation_type": "swiglu",
        "swiglu_fusion": 1,
        "swiglu_limit": 2.0,
        "activation_beta": 1.0,
        "normalize_routing_weights": 1,
    }
    got = run_node("MoE", inputs, attributes)
    assert got.dtype == NUMPY[dt]
    assert relative_error(got, expected(inputs, attributes, dt)) < BOUND[dt]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    dt=st.sampled_from(["f32", "f16", "bf16"]),
    activation=st.sampled_from(["relu", "relu2", "gelu", "silu", "identity", "swiglu", "geglu"]),
    fusion=st.integers(0, 2),
    limit_after=st.integers(0, 1),
    shape=st.tuples(st.integers(1, 9), st.integers(1, 70), st.integers(1, 70), st.integers(0, 40)),
    fc3=st.booleans(),
    biases=st.booleans(),
    normalize=st.integers(0, 1),
    legacy=st.booleans(),
    threads=st.integers(1, 3),
)
def test_random(seed, dt, activation, fusion, limit_after, shape, fc3, biases, normalize, legacy, threads):
    rng = np.random.default_rng(seed)
    experts, hidden, inter, tokens = shape
    pair = activation in ("swiglu", "geglu")
    fc3 = fc3 and activation != "geglu"
    if fc3 and pair:
        fusion = 0
    elif activation == "geglu" and fusion == 0:
        fusion = 1
    inputs = moe_inputs(rng, dt, experts, hidden, inter, (tokens,), 2 if pair and not fc3 else 1, fc3, biases)
    attributes = {
        "k": int(rng.integers(1, experts + 1)),
        "activation_type": activation,
        "swiglu_fusion": fusion,
        "normalize_routing_weights": normalize,
    }
    if activation == "swiglu":
        attributes |= {"swiglu_limit": 0.5, "swiglu_limit_after_activation": limit_after, "activation_alpha": 1.7, "activation_beta": 0.5}
    y = expected(inputs, attributes, dt)
    if legacy:  # the same bytes, declared with the last axes swapped
        for i in (2, 4, 6):
            if inputs[i] is not None:
                e, n, k = inputs[i].shape
                inputs[i] = inputs[i].reshape(e, k, n)
    got = run_node("MoE", inputs, attributes, threads=threads)
    assert got.shape == y.shape
    # Near zero a single rounded row is all there is: compare with the size of what was summed.
    scale = max(float(np.abs(y).max(initial=0)), 1e-3)
    np.testing.assert_allclose(np.asarray(got, np.float64), y, rtol=0, atol=scale * {"f32": 2e-5, "f16": 2e-3, "bf16": 1.6e-2}[dt])


def test_one_expert_gets_every_token():
    rng = np.random.default_rng(5)
    inputs = moe_inputs(rng, experts=8, hidden=64, inter=48, tokens=(600,), rows=2)
    inputs[1][:] = 0
    inputs[1][:, 3] = 9
    attributes = {"k": 1, "activation_type": "swiglu", "swiglu_fusion": 1}
    assert relative_error(run_node("MoE", inputs, attributes), expected(inputs, attributes)) < 2e-6


def test_no_tokens():
    inputs = moe_inputs(np.random.default_rng(0), tokens=(0,))
    assert run_node("MoE", inputs, {"k": 1}).shape == (0, 24)


def test_rows_do_not_depend_on_threads():
    rng = np.random.default_rng(6)
    inputs = moe_inputs(rng, experts=8, hidden=64, inter=48, tokens=(33,), rows=2)
    attributes = {"k": 2, "activation_type": "swiglu", "swiglu_fusion": 1}
    one = run_node("MoE", inputs, attributes, threads=1)
    for threads in (2, 3, 5):
        assert np.array_equal(one, run_node("MoE", inputs, attributes, threads=threads))


def test_weights_as_graph_inputs():
    inputs = moe_inputs(np.random.default_rng(7), rows=2)
    attributes = {"k": 2, "activation_type": "swiglu", "swiglu_fusion": 1}
    got = run_node("MoE", inputs, attributes, fed=range(6))
    assert np.array_equal(got, run_node("MoE", inputs, attributes))


def test_sparse_mixer():
    rng = np.random.default_rng(8)
    inputs = moe_inputs(rng, experts=8, tokens=(50,), fc3=True)
    attributes = {"k": 2, "activation_type": "silu", "use_sparse_mixer": 1}
    assert relative_error(run_node("MoE", inputs, attributes), expected(inputs, attributes)) < 2e-6


REJECTED = {
    "unknown activation": ({"activation_type": "tanh"}, "activation_type is 'tanh'"),
    "fusion 3": ({"swiglu_fusion": 3}, "swiglu_fusion is 3"),
    "k 0": ({"k": 0}, "k is 0"),
    "k over experts": ({"k": 5}, "k is 5, but there are 4 experts"),
    "sparse mixer k": ({"use_sparse_mixer": 1, "k": 1}, "use_sparse_mixer 1 needs k 2"),
    "normalize 2": ({"normalize_routing_weights": 2}, "normalize_routing_weights is 2"),
    "geglu unfused": ({"activation_type": "geglu"}, "geglu needs swiglu_fusion"),
    "limit after": ({"swiglu_limit_after_activation": 1}, "needs activation_type swiglu"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_rejected_attributes(name):
    attributes, text = REJECTED[name]
    with pytest.raises(hotset.InvalidModel, match=text) as caught:
        run_node("MoE", moe_inputs(np.random.default_rng(0)), {"k": 1, **attributes})
    assert "'node' (MoE)" in str(caught.value)


def test_rejected_shapes():
    def check(change, text, attributes=None):
        inputs = moe_inputs(np.random.default_rng(0))
        change(inputs)
        with pytest.raises(hotset.InvalidModel, match=text):
            run_node("MoE", inputs, {"k": 1, **(attributes or {})})

    def put(i, shape):
        return lambda inputs: inputs.__setitem__(i, np.zeros(shape, np.float32))

    check(put(2, (4, 21, 24)), r"fc1_experts_weights \(input 2\) has shape \[4,21,24\]")
    check(put(4, (3, 24, 20)), r"fc2_experts_weights \(input 4\) has shape \[3,24,20\]")
    check(put(3, (4, 21)), r"fc1_experts_bias \(input 3\) has shape \[4,21\], expected \[4,20\]")
    check(put(7, (4, 20)), "input 7 belongs to fc3_experts_weights")
    check(put(0, (5, 25)), r"input \(input 0\) has shape \[5,25\], but the experts are for hidden size 24")
    check(put(1, (5, 3)), r"router_probs \(input 1\) has shape \[5,3\], expected 5 rows of 4 experts")
    check(put(2, (4, 20, 24)), r"fc1_experts_weights .* expected \[4,40,24\]", {"activation_type": "swiglu", "swiglu_fusion": 1})
