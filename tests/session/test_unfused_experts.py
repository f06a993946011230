# SPDX-License-Identifier: Apache-2.0
"""Experts that a file spells out in ordinary operators: found by their router, counted and measured; nothing else is taken for them."""

import pathlib

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import hotset

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
H, INTER = 32, 16


def model(nodes, constants, outputs=("y",)):
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", H])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()


def found(*arguments):
    with hotset.InferenceSession(model(*arguments)) as session:
        session.run(None, {"x": np.ones((3, H), np.float32)})
        return session.plan()["unfused_experts"]


def router(n_experts, k):
    constants = {"router": np.eye(H, n_experts, dtype=np.float32), "k": np.array([k], np.int64), "last": np.array([-1], np.int64)}
    nodes = [
        helper.make_node("MatMul", ["x", "router"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["scores"], axis=-1),
        helper.make_node("TopK", ["scores", "k"], ["weights", "chosen"], "top", axis=-1),
    ]
    return nodes, constants


def masked(n_experts, k, shared_bias=False, output_of=None):
    """relu(x up_e) down_e (+ a bias that all experts share), weighted where Equal(chosen, e) says so, summed."""
    nodes, constants = router(n_experts, k)
    constants["bias"] = np.ones(H, np.float32)
    total = None
    for e in range(n_experts):
        constants |= {f"up{e}": np.ones((H, INTER), np.float32), f"down{e}": np.ones((INTER, H), np.float32), f"e{e}": np.array(e)}
        result = f"biased{e}" if shared_bias else f"result{e}"
        nodes += [
            helper.make_node("MatMul", ["x", f"up{e}"], [f"inner{e}"]),
            helper.make_node("Relu", [f"inner{e}"], [f"active{e}"]),
            helper.make_node("MatMul", [f"active{e}", f"down{e}"], [f"result{e}"]),
            *([helper.make_node("Add", [f"result{e}", "bias"], [result])] if shared_bias else []),
            helper.make_node("Equal", ["chosen", f"e{e}"], [f"mask{e}"]),
            helper.make_node("Cast", [f"mask{e}"], [f"number{e}"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["weights", f"number{e}"], [f"masked{e}"]),
            helper.make_node("ReduceSum", [f"masked{e}", "last"], [f"weight{e}"]),
            helper.make_node("Mul", [result, f"weight{e}"], [f"part{e}"]),
        ]
        if total is not None:
            nodes.append(helper.make_node("Add", [total, f"part{e}"], [f"sum{e}"]))
        total = f"part{e}" if total is None else f"sum{e}"
    return [*nodes, helper.make_node("Identity", [total], ["y"])], constants


@pytest.mark.parametrize(("n_experts", "k"), [(2, 1), (5, 2)])
@pytest.mark.parametrize("shared_bias", [False, True])
def test_masked(n_experts, k, shared_bias):
    (layer,) = found(*masked(n_experts, k, shared_bias))
    one = 2 * H * INTER * 4 + 8  # the matrices, and its number as int64
    assert layer == {
        "router": "top",
        "form": "masked",
        "experts": n_experts,
        "experts_per_token": k,
        "nodes": n_experts * (9 if shared_bias else 8),
        "bytes": n_experts * one,
        "bytes_per_expert": one,
    }


def test_a_matrix_that_experts_share_belongs_to_none():
    nodes, constants = masked(3, 1)
    for node in nodes:
        node.input[:] = ["down0" if name == "down2" else name for name in node.input]
    del constants["down2"]
    (layer,) = found(nodes, constants)
    assert layer["bytes"] == 3 * (H * INTER * 4 + 8) + H * INTER * 4


def test_an_exported_model():
    path = GOLDEN / "qwen3_moe-mobius-int4-cpu" / "model.onnx"
    layers = hotset.plan(path)["unfused_experts"]
    assert [(row["form"], row["experts"], row["experts_per_token"], row["nodes"]) for row in layers] == [("masked", 8, 2, 88)] * 2
    for i, row in enumerate(layers):
        named = [t for t in onnx.load(path, load_external_data=False).graph.initializer if f"layers.{i}.mlp.experts." in t.name]
        weights = sum(int(np.prod(t.dims)) * helper.tensor_dtype_to_np_dtype(t.data_type).itemsize for t in named)
        assert weights > 0 and row["bytes"] == weights and row["bytes_per_expert"] == weights // 8


def test_models_with_moe_nodes_have_none():
    for name in ("gpt_oss-genai-int4-cpu", "qwen3_moe-transformers-fp16-cuda"):
        plan = hotset.plan(GOLDEN / name / "model.onnx")
        assert plan["experts"] and plan["unfused_experts"] == []


def test_gathered():
    """Weights of the chosen experts as (tokens, k, H, INTER), multiplied one by one."""
    nodes, constants = router(4, 2)
    constants |= {"up": np.ones((4, H, INTER), np.float32), "down": np.ones((4, INTER, H), np.float32), "flat": np.array([-1], np.int64)}
    constants |= {"rows": np.array([-1, 2, 1, H], np.int64), "shape": np.array([-1, 2], np.int64), "bias": np.ones((4, H), np.float32)}
    nodes += [
        helper.make_node("Reshape", ["chosen", "flat"], ["list"]),
        helper.make_node("Reshape", ["list", "shape"], ["again"]),
        helper.make_node("Gather", ["up", "again"], ["ups"]),
        helper.make_node("Gather", ["down", "again"], ["downs"]),
        helper.make_node("Gather", ["bias", "chosen"], ["biases"]),
        helper.make_node("Expand", ["x", "one"], ["same"]),
        helper.make_node("Unsqueeze", ["same", "axes"], ["wide"]),
        helper.make_node("MatMul", ["wide", "ups"], ["inner"]),
        helper.make_node("MatMul", ["inner", "downs"], ["outer"]),
        helper.make_node("ReduceSum", ["outer"], ["sum"]),
        helper.make_node("ReduceSum", ["biases"], ["offset"]),
        helper.make_node("Add", ["sum", "offset"], ["y"]),
    ]
    constants |= {"one": np.array([1, 1], np.int64), "axes": np.array([1, 2], np.int64)}
    del constants["rows"]
    (layer,) = found(nodes, constants)
    assert layer["form"] == "gathered" and (layer["experts"], layer["experts_per_token"], layer["nodes"]) == (4, 2, 2)
    assert layer["bytes"] == 2 * 4 * H * INTER * 4 and layer["bytes_per_expert"] == 2 * H * INTER * 4


def test_a_top_k_without_experts():
    nodes, constants = router(6, 2)
    constants |= {"zero": np.array(0), "table": np.ones((6, H), np.float32)}
    nodes += [
        helper.make_node("Equal", ["chosen", "zero"], ["is_zero"]),
        helper.make_node("Cast", ["is_zero"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Gather", ["table", "chosen"], ["rows"]),
        helper.make_node("ReduceSum", ["number"], ["count"]),
        helper.make_node("Mul", ["rows", "count"], ["y"]),
    ]
    assert found(nodes, constants) == []
