# SPDX-License-Identifier: Apache-2.0
"""Sessions on a GPU: what runs where, what is copied, graphs, failures; test_device_sessions.py runs this on a stand-in driver, and
on a GPU.

Kernels of the stand-in do nothing. A sum that is written over its operand leaves that as it was there, so that what comes back
tells where the bytes went.
"""

import ctypes
import gc
import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import hotset

FAKE = os.environ.get("HOTSET_LIBCUDA")
ADDED = 0 if FAKE else 1
X = np.arange(24, dtype=np.float32).reshape(6, 4)
# What sessions call, without what gives back.
CALLS = [
    b"cuMemGetInfo",
    b"cuMemAlloc",
    b"cuMemHostAlloc",
    b"cuStreamCreate",
    b"cuLibraryLoadData",
    b"cuKernelGetFunction",
    b"cuMemcpyHtoDAsync",
    b"cuMemcpyDtoHAsync",
    b"cuLaunchKernelEx",
    b"cuStreamSynchronize",
    b"cuStreamBeginCapture",
    b"cuStreamEndCapture",
    b"cuGraphInstantiateWithFlags",
    b"cuGraphLaunch",
]
stand_in_only = pytest.mark.skipif(not FAKE, reason="fails calls of the driver")


def build(nodes, inputs, outputs):
    """Bytes of a model; inputs and outputs: name -> (type, shape)."""
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    values = [[helper.make_tensor_value_info(name, *kind) for name, kind in values.items()] for values in (inputs, outputs)]
    graph = helper.make_graph([helper.make_node(*node, name=node[2][0]) for node in nodes], "g", *values, [one])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(made)
    return made.SerializeToString()


FLOATS = (TensorProto.FLOAT, ["n", 4])


def sums():
    """y = x + 1."""
    return build([("Add", ["x", "one"], ["y"])], {"x": FLOATS}, {"y": FLOATS})


def there_and_back():
    """A node of the CPU between two of the GPU, and whole numbers beside them: b = round(x + 1) + 1, k = shape(m) + m."""
    nodes = [
        ("Add", ["x", "one"], ["a"]),
        ("Round", ["a"], ["r"]),
        ("Add", ["r", "one"], ["b"]),
        ("Shape", ["m"], ["s"]),
        ("Add", ["s", "m"], ["k"]),
    ]
    return build(nodes, {"x": FLOATS, "m": (TensorProto.INT64, ["m"])}, {"b": FLOATS, "k": (TensorProto.INT64, ["m"]), "r": FLOATS})


def open_session(model, **entries):
    options = hotset.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("hotset.device", "cuda:0")
    for key, value in entries.items():
        options.add_session_config_entry(f"hotset.{key}" if "." not in key else key, value)
    return hotset.InferenceSession(model, options)


def fake():
    library = ctypes.CDLL(FAKE)
    library.fake_cuda_misuse.restype = ctypes.c_char_p
    library.fake_cuda_used.restype = ctypes.c_size_t
    library.fake_cuda_set_memory.argtypes = [ctypes.c_int, ctypes.c_size_t]
    return library


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    gc.collect()
    if FAKE:
        assert fake().fake_cuda_misuse() == b"" and fake().fake_cuda_live(b"") == 0
        fake().fake_cuda_reset()


def test_steps_are_placed():
    with open_session(there_and_back()) as session:
        nodes = {node["name"]: node for node in session.plan()["nodes"]}
    assert [nodes[name]["device"] for name in "abrsk"] == ["cuda:0", "cuda:0", "cpu", "cpu", "cpu"]
    assert nodes["a"]["kernel"].startswith("cuda")
    assert nodes["r"]["fallback"] and nodes["r"]["reason"] == "the operator has no device kernel"
    assert not nodes["k"]["fallback"] and nodes["k"]["reason"] == "whole numbers made of host values"
    copies = [node["op"] for node in nodes.values() if node["kernel"] == "copy"]
    assert sorted(copies) == ["MemcpyFromHost", "MemcpyFromHost", "MemcpyToHost"]


