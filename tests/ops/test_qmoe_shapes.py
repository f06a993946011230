# SPDX-License-Identifier: Apache-2.0
"""com.microsoft::QMoE in the sizes of real models and at their edges, on every instruction set of this machine."""

import functools
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from onnx import TensorProto, helper

import helpers
import hotset
from ops.test_qmoe import NAMES, SWIGLU, expected, positional, random_node, run
from ops.weight_node import relative_error

LEVELS = hotset.doctor()["cpu"]["tiers"]


def on_level(level, cases):
    """Outputs of (named, attributes, activation) with the kernels of one instruction set, in a process of its own."""
    code = (
        "import pickle, sys; sys.path.insert(0, 'tests')\n"
        "import hotset; from ops.test_qmoe import run\n"
        "cases = pickle.load(sys.stdin.buffer)\n"
        "results = [run(named, attributes, activation=activation) for named, attributes, activation in cases]\n"
        "sys.stdout.buffer.write(pickle.dumps((hotset.doctor()['cpu']['level'], results)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(cases), capture_output=True, env=os.environ | {"HOTSET_CPU": level}, timeout=600
    )
    assert done.returncode == 0, done.stderr.decode()
    return pickle.loads(done.stdout)


def sizes(hidden, inter, experts, k, block, tokens, seed, **more):
    named = random_node(np.random.default_rng(seed), experts=experts, hidden=hidden, inter=inter, tokens=(tokens,), block=block, **more)
    bits = more.get("bits", (4, 4, 4))
    attributes = {"k": k, **SWIGLU, "block_size": block, "normalize_routing_weights": 1, "expert_weight_bits": bits[0]}
    return named, attributes


# Hidden sizes that are multiples of 32 but not of 256, odd inner sizes, the largest router.
SIZES = {
    "wide": lambda: sizes(2048, 512, 9, 8, 128, 4, 1),
    "256 experts": lambda: sizes(64, 32, 256, 8, 32, 4, 2),
    "1536": lambda: sizes(1536, 96, 3, 2, 32, 3, 3, asymmetric=True),
    "896": lambda: sizes(896, 308, 2, 1, 64, 2, 4, bits=(8, 8, 8)),
    "2880": lambda: sizes(2880, 96, 2, 2, 32, 2, 5),
    "1408": lambda: sizes(256, 1408, 2, 1, 128, 1, 6),
    "2 bits": lambda: sizes(128, 96, 3, 2, 32, 5, 7, bits=(2, 2, 2), asymmetric=True),
}


@functools.cache
def answers():
    """Of the reference, and of every level this machine has: {level: {(name, activation): output}}."""
    cases = {name: make() for name, make in SIZES.items()}
    results = {"reference": {(name, "float"): expected(*case) for name, case in cases.items()}}
    keys = [(name, activation) for activation in ("float", "int8") for name in cases]
    for level in LEVELS:
        found, outputs = on_level(level, [(*cases[name], activation) for name, activation in keys])
        assert found == level
        results[level] = dict(zip(keys, outputs, strict=True))
    return results


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_agrees_with_the_reference(level):
    for name in SIZES:
        assert relative_error(answers()[level][name, "float"], answers()["reference"][name, "float"]) < 3e-6, name


def test_integer_activations_are_the_same_on_every_level():
    """Products of 8-bit codes are exact sums: levels differ by the rounding of float sums over blocks alone."""
    levels = [results for level, results in answers().items() if level != "reference"]
    for results in levels[1:]:
        for name in SIZES:
            assert relative_error(results[name, "int8"], levels[0][name, "int8"]) < 2e-6, name


@pytest.mark.parametrize("block", [16, 32, 64, 128, 256])
def test_blocks_that_do_not_divide_the_size(block):
    """2880 = 11 * 256 + 64: the last block of a row is short."""
    named, attributes = sizes(2880, 64, 2, 1, block, 2, block)
    assert relative_error(run(named, attributes, activation="float"), expected(named, attributes)) < 3e-6


def test_unusable_block_size_is_refused_when_loading():
    named, attributes = sizes(64, 64, 2, 1, 32, 2, 0)
    for block in (8, 24, 33):
        with pytest.raises(hotset.Error, match=rf"block_size.*{block}") as failure:
            run(named, {**attributes, "block_size": block})
        assert "16" in str(failure.value)  # names what can be used


@pytest.mark.parametrize("tokens", [1, 40])
@pytest.mark.parametrize("asymmetric", [False, True])
def test_large_output_bias_is_added_once_and_weighted(tokens, asymmetric):
    named, attributes = sizes(64, 64, 4, 2, 32, tokens, 8, asymmetric=asymmetric)
    named["fc2_experts_bias"] = (1000.0 * np.arange(1, 5)[:, None] + np.arange(64)).astype(np.float32)
    y = run(named, attributes, activation="float")
    assert relative_error(y, expected(named, attributes)) < 3e-6
    plain = run({**named, "fc2_experts_bias": np.zeros((4, 64), np.float32)}, attributes, activation="float")
    logits = named["router_probs"].astype(np.float64)
    for row in range(tokens):
        chosen = np.argsort(-logits[row], kind="stable")[:2]
        weights = np.exp(logits[row, chosen] - logits[row, chosen].max())
        bias = (weights / weights.sum()) @ named["fc2_experts_bias"][chosen].astype(np.float64)
        np.testing.assert_allclose(y[row].astype(np.float64) - plain[row], bias, rtol=1e-5)


