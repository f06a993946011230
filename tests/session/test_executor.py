# SPDX-License-Identifier: Apache-2.0
"""What the executor does with graphs: views, constants, in-place buffers, shapes known early and late, errors, threads."""

import json
import os
import threading

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx import numpy_helper as nh

import hotset

F32, I64 = TensorProto.FLOAT, TensorProto.INT64


def model(nodes, inputs, outputs, initializers=(), opset=21, ms=False):
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(n, t, s) for n, t, s in inputs],
        [helper.make_tensor_value_info(n, t, s) for n, t, s in outputs],
        [nh.from_array(np.asarray(a), n) for n, a in initializers],
    )
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid("com.microsoft", 1)] if ms else [])
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def session(*args, threads=2, entries=(), **kwargs):
    so = hotset.SessionOptions()
    so.intra_op_num_threads = threads
    for key, value in entries:
        so.add_session_config_entry(key, value)
    return hotset.InferenceSession(model(*args, **kwargs), so)


def check_against_onnxruntime(model_bytes, feeds, exact=True):
    ort = pytest.importorskip("onnxruntime")
    want = ort.InferenceSession(model_bytes, providers=["CPUExecutionProvider"]).run(None, feeds)
    got = hotset.InferenceSession(model_bytes).run(None, feeds)
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=False):
        assert g.dtype == w.dtype and g.shape == w.shape
        (np.testing.assert_array_equal if exact else np.testing.assert_allclose)(g, w)


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs, outputs, name=f"{op}_{outputs[0]}", **attributes)


X = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_outputs_that_are_views_constants_inputs_and_twins():
    """Every kind of value may be a graph output, the same one under an intermediate and a view of it."""
    m = model(
        [
            node("Add", ["x", "c"], ["y"]),
            node("Reshape", ["y", "to"], ["flat"]),
            node("Identity", ["x"], ["same"]),
            node("Identity", ["c"], ["constant"]),
            node("Reshape", ["x", "to"], ["x_flat"]),
            node("Shape", ["flat"], ["shape"]),
            node("Mul", ["y", "y"], ["z"]),
        ],
        [("x", F32, ["a", 4])],
        [
            ("y", F32, None),
            ("flat", F32, None),
            ("same", F32, None),
            ("constant", F32, None),
            ("x_flat", F32, None),
            ("shape", I64, None),
            ("z", F32, None),
        ],
        [("c", np.float32([1, 2, 3, 4])), ("to", np.int64([-1]))],
    )
    check_against_onnxruntime(m, {"x": X})
    s = hotset.InferenceSession(m)
    for wanted in (["flat"], ["z", "flat"], ["shape"], ["same", "x_flat"], ["y"], ["constant", "z"]):  # any subset, in any order
        full = dict(zip([o.name for o in s.get_outputs()], s.run(None, {"x": X}), strict=False))
        for name, got in zip(wanted, s.run(wanted, {"x": X}), strict=False):
            np.testing.assert_array_equal(got, full[name])


def test_results_do_not_share_memory_between_runs():
    s = session([node("Add", ["x", "x"], ["y"]), node("Identity", ["y"], ["z"])], [("x", F32, ["n"])], [("z", F32, None)])
    first = s.run(None, {"x": np.float32([1, 2])})[0]
    second = s.run(None, {"x": np.float32([3, 4])})[0]
    assert first.tolist() == [2, 4] and second.tolist() == [6, 8]


def test_a_value_read_later_is_not_overwritten():
    """x is read again after each candidate for working in place."""
    m = model(
        [
            node("Neg", ["x"], ["a"]),
            node("Exp", ["a"], ["b"]),
            node("Add", ["b", "a"], ["c"]),
            node("Mul", ["c", "b"], ["d"]),
            node("Reshape", ["b", "to"], ["v"]),
            node("Neg", ["b"], ["e"]),
            node("Add", ["d", "e"], ["f"]),
            node("ReduceSum", ["v"], ["sum"], keepdims=0),
            node("Add", ["f", "sum"], ["y"]),
        ],
        [("x", F32, ["n", "m"])],
        [("y", F32, None)],
        [("to", np.int64([-1]))],
    )
    pytest.importorskip("onnxruntime")
    import onnxruntime as ort

    x = np.random.default_rng(1).standard_normal((5, 7)).astype(np.float32)
    want = ort.InferenceSession(m).run(None, {"x": x})[0]
    np.testing.assert_allclose(hotset.InferenceSession(m).run(None, {"x": x})[0], want, rtol=1e-5)