def test_the_cpu_can_be_forbidden():
    with pytest.raises(hotset.Unsupported, match=r"1 nodes have no device kernel: node 'r' \(Round\): the operator has no device kernel"):
        open_session(there_and_back(), **{"session.disable_cpu_ep_fallback": "1"})
    open_session(sums(), **{"session.disable_cpu_ep_fallback": "1"}).close()


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("graph", ["0", "1"])
def test_values_go_there_and_back(graph, on_device):
    m = np.array([5, 7], np.int64)
    with open_session(there_and_back(), cuda_graph=graph) as session:
        binding = session.io_binding()
        for name in "bkr":
            binding.bind_output(name, "cuda" if on_device else "cpu")
        for run in range(5):
            x = X + run
            binding.bind_ortvalue_input("x", hotset.OrtValue.ortvalue_from_numpy(x, "cuda", 0) if on_device else hotset.OrtValue(x))
            binding.bind_ortvalue_input("m", hotset.OrtValue.ortvalue_from_numpy(m, "cuda", 0) if on_device else hotset.OrtValue(m))
            session.run_with_iobinding(binding)
            b, k, r = (value.numpy() for value in binding.get_outputs())
            np.testing.assert_array_equal(k, m + 2)
            if not on_device or not FAKE:  # there the sum has a buffer of its own, which the stand-in leaves alone
                np.testing.assert_array_equal(r, x + ADDED)
                np.testing.assert_array_equal(b, x + 2 * ADDED)


def test_a_node_of_the_cpu_takes_and_gives_device_memory():
    model = build([("Round", ["x"], ["y"])], {"x": FLOATS}, {"y": FLOATS})
    with open_session(model) as session:
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", hotset.OrtValue.ortvalue_from_numpy(X + 0.25, "cuda", 0))
        target = hotset.OrtValue.ortvalue_from_shape_and_type([6, 4], np.float32, "cuda", 0)
        binding.bind_ortvalue_output("y", target)
        for _ in range(3):
            session.run_with_iobinding(binding)
            np.testing.assert_array_equal(target.numpy(), X)


def test_a_size_that_the_run_decides():
    """The input is too large to be looked at before the run: what follows gets its memory while it runs, on both sides."""
    nodes = [
        ("ReduceMax", ["x"], ["m"]),
        ("Reshape", ["m", "list"], ["l"]),
        ("Cast", ["l"], ["c"]),
        ("Expand", ["one", "c"], ["e"]),
        ("Add", ["e", "one"], ["y"]),
    ]
    made = onnx.load_from_string(build([], {"x": FLOATS}, {"x": FLOATS}))
    made.graph.ClearField("output")
    made.graph.node.extend(helper.make_node(*node, name=node[2][0], **({"to": 7} if node[0] == "Cast" else {})) for node in nodes)
    made.graph.initializer.append(helper.make_tensor("list", TensorProto.INT64, [1], [1]))
    made.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["k"]))
    x = np.ones((1 << 17, 4), np.float32)
    with open_session(made.SerializeToString()) as session:
        for size in (3, 5, 2):
            x[7, 1] = size
            (y,) = session.run(None, {"x": x})
            np.testing.assert_array_equal(y.shape, [size])
            if not FAKE:
                np.testing.assert_array_equal(y, np.full(size, 2, np.float32))
        assert session.stats()["device"]["launches"] == 3


class TestGraphs:
    def counts(self, session):
        device = session.stats()["device"]
        return device["launches"], device["graph_captures"], device["graph_replays"]

    def bind(self, session, x):
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_output("y")
        return binding

    def test_what_repeats_is_captured_and_replayed(self):
        with open_session(sums()) as session:
            x = X.copy()
            binding = self.bind(session, x)
            for run in range(4):
                x[...] = X + run
                session.run_with_iobinding(binding)
                np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), x + ADDED)  # what went up is of this run
            assert self.counts(session) == (2, 1, 3)
            binding.bind_cpu_input("x", X[:2])  # another layout: once step by step, then captured again
            for _ in range(3):
                session.run_with_iobinding(binding)
                np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), X[:2] + ADDED)
            assert self.counts(session) == (4, 2, 5)

    def test_other_buffers_are_not_mistaken(self):
        """A graph knows the addresses of the caller's device memory."""
        tensors = [hotset.OrtValue.ortvalue_from_numpy(X + i, "cuda", 0) for i in range(2)]
        with open_session(sums()) as session:
            binding = session.io_binding()
            for run in range(6):
                binding.bind_ortvalue_input("x", tensors[run % 2])
                binding.bind_output("y")
                session.run_with_iobinding(binding)
                if not FAKE:
                    np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), X + run % 2 + 1)
            assert self.counts(session) == (6, 0, 0)
            for _ in range(3):
                session.run_with_iobinding(binding)
            assert self.counts(session) == (7, 1, 3)

    def test_they_can_be_switched_off(self):
        with open_session(sums(), cuda_graph="0") as session:
            binding = self.bind(session, X.copy())
            for _ in range(4):
                session.run_with_iobinding(binding)
            assert self.counts(session) == (4, 0, 0)

    @stand_in_only
    @pytest.mark.parametrize("function", ["cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiateWithFlags"])
    def test_without_a_graph_it_goes_on(self, function):
        with open_session(sums()) as session:
            x = X.copy()
            binding = self.bind(session, x)
            session.run_with_iobinding(binding)
            fake().fake_cuda_fail(function.encode(), 1, 2)
            for run in range(3):
                x[...] = X + run
                session.run_with_iobinding(binding)
                np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), x)
            assert session.stats()["device"]["graph_capture_failures"] == 1 and self.counts(session)[1:] == (0, 0)


