# SPDX-License-Identifier: Apache-2.0
"""The kernel that the plan names for a node is the one that computes it, on every instruction set."""

import functools
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import helpers
import hotset
from helpers import BF16
from ops.example_calls import CALLS

TIERS = hotset.doctor()["cpu"]["tiers"]
FORCED = [tier for tier in ("scalar", "avx2", "avx512", "neon") if tier in TIERS]

# Runs pickled cases (op, inputs, model arguments) and gives back (kernel, outputs) of each.
CODE = """
import pickle, sys
sys.path[:0] = pickle.load(sys.stdin.buffer)
import helpers, hotset
results = []
for op, inputs, arguments in pickle.load(sys.stdin.buffer):
    session = hotset.InferenceSession(helpers.node_model(op, inputs, **arguments))
    (node,) = session.plan()["nodes"]
    outputs = session.run(None, helpers.feeds(inputs, arguments.get("constant", ())))
    results.append((node["kernel"], [y.tobytes() for y in outputs]))
sys.stdout.buffer.write(pickle.dumps(results))
"""


def numbers(dtype=np.float32, shape=(40, 65)):
    return (np.random.default_rng(1).standard_normal(shape) * 3).astype(dtype)


def cases():
    """name: (operator, inputs, arguments of node_model, whether vector kernels serve it)."""
    x, wide = numbers(), numbers(np.float64)
    table = {}
    for op in ("Exp", "Sigmoid", "Tanh", "Erf", "Gelu", "Relu", "Sqrt"):
        for dtype, vectors in ((np.float32, True), (np.float16, True), (BF16, True), (np.float64, False)):
            table[f"{op} {np.dtype(dtype)}"] = (op, [numbers(dtype)], {}, vectors)
    for op in ("Add", "Sub", "Mul", "Div"):
        for dtype, vectors in ((np.float32, True), (np.float16, True), (BF16, True), (np.float64, False), (np.int64, False)):
            b = numbers(dtype) if np.dtype(dtype).kind != "i" else np.full((40, 65), 3, dtype)
            table[f"{op} {np.dtype(dtype)}"] = (op, [numbers(dtype), b], {}, vectors)
    for op in ("Log", "Sin", "Elu", "Neg", "Softplus", "IsNaN"):
        table[op] = (op, [x], {"output_types": [np.dtype(bool)]} if op == "IsNaN" else {}, False)
    for op in ("Pow", "Max", "Equal"):
        table[op] = (op, [x, x], {"output_types": [np.dtype(bool)]} if op == "Equal" else {}, False)
    for op in ("ReduceSum", "ReduceMean", "ReduceMax", "LpNormalization", "LogSoftmax", "Transpose", "Identity"):
        table[op] = (op, [x], {}, False)
    table["Softmax"] = ("Softmax", [x], {}, True)
    table["Softmax float16"] = ("Softmax", [numbers(np.float16)], {}, True)
    table["Softmax last axis by number"] = ("Softmax", [x], {"attributes": {"axis": 1}}, True)
    table["Softmax first axis"] = ("Softmax", [x], {"attributes": {"axis": 0}}, False)
    table["Softmax flat"] = ("Softmax", [x], {"attributes": {"axis": 0}, "opset": 11}, True)
    table["Softmax double"] = ("Softmax", [wide], {}, False)
    for source, target, vectors in ((np.float32, np.float16, True), (BF16, np.float32, True), (np.float16, BF16, True)):
        arguments = {"attributes": {"to": helpers.onnx_type(target)}, "output_types": [np.dtype(target)]}
        table[f"Cast {np.dtype(source)} {np.dtype(target)}"] = ("Cast", [numbers(source)], arguments, vectors)
    arguments = {"attributes": {"to": helpers.onnx_type(np.int64)}, "output_types": [np.dtype(np.int64)]}
    table["Cast to integers"] = ("Cast", [x], arguments, False)
    table["MatMul"] = ("MatMul", [x, x.T.copy()], {}, True)
    table["MatMul double"] = ("MatMul", [wide, wide.T.copy()], {}, False)
    table["RMSNormalization"] = ("RMSNormalization", [x, x[0]], {"opset": 23}, True)
    table["Attention"] = ("Attention", [numbers(shape=(1, 2, 9, 16))] * 3, {"opset": 23}, True)
    return table


@functools.lru_cache
def answers(level):
    given = [(op, inputs, arguments) for op, inputs, arguments, _ in cases().values()]
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        input=pickle.dumps(sys.path) + pickle.dumps(given),
        capture_output=True,
        env=os.environ | {"HOTSET_CPU": level},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr.decode()
    return dict(zip(cases(), pickle.loads(done.stdout), strict=True))


@pytest.mark.parametrize("level", FORCED)
def test_names_are_the_level_where_there_are_vector_kernels(level):
    expected = {name: level if vectors else "view" if op == "Identity" else "scalar" for name, (op, _, _, vectors) in cases().items()}
    assert {name: kernel for name, (kernel, _) in answers(level).items()} == expected


def test_scalar_nodes_give_the_same_bits_on_every_level():
    """What is named scalar calls no kernel of an instruction set that rounds in its own way."""
    for level in FORCED[1:]:
        for name, (kernel, outputs) in answers(level).items():
            if kernel in ("scalar", "view"):
                assert outputs == answers("scalar")[name][1], (level, name)


@pytest.mark.skipif(len(FORCED) < 2, reason="one instruction set")
def test_vector_nodes_round_in_their_own_way():
    """Exponentials of a vector kernel differ from those of the C library in some last bits: it did run."""
    for name in ("Exp float32", "Tanh float32", "Softmax", "Gelu float32"):
        assert answers("avx2")[name][1] != answers("scalar")[name][1], name


def test_types_that_the_file_does_not_say():
    """A value between two nodes has no type in the file: the name says that it depends on that."""
    from onnx import TensorProto, helper

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Exp", ["a"], ["b"]), helper.make_node("Add", ["b", "x"], ["y"])]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with hotset.InferenceSession(model.SerializeToString()) as session:
        kernels = {node["op"]: node["kernel"] for node in session.plan()["nodes"]}
    vectors = answers(FORCED[-1])["Exp float32"][0] if FORCED else "scalar"
    assert kernels == {"Neg": "scalar", "Exp": "scalar" if vectors == "scalar" else "by type", "Add": vectors}


def test_every_operator_names_its_kernel():
    other = {"view", "by type", "by shape", "experts"}
    for call in CALLS:
        arguments = {"attributes": call.attributes, "domain": call.domain, "opset": call.opset, "constant": call.constant}
        outputs = ["" if call.unnamed and i == 0 else None for i in range(call.outputs)]
        model = helpers.node_model(call.op, call.inputs, output_types=outputs, **arguments)
        with hotset.InferenceSession(model) as session:
            kernels = {node["kernel"] for node in session.plan()["nodes"]}
        assert kernels and all(kernel in other or kernel.startswith(tuple(TIERS)) for kernel in kernels), (call.name, kernels)
