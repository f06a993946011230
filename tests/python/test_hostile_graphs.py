# SPDX-License-Identifier: Apache-2.0
"""Malicious graphs: cycles, bombs, impossible sizes, types and branches; refused in little time and memory, or run."""

import numpy as np
import pytest

from python.hostile_models import field, function, graph, model, node, open_one, refused, runs, subgraph, tensor, value


def test_cycles():
    loop = [node("Add", ["x", "b"], ["a"], name="first"), node("Identity", ["a"], ["b"], name="second")]
    refused(model(graph(loop, ["x"], ["b"])), "InvalidModel", "cycle", "'first'", "'second'")
    refused(model(graph([node("Add", ["x", "y"], ["y"], name="itself")], ["x"], ["y"])), "InvalidModel", "cycle", "'itself'")
    branch = graph([node("Identity", ["y"], ["t"])], [], ["t"])
    inside = [node("If", ["c"], ["y"], subgraph("then_branch", branch), subgraph("else_branch", branch), name="choice")]
    refused(model(graph(inside, [value("c", 9)], ["y"])), "InvalidModel", "cycle", "'choice'")


def test_depth_bombs():
    inner = graph([node("Identity", ["x"], ["y"])], [], ["y"])
    for _ in range(2000):
        inner = graph(
            [
                node(
                    "If",
                    ["c"],
                    ["y"],
                    subgraph("then_branch", inner),
                    subgraph("else_branch", graph([node("Identity", ["x"], ["y"])], [], ["y"])),
                )
            ],
            [],
            ["y"],
        )
    refused(model(inner + field(11, value("x")) + field(11, value("c", 9))), "Unsupported", "nested deeper than")
    message = b""
    for _ in range(3000):
        message = field(6, field(5, message))
    refused(model(graph([node("Identity", ["x"], ["y"]) + field(5, message)], ["x"], ["y"])), "InvalidModel")


def test_exponential_functions():
    functions = [function("F0", ["a"], ["b"], [node("Abs", ["a"], ["b"])])]
    for i in range(1, 40):
        functions.append(
            function(
                f"F{i}", ["a"], ["b"], [node(f"F{i - 1}", ["a"], ["m"], domain="local"), node(f"F{i - 1}", ["m"], ["b"], domain="local")]
            )
        )
    data = model(graph([node("F39", ["x"], ["y"], domain="local")], ["x"], ["y"]), functions)
    result = open_one(data, mebibytes=1024)  # 262144 calls are made before the refusal
    assert result["error"] == "Unsupported" and "calls of functions" in result["text"], result
    itself = function("Loop", ["a"], ["b"], [node("Loop", ["a"], ["b"], domain="local")])
    refused(model(graph([node("Loop", ["x"], ["y"], domain="local")], ["x"], ["y"]), [itself]), "Unsupported", "calls itself")


def test_branches_that_share_bytes():
    """Two branches a level, each holding the level below: the file is as large as its graph, and stays so."""
    inner = graph([node("Identity", ["x"], ["y"])], [], ["y"])
    for _ in range(13):
        inner = graph([node("If", ["c"], ["y"], subgraph("then_branch", inner), subgraph("else_branch", inner))], [], ["y"])
    assert runs(model(inner + field(11, value("x", 1, [2])) + field(11, value("c", 9, [])))) == [[0.0, 0.0]]


@pytest.mark.parametrize(
    "dims, raw, error, text",
    [
        ([4], bytes(15), "InvalidModel", "needs 16 bytes, the file holds 15"),
        ([4], bytes(17), "InvalidModel", "needs 16 bytes, the file holds 17"),
        ([2**33, 2**33], bytes(16), "InvalidModel", "overflow"),
        ([2**62, 4], bytes(16), "InvalidModel", "overflow"),
        ([2**63 - 1], bytes(16), "InvalidModel", "overflow"),
        ([-1], bytes(16), "InvalidModel", "-1 is negative"),
        ([-(2**63)], bytes(16), "InvalidModel", "is negative"),
        ([2**62, 2**62, 0], b"", "InvalidModel", "overflow"),
        ([1] * 9, bytes(4), "Unsupported", "rank 9"),
        ([1] * 5000, bytes(4), "Unsupported", "rank 5000"),
        ([2**40], bytes(16), "InvalidModel", "the file holds 16"),
    ],
)
def test_dimensions(dims, raw, error, text):
    refused(model(graph([node("Identity", ["w"], ["y"])], [], ["y"], [tensor("w", dims, raw)])), error, "tensor 'w'", text)


def test_types():
    for dtype in (0, -1, 99, 10**6, 2**62):
        result = open_one(model(graph([node("Identity", ["w"], ["y"])], [], ["y"], [tensor("w", [1], bytes(4), dtype)])))
        assert result["error"] in ("InvalidModel", "Unsupported") and "tensor 'w'" in result["text"], result
    refused(
        model(graph([node("Identity", ["w"], ["y"])], [], ["y"], [field(1, 1) + field(2, 8) + field(8, "w") + field(6, "text")])),
        "Unsupported",
        "'w'",
    )