@stand_in_only
class TestFailures:
    def test_weights_that_do_not_fit(self):
        fake().fake_cuda_set_memory(0, 100)
        try:
            with pytest.raises(
                hotset.OutOfDeviceMemory, match="the constants of the model need 256 bytes of device memory, 0 of them for exp"
            ):
                open_session(sums())
        finally:
            fake().fake_cuda_set_memory(0, 1 << 30)
        open_session(sums()).close()

    def test_a_run_without_memory(self):
        with open_session(sums()) as session:
            fake().fake_cuda_fail(b"cuMemAlloc", 1, 2)
            with pytest.raises(hotset.OutOfDeviceMemory, match=r"the values and the workspace of this run: \d+ bytes of device memory"):
                session.run(None, {"x": X})
            np.testing.assert_array_equal(session.run(None, {"x": X})[0], X)

    def test_a_launch_that_is_refused(self):
        with open_session(sums()) as session:
            fake().fake_cuda_fail(b"cuLaunchKernelEx", 1, 1)
            with pytest.raises(hotset.DeviceError, match=r"node 'y' \(Add\): .*cuLaunchKernelEx"):
                session.run(None, {"x": X})
            np.testing.assert_array_equal(session.run(None, {"x": X})[0], X)

    def test_a_device_that_is_lost(self):
        with open_session(sums()) as session:
            session.run(None, {"x": X})
            fake().fake_cuda_fail(b"cuStreamSynchronize", 1, 700)
            with pytest.raises(hotset.DeviceError, match="700|ILLEGAL_ADDRESS"):
                session.run(None, {"x": X})
            with pytest.raises(hotset.DeviceError, match="the session is unusable"):
                session.run(None, {"x": X})

    @pytest.mark.parametrize("function", CALLS)
    def test_every_call_fails_once(self, function):
        """Of what a session does from its creation to its third run; it says so or goes on, and leaves nothing behind."""

        def use():
            with open_session(there_and_back()) as session:
                for run in range(3):
                    b, k, _ = session.run(None, {"x": X + run, "m": np.array([1])})
                    np.testing.assert_array_equal(b, X + run)
                    np.testing.assert_array_equal(k, [2])
                return session.stats()["device"]["graph_capture_failures"]

        use()
        gc.collect()
        fake().fake_cuda_reset()
        use()
        n_calls = fake().fake_cuda_calls(function)
        assert n_calls > 0
        for nth in range(1, n_calls + 1):
            gc.collect()
            fake().fake_cuda_reset()
            fake().fake_cuda_fail(function, nth, 999)
            try:
                assert use() == 1  # what fails in a capture is done step by step
            except hotset.DeviceError as error:
                assert "999" in str(error), (nth, str(error))
            gc.collect()
            assert fake().fake_cuda_misuse() == b"" and fake().fake_cuda_live(b"") == 0, (nth, fake().fake_cuda_misuse())


@stand_in_only
def test_the_plan_counts_every_byte():
    with open_session(there_and_back()) as session:
        session.run(None, {"x": X, "m": np.array([1])})
        rows = session.memory_plan()
        assert sum(row["bytes"] for row in rows if row["where"] == "cuda:0") == fake().fake_cuda_used(0)
        assert any(row["where"] == "pinned" and row["bytes"] for row in rows)


def test_a_trace_has_the_nodes_of_the_device():
    with open_session(there_and_back(), trace="1") as session:
        for _ in range(3):
            session.run(None, {"x": X, "m": np.array([1])})
        names = [event["name"] for event in session.trace()]
    assert {"a", "r", "b", "k"} <= set(names) and len(names) == 7