def test_row_counts_in_any_order_on_one_session():
    counts = [*range(1, 18), *range(31, 34), *range(63, 66), *range(127, 130), 0]
    named, attributes = sizes(64, 48, 5, 2, 16, 130, 9)
    whole = run(named, attributes, activation="float")
    order = np.random.default_rng(9).permutation(counts * 2)
    options = hotset.SessionOptions()
    options.intra_op_num_threads = 2
    options.add_session_config_entry("hotset.cpu_activation", "float")
    inputs = positional(named)
    constant = [i for i, array in enumerate(inputs) if array is not None and i > 1]
    model = helpers.node_model("QMoE", inputs, attributes, domain="com.microsoft", constant=constant)
    with hotset.InferenceSession(model, options) as session:
        for n in order:
            (y,) = session.run(None, {"x0": named["input"][:n], "x1": named["router_probs"][:n]})
            np.testing.assert_allclose(y, whole[:n], rtol=0, atol=2e-6 * np.abs(whole).max())


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_logits_that_are_no_numbers_stay_in_their_row(value):
    named, attributes = sizes(64, 32, 4, 2, 32, 5, 10)
    y = run(named, attributes)
    named["router_probs"][2, 1] = value
    other = run(named, attributes)
    assert np.array_equal(np.delete(y, 2, 0), np.delete(other, 2, 0))
    named["router_probs"][2] = value
    assert np.array_equal(np.delete(y, 2, 0), np.delete(run(named, attributes), 2, 0))


def test_a_token_whose_weights_are_all_zero():
    named, attributes = sizes(64, 32, 4, 2, 32, 3, 11, given_weights=True)
    named["router_weights"] = np.abs(named["router_weights"])
    named["router_weights"][1] = 0
    y = run(named, {**attributes, "normalize_routing_weights": 0}, activation="float")
    assert np.array_equal(y[1], np.zeros(64, np.float32)) and np.abs(y[[0, 2]]).max() > 0


def test_left_out_inputs_in_the_middle_and_at_the_end():
    named, attributes = sizes(64, 32, 3, 2, 32, 4, 12, biases=False, asymmetric=True)
    y = run(named, attributes)
    inputs = positional(named)
    constant = [i for i, array in enumerate(inputs) if array is not None and i > 1]
    model = helpers.node_model("QMoE", inputs, attributes, domain="com.microsoft", constant=constant)
    import onnx

    model = onnx.load_from_string(model)
    assert "" in model.graph.node[0].input and len(model.graph.node[0].input) < len(NAMES)
    model.graph.node[0].input.extend([""] * (len(NAMES) - len(model.graph.node[0].input)))
    with hotset.InferenceSession(model.SerializeToString()) as session:
        np.testing.assert_array_equal(session.run(None, {"x0": named["input"], "x1": named["router_probs"]})[0], y)


def test_layers_of_unequal_width_top_k_and_bits():
    """Three layers in one graph: the first is the widest, and no two agree in k, experts, bits or block."""
    layers = [sizes(64, 160, 3, 3, 32, 6, 13, bits=(8, 8, 8)), sizes(64, 32, 6, 1, 16, 6, 14)]
    layers.append(sizes(64, 48, 4, 2, 64, 6, 15, bits=(2, 2, 2)))
    nodes, initializers, inputs = [], [], [helper.make_tensor_value_info("h0", TensorProto.FLOAT, ["n", 64])]
    feeds, hidden = {"h0": layers[0][0]["input"]}, layers[0][0]["input"]
    for i, (named, attributes) in enumerate(layers):
        names = [f"h{i}", f"router{i}"]
        for position, name in enumerate(NAMES[2:]):
            names.append(f"{name}{i}" if name in named else "")
            if name in named:
                initializers.append(helpers.tensor(f"{name}{i}", positional(named)[position + 2]))
        nodes.append(helper.make_node("QMoE", names, [f"h{i + 1}"], domain="com.microsoft", **attributes))
        inputs.append(helper.make_tensor_value_info(f"router{i}", TensorProto.FLOAT, ["n", None]))
        feeds[f"router{i}"] = named["router_probs"]
        hidden = expected({**named, "input": hidden.astype(np.float32)}, attributes)
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("h3", TensorProto.FLOAT, None)], initializers)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    with hotset.InferenceSession(model.SerializeToString()) as session:
        assert relative_error(session.run(None, feeds)[0], hidden) < 1e-5
        assert [row["experts"] for row in session.plan()["experts"]] == [3, 6, 4]
        assert [row["experts_per_token"] for row in session.plan()["experts"]] == [3, 1, 2]
