# SPDX-License-Identifier: Apache-2.0
"""MoE and QMoE against onnxruntime's CPU kernels, where both follow the same rules.

Its raw kernels take the softmax over the chosen experts, as ours does with normalize_routing_weights 1; ties, gelu and dropped
weights differ. Its prepacked and 3-bit kernel routes as ours and rounds as a device does.
"""

import numpy as np
import pytest

from ops.test_moe import moe_inputs
from ops.test_qmoe import SWIGLU, positional, random_node
from ops.weight_node import relative_error, run_node, run_onnxruntime


@pytest.mark.parametrize("activation", ["relu", "silu", "identity", "swiglu"])
@pytest.mark.parametrize("normalize", [0, 1])
def test_moe(activation, normalize):
    inputs = moe_inputs(np.random.default_rng(1), experts=8, hidden=64, inter=48, tokens=(9,), rows=2 if activation == "swiglu" else 1)
    attributes = {"k": 3, "activation_type": activation, "normalize_routing_weights": normalize}
    if activation == "swiglu":
        attributes |= {"swiglu_fusion": 1, "swiglu_limit": 1.0, "activation_alpha": 1.702, "activation_beta": 1.0}
    assert relative_error(run_node("MoE", inputs, attributes), run_onnxruntime("MoE", inputs, attributes)) < 2e-6


@pytest.mark.parametrize(
    ("bits", "block", "options"),
    [
        (4, 32, {}),
        (4, 64, {"asymmetric": True}),
        (4, 0, {}),
        (4, 0, {"asymmetric": True}),
        (2, 16, {}),
        (2, 32, {"asymmetric": True}),
        (8, 0, {}),
        (8, 0, {"asymmetric": True}),
    ],
)
@pytest.mark.parametrize("dt", ["f32", "f16"])
def test_raw(bits, block, options, dt):
    named = random_node(np.random.default_rng(2), dt, experts=5, hidden=64, inter=96, tokens=(9,), bits=(bits,) * 3, block=block, **options)
    attributes = {"k": 3, **SWIGLU, "expert_weight_bits": bits, "normalize_routing_weights": 1, "swiglu_limit": 2.0}
    if block:
        attributes["block_size"] = block
    inputs = positional(named)
    assert (
        relative_error(run_node("QMoE", inputs, attributes), run_onnxruntime("QMoE", inputs, attributes)) < {"f32": 4e-6, "f16": 1.5e-3}[dt]
    )


def test_raw_last_block_is_short():
    named = random_node(np.random.default_rng(3), hidden=80, inter=40, tokens=(9,), block=32)
    attributes = {"k": 2, **SWIGLU, "block_size": 32, "normalize_routing_weights": 1}
    inputs = positional(named)
    assert relative_error(run_node("QMoE", inputs, attributes), run_onnxruntime("QMoE", inputs, attributes)) < 4e-6


@pytest.mark.parametrize("normalize", [0, 1])
@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("dt", ["f32", "f16"])
def test_prepacked(bits, dt, normalize):
    rng = np.random.default_rng(4)
    named = random_node(rng, dt, experts=5, hidden=128, inter=64, tokens=(9,), bits=(bits,) * 3, prepacked=True)
    attributes = {
        "k": 3,
        **SWIGLU,
        "expert_weight_bits": bits,
        "block_size": 32,
        "normalize_routing_weights": normalize,
        "weights_prepacked": 1,
    }
    inputs = positional(named)
    bound = {"f32": 4e-6, "f16": 2e-3}[dt]  # float16: it rounds weights and activations too
    assert relative_error(run_node("QMoE", inputs, attributes), run_onnxruntime("QMoE", inputs, attributes)) < bound


def test_3_bits():
    named = random_node(np.random.default_rng(5), "f16", hidden=64, inter=96, tokens=(9,), bits=(3, 3, 3))
    attributes = {"k": 2, **SWIGLU, "expert_weight_bits": 3, "block_size": 32, "normalize_routing_weights": 0, "weights_prepacked": 0}
    named["fc1_scales"], named["fc2_scales"] = np.abs(named["fc1_scales"]), np.abs(named["fc2_scales"])
    inputs = positional(named)
    assert relative_error(run_node("QMoE", inputs, attributes), run_onnxruntime("QMoE", inputs, attributes)) < 2e-3


def test_ties_go_to_the_lower_expert_when_prepacked():
    named = random_node(np.random.default_rng(6), experts=6, hidden=64, inter=64, tokens=(3,), prepacked=True)
    named["router_probs"][:] = [[1, 1, 1, 1, 1, 1], [0, 2, 1, 2, 1, 2], [0, 0, 5, 0, 0, 5]]
    attributes = {"k": 2, **SWIGLU, "block_size": 32, "weights_prepacked": 1}
    inputs = positional(named)
    assert relative_error(run_node("QMoE", inputs, attributes), run_onnxruntime("QMoE", inputs, attributes)) < 4e-6
