# SPDX-License-Identifier: Apache-2.0
"""Tensors in device memory through the Python interface; test_device_tensors.py runs this on a stand-in driver, and on a GPU.

The models only move data, so that what they should give is known where kernels do nothing.
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
X = np.arange(24, dtype=np.float32).reshape(6, 4)


def model() -> bytes:
    """z = x and y = x + 1, of shape (n, 4)."""
    nodes = [helper.make_node("Identity", ["x"], ["z"]), helper.make_node("Add", ["x", "one"], ["y"])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xyz"]
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    graph = helper.make_graph(nodes, "move", values[:1], values[1:], [one])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(made)
    return made.SerializeToString()


@pytest.fixture
def session():
    with hotset.InferenceSession(model(), providers=["CUDAExecutionProvider", "CPUExecutionProvider"]) as made:
        yield made


class Producer:
    """A tensor of another library: it speaks DLPack and notes the streams that are asked for."""

    def __init__(self, value):
        self.value, self.streams = value, []

    def __dlpack__(self, *, stream=None, **others):
        self.streams.append(stream)
        return self.value.__dlpack__(stream=stream)

    def __dlpack_device__(self):
        return self.value.__dlpack_device__()


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    gc.collect()
    if FAKE:
        fake = ctypes.CDLL(FAKE)
        fake.fake_cuda_misuse.restype = ctypes.c_char_p
        assert fake.fake_cuda_misuse() == b"" and fake.fake_cuda_live(b"") == 0


def test_copies_both_ways():
    value = hotset.OrtValue.ortvalue_from_numpy(X, "cuda", 0)
    assert value.device_name() == "cuda" and value.shape() == [6, 4] and value.data_type() == "tensor(float)"
    assert value.element_type() == TensorProto.FLOAT and value.tensor_size_in_bytes() == X.nbytes and value.data_ptr() % 16 == 0
    np.testing.assert_array_equal(value.numpy(), X)
    value.update_inplace(X * 2)
    np.testing.assert_array_equal(np.asarray(value), X * 2)
    with pytest.raises(hotset.InvalidArgument, match="4, 4"):
        value.update_inplace(X[:4])
    assert hotset.OrtValue.ortvalue_from_shape_and_type([3], np.float16, "cuda").shape() == [3]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "int64", "uint8", "bool"])
def test_element_types_go_through_dlpack(dtype):
    import ml_dtypes

    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    array = np.arange(12).reshape(3, 4).astype(dtype)
    value = hotset.OrtValue.ortvalue_from_numpy(array, "cuda", 0)
    again = hotset.OrtValue.from_dlpack(value)
    assert again.data_ptr() == value.data_ptr() and again.element_type() == value.element_type()
    np.testing.assert_array_equal(again.numpy(), array)


def test_device_tensors_are_inputs(session):
    value = hotset.OrtValue.ortvalue_from_numpy(X, "cuda", 0)
    other = Producer(value)
    for given in (value, other, X):
        (z,) = session.run(["z"], {"x": given})
        np.testing.assert_array_equal(z, X)
    assert other.streams == [1]  # the work of CUDA's default stream comes first


def test_a_host_tensor_that_speaks_dlpack_is_an_input():
    session = hotset.InferenceSession(model())
    (z,) = session.run(["z"], {"x": Producer(np.ascontiguousarray(X))})
    np.testing.assert_array_equal(z, X)


def test_bound_device_tensors(session):
    value = hotset.OrtValue.ortvalue_from_numpy(X, "cuda", 0)
    result = hotset.OrtValue.ortvalue_from_shape_and_type([8, 4], np.float32, "cuda", 0)  # larger than needed
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", value)
    binding.bind_ortvalue_output("z", result)
    binding.bind_output("y", "cuda", 0)
    for factor in (1, 2):
        value.update_inplace(X * factor)
        session.run_with_iobinding(binding)
        z, y = binding.get_outputs()
        assert z.data_ptr() == result.data_ptr() and z.shape() == [6, 4] and y.device_name() == "cuda"
        np.testing.assert_array_equal(z.numpy(), X * factor)
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], X * factor)
    assert binding.get_outputs()[1].data_ptr() == y.data_ptr()  # handed over once
    session.run_with_iobinding(binding)
    assert binding.get_outputs()[1].data_ptr() != y.data_ptr()  # another buffer: y stays as it was


def test_binding_by_address(session):
    value = hotset.OrtValue.ortvalue_from_numpy(X, "cuda", 0)
    result = hotset.OrtValue.ortvalue_from_shape_and_type([6, 4], np.float32, "cuda", 0)
    binding = session.io_binding()
    binding.bind_input("x", "cuda", 0, np.float32, [6, 4], value.data_ptr())
    binding.bind_output("z", "cuda", 0, np.float32, [6, 4], result.data_ptr())
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(result.numpy(), X)
    (z,) = binding.get_outputs()
    with pytest.raises(BufferError, match="owner"):
        z.__dlpack__()


def test_memory_lives_as_long_as_its_last_user(session):
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("z", "cuda", 0)
    session.run_with_iobinding(binding)
    shared = hotset.OrtValue.from_dlpack(binding.get_outputs()[0])
    unused = binding.get_outputs()[0].__dlpack__()
    binding = session = None
    gc.collect()
    np.testing.assert_array_equal(shared.numpy(), X)
    del unused


def test_order_of_a_stream(session):
    value = hotset.OrtValue.ortvalue_from_numpy(X, "cuda", 0)
    (z,) = session.run_on_stream(["z"], {"x": value}, 1)
    again = hotset.OrtValue.from_dlpack(z)
    np.testing.assert_array_equal(again.numpy(), X)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", z)
    binding.bind_output("z", "cuda")
    session.run_with_iobinding_on_stream(binding, 1)
    np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), X)


def test_dlpack_devices_and_copies():
    value = hotset.OrtValue.ortvalue_from_numpy(X, "cuda", 0)
    assert value.__dlpack_device__() == (2, 0)
    host = np.from_dlpack(Moved(value, (1, 0)))
    np.testing.assert_array_equal(host, X)
    with pytest.raises(BufferError, match="not on"):
        value.__dlpack__(dl_device=(2, 5))
    assert hotset.OrtValue.from_dlpack(Moved(value, None, copy=True)).data_ptr() != value.data_ptr()


class Moved:
    """Asks for a device or a copy, as consumers may."""

    def __init__(self, value, device, copy=None):
        self.value, self.device, self.copy = value, device, copy

    def __dlpack__(self, **arguments):
        return self.value.__dlpack__(dl_device=self.device, copy=self.copy)

    def __dlpack_device__(self):
        return self.device or self.value.__dlpack_device__()


def test_what_does_not_fit_is_refused(session):
    value = hotset.OrtValue.ortvalue_from_numpy(X, "cuda", 0)
    with pytest.raises(hotset.Unsupported, match="'?x'?.*computes on the CPU"):
        hotset.InferenceSession(model()).run(None, {"x": value})
    binding = session.io_binding()
    address = value.data_ptr()
    for device, pointer, text in [(1, address, "computes on cuda:0"), (0, address + 4, "not aligned to 16"), (0, 1 << 45, "no memory")]:
        with pytest.raises(hotset.InvalidArgument, match=text):
            binding.bind_input("x", "cuda", device, np.float32, [6, 4], pointer)
        with pytest.raises(hotset.InvalidArgument, match=text):
            binding.bind_output("z", "cuda", device, np.float32, [6, 4], pointer)
    binding.bind_ortvalue_input("x", value)
    binding.bind_ortvalue_output("z", hotset.OrtValue.ortvalue_from_shape_and_type([5, 4], np.float32, "cuda"))
    with pytest.raises(hotset.InvalidArgument, match="the buffer has 80 bytes, shape .6,4. of float needs 96"):
        session.run_with_iobinding(binding)
    with pytest.raises(hotset.InvalidArgument, match="int64"):
        session.run(None, {"x": hotset.OrtValue.ortvalue_from_numpy(X.astype(np.int64), "cuda")})
    with pytest.raises(hotset.Unsupported, match="CUDA stream"):
        hotset.InferenceSession(model()).run_on_stream(None, {"x": X}, 0)
    with pytest.raises(hotset.InvalidArgument, match="cuda:17"):
        hotset.InferenceSession(model(), providers=[("CUDAExecutionProvider", {"device_id": 17})])


def test_memory_that_runs_out_leaves_the_session_working(session):
    with pytest.raises(hotset.OutOfDeviceMemory, match="a tensor"):
        hotset.OrtValue.ortvalue_from_shape_and_type([1 << 40], np.float32, "cuda")
    np.testing.assert_array_equal(session.run(["z"], {"x": X})[0], X)