@pytest.mark.parametrize("order", [(1, 7, 3), (5, 5, 1), (64, 1, 64)])
def test_shapes_may_change_from_run_to_run(order):
    m = model(
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "zero"], ["n"]),
            node("Unsqueeze", ["n", "axis"], ["n1"]),
            node("Concat", ["n1", "two"], ["to"], axis=0),
            node("Reshape", ["x", "to"], ["r"]),
            node("Add", ["r", "r"], ["y"]),
        ],
        [("x", F32, ["n", 2, "m"])],
        [("y", F32, None)],
        [("zero", np.int64(0)), ("axis", np.int64([0])), ("two", np.int64([-1]))],
    )
    s = hotset.InferenceSession(m)
    for n in order:
        x = np.arange(n * 2 * 3, dtype=np.float32).reshape(n, 2, 3)
        np.testing.assert_array_equal(s.run(None, {"x": x})[0], 2 * x.reshape(n, 6))


def test_shape_from_the_content_of_an_input():
    s = session(
        [node("Reshape", ["x", "to"], ["r"]), node("Add", ["r", "r"], ["y"])], [("x", F32, ["n"]), ("to", I64, ["k"])], [("y", F32, None)]
    )
    x = np.arange(12, dtype=np.float32)
    for to in ([3, 4], [4, 3], [2, -1], [12], [3, 2, 2]):
        np.testing.assert_array_equal(s.run(None, {"x": x, "to": np.int64(to)})[0], 2 * x.reshape(to))
    with pytest.raises(hotset.InvalidArgument, match="Reshape"):
        s.run(None, {"x": x, "to": np.int64([5, -1])})
    np.testing.assert_array_equal(s.run(None, {"x": x, "to": np.int64([6, 2])})[0], 2 * x.reshape(6, 2))


def test_shape_from_a_computed_value():
    """The second Reshape's target is computed by a run from float data: everything behind it is inferred while it runs."""
    m = model(
        [
            node("ReduceSum", ["x"], ["sum"], keepdims=0),
            node("Cast", ["sum"], ["k"], to=I64),
            node("Unsqueeze", ["k", "axis"], ["to0"]),
            node("Concat", ["to0", "rest"], ["to"], axis=0),
            node("Mul", ["y0", "two"], ["scaled"]),
            node("Reshape", ["scaled", "to"], ["r"]),
            node("Identity", ["r"], ["view"]),
            node("Add", ["r", "two"], ["y"]),
            node("Shape", ["y"], ["shape"]),
        ],
        [("x", F32, ["n"]), ("y0", F32, ["m"])],
        [("y", F32, None), ("shape", I64, None), ("view", F32, None), ("scaled", F32, None)],
        [("axis", np.int64([0])), ("rest", np.int64([-1])), ("two", np.float32(2))],
    )
    y0 = np.arange(12, dtype=np.float32)
    for total in (3, 4, 6, 1):
        check_against_onnxruntime(m, {"x": np.float32([total - 1, 1]), "y0": y0})
    s = hotset.InferenceSession(m)
    assert s.run(["y"], {"x": np.float32([2]), "y0": y0})[0].shape == (2, 6)
    with pytest.raises(hotset.Error, match="Reshape"):
        s.run(None, {"x": np.float32([5]), "y0": y0})
    assert s.run(["y"], {"x": np.float32([2]), "y0": y0})[0].shape == (2, 6)