def test_duplicate_names():
    identity = [node("Identity", ["x"], ["y"])]
    twice = [node("Identity", ["x"], ["y"], name="one"), node("Abs", ["x"], ["y"], name="two")]
    refused(model(graph(twice, ["x"], ["y"])), "InvalidModel", "'y'")
    refused(model(graph([node("TopK", ["x", "k"], ["y", "y"])], ["x", value("k", 7)], ["y"])), "InvalidModel", "'y'")
    refused(model(graph([node("Identity", ["x"], ["x"])], ["x"], ["x"])), "InvalidModel", "'x'")
    refused(model(graph(identity, ["x", "x"], ["y"])), "InvalidModel", "two graph inputs", "'x'")
    refused(model(graph(identity, ["x"], ["y", "y"])), "InvalidModel", "two graph outputs", "'y'")
    weights = [tensor("w", [1], bytes(4))] * 2
    refused(model(graph([node("Add", ["x", "w"], ["y"])], ["x"], ["y"], weights)), "InvalidModel", "two initializers", "'w'")
    refused(
        model(
            graph([node("F", ["x"], ["y"], domain="local")], ["x"], ["y"]), [function("F", ["a"], ["b"], [node("Abs", ["a"], ["b"])])] * 2
        ),
        "InvalidModel",
        "two functions",
        "'F'",
    )


def test_values_from_nowhere():
    refused(model(graph([node("Add", ["x", "ghost"], ["y"], name="reader")], ["x"], ["y"])), "InvalidModel", "'ghost'", "'reader'")
    refused(model(graph([], ["x"], ["ghost"])), "InvalidModel", "'ghost'")
    branch = graph([node("Identity", ["ghost"], ["t"])], [], ["t"])
    nodes = [node("If", ["c"], ["y"], subgraph("then_branch", branch), subgraph("else_branch", branch), name="choice")]
    refused(model(graph(nodes, [value("c", 9)], ["y"])), "InvalidModel", "'ghost'")


def test_digits_as_a_dimension_name():
    data = model(graph([node("Identity", ["x"], ["y"])], [value("x", 1, ["3", "batch"])], ["y"]))
    result = open_one(data)
    assert result["inputs"] == [["x", [3, "batch"]]] and result["outputs"] == [[[0.0]] * 3]
    refused(data, "InvalidArgument", "'x'", "expected [3,batch]", feeds={"x": [[1.0]]})
    for digits in ("9" * 30, "-3", "3x", "0x3", " 3", ""):
        result = open_one(model(graph([node("Identity", ["x"], ["y"])], [value("x", 1, [digits])], ["y"])))
        assert result["error"] is None, result


def test_local_functions():
    relu = function("QuickGelu", ["X"], ["Y"], [node("Neg", ["X"], ["Y"])], domain="com.microsoft")
    one = tensor("one", [1], np.float32(1).tobytes())
    with_kernel = model(graph([node("QuickGelu", ["one"], ["y"], domain="com.microsoft")], [], ["y"], [one]), [relu])
    assert runs(with_kernel) == [[pytest.approx(0.8457957)]]  # the kernel, not the body
    body = function("Twice", ["X"], ["Y"], [node("Add", ["X", "X"], ["Y"])])
    without = model(graph([node("Twice", ["one"], ["y"], domain="local")], [], ["y"], [one]), [body])
    assert runs(without) == [[2.0]]
    refused(model(graph([node("Absent", ["one"], ["y"], domain="local")], [], ["y"], [one]), [body]), "Unsupported", "local::Absent")
    refused(
        model(graph([node("Twice", ["one", "one"], ["y"], domain="local")], [], ["y"], [one]), [body]),
        "InvalidModel",
        "2 inputs, its function has 1",
    )
    broken = function("Twice", ["X"], ["Y"], [node("Add", ["X", "ghost"], ["Y"])])
    refused(model(graph([node("Twice", ["one"], ["y"], domain="local")], [], ["y"], [one]), [broken]), "InvalidModel", "ghost")


def constant(name, *numbers):
    return tensor(name, [len(numbers)], np.array(numbers, np.int64).tobytes(), 7)


