# SPDX-License-Identifier: Apache-2.0
"""Routes per expert, the warnings of MoE nodes, and hotset.router_weights_norm."""

import threading

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import hotset
from hotset.generator import model_folder

E, H, INTER = 6, 64, 64


def model(op="MoE", inputs=(), k=2, router_weights=False, rows=INTER, n_nodes=1, **attributes):
    """One or more equal MoE or QMoE nodes on x (n, H) and router logits (n, E); `inputs`: names and arrays of further ones."""
    rng = np.random.default_rng(5)
    if op == "MoE":
        fc1 = {2: rng.standard_normal((E, rows, H)).astype(np.float32), 4: rng.standard_normal((E, H, INTER)).astype(np.float32)}
    else:
        fc1 = {
            2: rng.integers(0, 256, (E, rows, H // 2), np.uint8),
            3: rng.uniform(0.01, 0.02, (E, rows)).astype(np.float32),
            5: rng.integers(0, 256, (E, H, INTER // 2), np.uint8),
            6: rng.uniform(0.01, 0.02, (E, H)).astype(np.float32),
        }
    constants = fc1 | dict(inputs)
    n_inputs = max([*constants, 14 if router_weights else 0]) + 1
    nodes, initializers = [], [numpy_helper.from_array(array, f"i{i}") for i, array in constants.items()]
    graph_inputs = [("x", ["n", H]), ("logits", ["n", E])] + ([("router_weights", ["n", E])] if router_weights else [])
    for node in range(n_nodes):
        names = ["x" if node == 0 else f"y{node - 1}", "logits"] + [f"i{i}" if i in constants else "" for i in range(2, n_inputs)]
        if router_weights:
            names[14] = "router_weights"
        nodes.append(helper.make_node(op, names, [f"y{node}"], f"layer{node}", domain="com.microsoft", k=k, **attributes))
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in graph_inputs],
        [helper.make_tensor_value_info(f"y{n_nodes - 1}", TensorProto.FLOAT, ["n", H])],
        initializers,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def open_session(*arguments, entries=(), **attributes):
    messages = []
    options = hotset.SessionOptions()
    options.set_log(lambda level, text: messages.append(text))
    for key, value in entries:
        options.add_session_config_entry(key, value)
    return hotset.InferenceSession(model(*arguments, **attributes), options), messages


def feed(n, seed=0):
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((n, H)).astype(np.float32), "logits": rng.standard_normal((n, E)).astype(np.float32)}


def chosen(logits, k):
    return np.bincount(np.argsort(-logits, axis=1, kind="stable")[:, :k].reshape(-1), minlength=E)


@pytest.mark.parametrize("op", ["MoE", "QMoE"])
@pytest.mark.parametrize("n", [1, 3, 100])
def test_routes(op, n):
    session, _ = open_session(op, n_nodes=2)
    expected = np.zeros(E, int)
    for seed in range(3):
        x = feed(n, seed)
        session.run(None, x)
        expected += chosen(x["logits"], 2)
    layers = session.expert_stats()
    assert [layer["node"] for layer in layers] == ["layer0", "layer1"]
    for layer in layers:
        assert layer["routes"] == expected.tolist() and layer["routes_total"] == 3 * n * 2
        assert (layer["op"], layer["experts"], layer["experts_per_token"]) == (op, E, 2)


def test_runs_that_fail_do_not_count():
    session, _ = open_session(n_nodes=2)
    x = feed(4)
    session.run(None, x)
    before = session.expert_stats()
    cancelled = hotset.RunOptions()
    cancelled.terminate = True
    with pytest.raises(hotset.Cancelled):
        session.run(None, x, cancelled)
    binding = session.io_binding()
    for name, array in x.items():
        binding.bind_cpu_input(name, array)
    binding.bind_ortvalue_output("y1", hotset.OrtValue(np.zeros(3, np.float32)))
    with pytest.raises(hotset.InvalidArgument):
        session.run_with_iobinding(binding)
    assert session.expert_stats() == before
    session.run(None, x)
    assert session.expert_stats()[0]["routes_total"] == 2 * before[0]["routes_total"]


def test_runs_at_once():
    session, _ = open_session()
    x = feed(5)

    def work():
        for _ in range(40):
            session.run(None, x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert session.expert_stats()[0]["routes"] == (chosen(x["logits"], 2) * 160).tolist()


def test_routes_of_the_demo_model():
    with hotset.Generator("demo") as generator:
        tokens = list(generator.stream_ids([1, 2, 3], 8))
        layers = generator.session.expert_stats()
        fed = 3 + generator.stats.new_tokens - 1
        assert len(tokens) <= 8 and len(layers) == 4
        assert all(layer["routes_total"] == fed * layer["experts_per_token"] == sum(layer["routes"]) for layer in layers)
    assert hotset.InferenceSession(model_folder("demo") / "model.onnx").expert_stats()[0]["routes_total"] == 0


F32 = np.float32
WARNINGS = [
    ("QMoE", {"use_sparse_mixer": 1}, "sparse mixer"),
    ("QMoE", {}, "raw or prepacked"),
    ("QMoE", {"weights_prepacked": 0}, None),
    ("MoE", {"activation_type": "swiglu", "rows": 2 * INTER}, "interleaved"),
    ("MoE", {"activation_type": "swiglu", "rows": 2 * INTER, "swiglu_fusion": 1}, None),
    ("MoE", {"activation_type": "silu", "inputs": {6: np.ones((E, INTER, H), F32), 7: np.ones((E, INTER), F32)}}, "fc3_experts_bias"),
    ("MoE", {"activation_type": "silu", "inputs": {6: np.ones((E, INTER, H), F32)}}, None),
    ("MoE", {"use_sparse_mixer": 1}, None),
]


@pytest.mark.parametrize(("op", "attributes", "word"), WARNINGS)
def test_warnings(op, attributes, word):
    if op == "QMoE" and "use_sparse_mixer" in attributes:
        attributes = attributes | {"weights_prepacked": 0}
    _, messages = open_session(op, n_nodes=3, **attributes)
    if word is None:
        assert messages == []
    else:
        (message,) = messages  # once, for the first of three nodes
        assert word in message and "layer0" in message


def test_prepacked_fp8_warns():
    weights = {2: np.zeros((E, INTER, H), np.uint8), 5: np.zeros((E, H, INTER), np.uint8)}
    scales = {15: np.ones(E, F32), 16: np.ones(E, F32)}
    node = model("QMoE", weights | scales, quant_type="fp8", expert_weight_bits=8, weights_prepacked=1)
    proto = onnx.load_model_from_string(node)
    for name in (3, 6):
        proto.graph.node[0].input[name] = ""
    messages = []
    options = hotset.SessionOptions()
    options.set_log(lambda level, text: messages.append(text))
    hotset.InferenceSession(proto.SerializeToString(), options)
    assert len(messages) == 1 and "weights_prepacked 1 is ignored" in messages[0]


def test_router_weights_norm():
    x = feed(3)
    weights = {"router_weights": np.random.default_rng(1).uniform(0.1, 1, (3, E)).astype(np.float32)}
    arguments = {"router_weights": True, "weights_prepacked": 0, "k": 2}
    plain, _ = open_session("QMoE", **arguments)
    divided, _ = open_session("QMoE", normalize_routing_weights=1, **arguments)
    kept, _ = open_session("QMoE", normalize_routing_weights=1, entries=[("hotset.router_weights_norm", "0")], **arguments)
    (a,), (b,), (c,) = (session.run(None, x | weights) for session in (plain, divided, kept))
    np.testing.assert_array_equal(c, a)
    ids = np.argsort(-x["logits"], axis=1, kind="stable")[:, :2]
    sums = np.take_along_axis(weights["router_weights"], ids, 1).sum(1, keepdims=True)
    np.testing.assert_allclose(b, a / sums, rtol=1e-5, atol=1e-6 * np.abs(a).max())
    # Without router_weights the option changes nothing.
    softmax = {"weights_prepacked": 0, "normalize_routing_weights": 1}
    results = [open_session("QMoE", entries=[("hotset.router_weights_norm", v)], **softmax)[0].run(None, x)[0] for v in "01"]
    np.testing.assert_array_equal(*results)