def test_weights_only_parts_are_folded(tmp_path):
    """A transposed weight is computed once; the report counts its bytes."""
    w = np.random.default_rng(0).standard_normal((256, 300)).astype(np.float32)
    m = onnx.load_from_string(
        model(
            [node("Transpose", ["w"], ["wt"], perm=[1, 0]), node("MatMul", ["x", "wt"], ["y"])],
            [("x", F32, ["n", 300])],
            [("y", F32, None)],
            [("w", w)],
        )
    )
    onnx.save(m, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    s = hotset.InferenceSession(tmp_path / "m.onnx")
    x = np.ones((2, 300), np.float32)
    for _ in range(2):
        np.testing.assert_allclose(s.run(None, {"x": x})[0], x @ w.T, rtol=1e-4, atol=1e-4)
    folded = [row for row in s.memory_plan() if row["purpose"] == "folded constants"]
    assert folded[0]["bytes"] == w.nbytes == folded[0]["bound"]


def test_two_outputs_into_overlapping_or_input_buffers_are_refused():
    s = session([node("Add", ["x", "x"], ["y"]), node("Neg", ["x"], ["z"])], [("x", F32, ["n"])], [("y", F32, None), ("z", F32, None)])
    x = np.float32([1, 2, 3, 4])
    binding = s.io_binding()
    binding.bind_cpu_input("x", x)
    buffer = np.zeros(8, np.float32)

    def bind(name, array):
        binding.bind_ortvalue_output(name, hotset.OrtValue.ortvalue_from_numpy(array))

    bind("y", buffer[:4])
    bind("z", buffer[2:6])
    with pytest.raises(hotset.InvalidArgument, match="overlap"):
        s.run_with_iobinding(binding)
    bind("z", buffer[4:])
    s.run_with_iobinding(binding)
    assert buffer.tolist() == [2, 4, 6, 8, -1, -2, -3, -4]
    bind("y", x)
    with pytest.raises(hotset.InvalidArgument, match="overlaps input 'x'"):
        s.run_with_iobinding(binding)


@pytest.mark.parametrize(
    "feeds, text",
    [
        ({}, "input 'x' is missing"),
        ({"x": np.zeros((2, 3), np.float32)}, r"shape \[2,3\], expected \[n,4\]"),
        ({"x": np.zeros(4, np.float32)}, r"shape \[4\], expected \[n,4\]"),
        ({"x": np.zeros((2, 4), np.float64)}, r"double\)?, expected (tensor\()?float"),
        ({"x": np.zeros((2, 4), np.float32), "q": np.zeros(1, np.float32)}, "no input 'q'"),
    ],
)
def test_wrong_feeds_are_named(feeds, text):
    s = session([node("Neg", ["x"], ["y"])], [("x", F32, ["n", 4])], [("y", F32, None)])
    with pytest.raises(hotset.Error, match=text):
        s.run(None, feeds)
    assert s.run(None, {"x": np.ones((1, 4), np.float32)})[0].tolist() == [[-1] * 4]


def test_unknown_operators_are_all_named():
    with pytest.raises(hotset.Unsupported, match="ai.onnx::NoSuchOp, ai.onnx::OtherOp"):
        session(
            [node("OtherOp", ["x"], ["y"]), node("NoSuchOp", ["y"], ["z"]), node("Neg", ["z"], ["w"])],
            [("x", F32, [1])],
            [("w", F32, None)],
        )


def test_opset_28_loads_and_29_is_refused():
    session([node("Neg", ["x"], ["y"])], [("x", F32, [1])], [("y", F32, None)], opset=28)
    with pytest.raises(hotset.Unsupported, match="opset 29"):
        session([node("Neg", ["x"], ["y"])], [("x", F32, [1])], [("y", F32, None)], opset=29)


def test_runs_from_several_threads():
    s = session(
        [node("Add", ["x", "x"], ["y"]), node("MatMul", ["y", "w"], ["z"])],
        [("x", F32, ["n", 64])],
        [("z", F32, None)],
        [("w", np.eye(64, dtype=np.float32))],
    )
    errors = []

    def worker(seed):
        rng = np.random.default_rng(seed)
        for _ in range(60):
            x = rng.standard_normal((int(rng.integers(1, 40)), 64)).astype(np.float32)
            y = s.run(None, {"x": x})[0]
            if not np.allclose(y, 2 * x, atol=1e-5):
                errors.append(seed)

    threads = [threading.Thread(target=worker, args=(i,)) for i in range(6)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not errors


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_gets_an_error_and_the_parent_goes_on():
    s = session([node("Neg", ["x"], ["y"])], [("x", F32, ["n"])], [("y", F32, None)])
    x = np.ones(3, np.float32)
    s.run(None, {"x": x})
    child = os.fork()
    if child == 0:
        try:
            s.run(None, {"x": x})
        except hotset.Error as error:
            os._exit(7 if "fork" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert s.run(None, {"x": x})[0].tolist() == [-1, -1, -1]


def test_trace_lists_every_node_of_the_last_run():
    s = session(
        [node("Neg", ["x"], ["y"]), node("Exp", ["y"], ["z"])], [("x", F32, ["n"])], [("z", F32, None)], entries=[("hotset.trace", "1")]
    )
    s.run(None, {"x": np.ones(3, np.float32)})
    events = json.loads(s.trace()) if isinstance(s.trace(), str) else s.trace()
    assert [e["cat"] for e in events] == ["Neg", "Exp"] and all(e["dur"] >= 0 for e in events)


def test_an_unrelated_change_of_shape_infers_only_its_readers():
    """One input grows from run to run, as attention_mask does: the rest of the graph is neither inferred nor laid out again."""
    nodes = [node("Shape", ["mask"], ["s"]), node("Gather", ["s", "one"], ["total"])]
    nodes += [node("Add", [f"v{i}", "c"], [f"v{i + 1}"]) for i in range(50)]
    s = session(
        nodes,
        [("v0", F32, ["n"]), ("mask", I64, ["b", "t"])],
        [("v50", F32, None), ("total", I64, None)],
        [("one", np.int64(1)), ("c", np.float32(1))],
    )
    v = np.zeros(4, np.float32)
    for t in range(1, 5):
        y, total = s.run(None, {"v0": v, "mask": np.ones((1, t), np.int64)})
        assert y[0] == 50 and total == t
    stats = s.stats()
    assert stats["runs"] == 4 and stats["shape_inferences"] <= 52 + 3 * 2 and stats["memory_layouts"] <= 4


def test_nodes_that_no_requested_output_needs_are_not_run():
    nodes = [node("Neg", ["x"], ["y"]), node("Exp", ["y"], ["z"]), node("Add", ["z", "z"], ["w"])]
    s = session(nodes, [("x", F32, ["n"])], [("y", F32, None), ("z", F32, None), ("w", F32, None)])
    x = np.float32([0, 1])
    for wanted, executed in (["y"], 1), (["w"], 3), (["z"], 2), (["y", "w"], 3):
        before = s.stats()["nodes_executed"]
        results = dict(zip(wanted, s.run(wanted, {"x": x}), strict=True))
        assert s.stats()["nodes_executed"] - before == executed
        expected = {"y": -x, "z": np.exp(-x), "w": 2 * np.exp(-x)}
        for name, value in results.items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-6)


def if_model(condition_input=True):
    """y = If(c, x + w, view of a table); nested in the else branch: If(c2, ...)."""
    inner_then = helper.make_graph([node("Mul", ["x", "two"], ["t2"])], "inner_then", [], [helper.make_tensor_value_info("t2", F32, None)])
    inner_else = helper.make_graph(
        [node("Gather", ["x", "bad"], ["g"], axis=0)], "inner_else", [], [helper.make_tensor_value_info("g", F32, None)]
    )
    then = helper.make_graph(
        [node("Add", ["x", "w"], ["a"])],
        "then",
        [],
        [helper.make_tensor_value_info("a", F32, None)],
        [nh.from_array(np.float32([10.0]), "w")],
    )
    other = helper.make_graph(
        [node("If", ["c2"], ["n"], then_branch=inner_then, else_branch=inner_else)],
        "else",
        [],
        [helper.make_tensor_value_info("n", F32, None)],
    )
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("ReduceSum", ["s"], ["size"], keepdims=0),
        node("Greater", ["size", "three"], ["by_shape"]),
        node("If", ["c" if condition_input else "by_shape"], ["y"], then_branch=then, else_branch=other),
        node("Neg", ["y"], ["z"]),
    ]
    inputs = [("x", F32, ["n"]), ("c", TensorProto.BOOL, []), ("c2", TensorProto.BOOL, [])]
    constants = [("two", np.float32(2)), ("bad", np.int64([7])), ("three", np.int64(3))]
    return model(nodes, inputs, [("z", F32, None), ("y", F32, None)], constants)


@pytest.mark.parametrize("condition_input", [True, False])
def test_if_runs_one_branch(condition_input):
    m = if_model(condition_input)
    s = hotset.InferenceSession(m)
    for n in (2, 5, 3, 4):
        x = np.arange(n, dtype=np.float32)
        for c in (True, False, True):
            feeds = {"x": x, "c": np.bool_(c), "c2": np.bool_(True)}
            y = x + 10 if (c if condition_input else n > 3) else 2 * x
            got = s.run(None, {k: np.asarray(v) for k, v in feeds.items()})
            np.testing.assert_array_equal(got[1], y)
            np.testing.assert_array_equal(got[0], -y)
    if condition_input:
        check_against_onnxruntime(
            m, {"x": np.ones(9, np.float32), "c": np.asarray(False), "c2": np.asarray(False)}
        )  # the index 7 is fine there
        with pytest.raises(hotset.InvalidArgument, match="Gather"):
            s.run(None, {"x": np.ones(3, np.float32), "c": np.asarray(False), "c2": np.asarray(False)})
        s.run(None, {"x": np.ones(3, np.float32), "c": np.asarray(True), "c2": np.asarray(False)})  # the bad branch is not entered


def test_if_whose_condition_is_computed_from_data():
    then = helper.make_graph([node("Add", ["x", "x"], ["a"])], "then", [], [helper.make_tensor_value_info("a", F32, None)])
    other = helper.make_graph([node("Identity", ["table"], ["b"])], "else", [], [helper.make_tensor_value_info("b", F32, None)])
    m = model(
        [
            node("ReduceSum", ["x"], ["sum"], keepdims=0),
            node("Greater", ["sum", "zero"], ["c"]),
            node("If", ["c"], ["y"], then_branch=then, else_branch=other),
            node("Neg", ["y"], ["z"]),
        ],
        [("x", F32, ["n"])],
        [("y", F32, None), ("z", F32, None), ("c", TensorProto.BOOL, None)],
        [("zero", np.float32(0)), ("table", np.float32([[1, 2], [3, 4]]))],
    )
    for x in ([1.0, 2.0], [-1.0], [3.0]):
        check_against_onnxruntime(m, {"x": np.float32(x)})


def test_an_unread_output_does_not_take_the_place_of_a_read_one():
    """Both outputs of the norm may be written over its input; only the second is read."""
    norm = helper.make_node("SkipSimplifiedLayerNormalization", ["a", "b", "g"], ["n", "", "", "sum"], domain="com.microsoft", epsilon=1e-5)
    nodes = [node("Neg", ["x"], ["a"]), node("Exp", ["x"], ["b"]), norm, node("Neg", ["sum"], ["y"])]
    s = session(
        nodes, [("x", F32, ["n", 8])], [("y", F32, None)], [("g", np.full(8, 3, np.float32))], ms=True, entries=[("hotset.fuse", "0")]
    )
    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    np.testing.assert_allclose(s.run(None, {"x": x})[0], x - np.exp(x), rtol=1e-5, atol=1e-6)