@pytest.mark.parametrize(
    "nodes, dims",
    [
        ([node("ConstantOfShape", ["s"], ["y"])], (2**40,)),
        ([node("ConstantOfShape", ["s"], ["y"])], (2**54,)),
        ([node("ConstantOfShape", ["s"], ["y"])], (2**62, 2**62)),
        ([node("ConstantOfShape", ["s"], ["y"])], (-1,)),
        ([node("Expand", ["one", "s"], ["y"])], (2**20, 2**20)),
        ([node("Tile", ["one", "s"], ["y"])], (2**41,)),
        (
            [
                node("ConstantOfShape", ["s"], ["a"]),
                *[node("Identity" if i % 2 else "Exp", [f"a{i}" if i else "a"], [f"a{i + 1}"]) for i in range(8)],
                node("ReduceSum", ["a8"], ["y"]),
            ],
            (2**42,),
        ),
        ([node("Range", ["zero", "many", "step"], ["y"])], ()),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_results_larger_than_memory(nodes, dims, late):
    """Claims that no machine holds; `late`: the sizes are inputs of the run."""
    tensors = [tensor("one", [1], np.float32(1).tobytes())]
    for name, number in (("zero", 0), ("many", 2**45), ("step", 1)):
        tensors.append(tensor(name, [], np.int64(number).tobytes(), 7))
    inputs, feeds = [], {}
    if late:
        inputs, feeds = [value("s", 7, [len(dims)])], {"s": list(dims)}
    else:
        tensors.append(constant("s", *dims))
    result = open_one(model(graph(nodes, inputs, ["y"], tensors)), feeds=feeds)
    assert result["error"] in ("OutOfMemory", "InvalidArgument"), result


def test_rows_of_nothing():
    """2^54 rows of 0 columns are no work."""
    tensors = [constant("s", 2**54, 0), constant("t", 0, 2**50, 3)]
    for op in ("Exp", "Softmax", "Transpose", "LpNormalization", "Identity", "Not", "CumSum", "Trilu"):
        nodes = [node("ConstantOfShape", ["s"], ["a"]), node(op, ["a"] if op != "CumSum" else ["a", "axis"], ["y"])]
        result = open_one(model(graph(nodes, [], ["y"], [*tensors, tensor("axis", [], bytes(8), 7)])))
        assert result["error"] in (None, "Unsupported"), result
    for op in ("ReduceSum", "ReduceMax", "ReduceMean"):
        nodes = [node("ConstantOfShape", ["s"], ["a"]), node(op, ["a"], ["y"])]
        open_one(model(graph(nodes, [], ["y"], tensors)))
    width = tensor("w", [0], b"")
    nodes = [node("ConstantOfShape", ["s"], ["a"]), node("LayerNormalization", ["a", "w"], ["y"])]
    open_one(model(graph(nodes, [], ["y"], [*tensors, width])))


def branch_model(then_branch, else_branch, condition=None, outputs=("y",)):
    attributes = [subgraph(n, b) for n, b in (("then_branch", then_branch), ("else_branch", else_branch)) if b is not None]
    nodes = [node("If", ["c"], outputs, *attributes, name="choice")]
    return model(graph(nodes, [value("x", 1, [2]), condition if condition is not None else value("c", 9, [])], outputs))


def test_if():
    one, two = graph([node("Identity", ["x"], ["t"])], [], ["t"]), graph([node("Neg", ["x"], ["t"])], [], ["t"])
    assert runs(branch_model(one, two), feeds={"x": [1, 2], "c": True}) == [[1.0, 2.0]]
    assert runs(branch_model(one, two), feeds={"x": [1, 2], "c": False}) == [[-1.0, -2.0]]
    refused(branch_model(one, None), "InvalidModel", "'choice'", "else_branch")
    refused(branch_model(one, two, outputs=("y", "z")), "InvalidModel", "'choice'", "fewer results")
    refused(branch_model(one, two, condition=value("c", 1, [])), "InvalidArgument", "'choice'", "one bool")
    refused(branch_model(one, two, condition=value("c", 9, [2])), "InvalidArgument", "'choice'", "one bool")
    refused(branch_model(graph([node("Identity", ["i"], ["t"])], ["i"], ["t"]), two), "InvalidModel", "'choice'", "without inputs")
    nothing = graph([], [], ["x"])  # a branch may return what it captures
    assert runs(branch_model(nothing, two), feeds={"x": [1, 2], "c": True}) == [[1.0, 2.0]]


def test_many_of_everything():
    """Long lists are read in linear time."""
    chain = [node("Identity", [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i in range(20000)]
    assert runs(model(graph(chain, [value("v0", 1, [1])], ["v20000"]))) == [[0.0]]
    runs(model(graph(chain[::-1], [value("v0", 1, [1])], ["v20000"])))
    wide = node("Sum", ["x"] * 20000, ["y"])
    assert runs(model(graph([wide], [value("x", 1, [1])], ["y"]))) == [[0.0]]
    name = "x" * 1_000_000
    assert runs(model(graph([node("Identity", [name], ["y"], name=name)], [value(name, 1, [1])], ["y"]))) == [[0.0]]
    refused(model(graph([node("Add", [name], ["y"], name=name)], [value(name, 1, [1])], ["y"])), "InvalidModel", "(Add)")
