# SPDX-License-Identifier: Apache-2.0
"""Element types in and out of a run, Tensor, IOBinding."""

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import hotset
from hotset.tensor import dtype_code, numpy_dtype

PLAIN = "float32 uint8 int8 uint16 int16 int32 int64 bool float16 float64 uint32 uint64".split()
EXTENDED = "bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz int4 uint4 float4_e2m1fn".split()
DTYPES = [np.dtype(name) for name in PLAIN] + [np.dtype(getattr(ml_dtypes, name)) for name in EXTENDED]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_goes_through(dtype, identity_model):
    session = hotset.InferenceSession(identity_model(dtype_code(dtype)))
    x = np.arange(-7, 8).astype(dtype).reshape(3, 5)  # an odd count for the packed types
    (y,) = session.run(None, {"x": x})
    assert y.dtype == dtype and y.shape == x.shape
    np.testing.assert_array_equal(y.astype(np.float64), x.astype(np.float64))


def test_type_names(identity_model):
    names = {np.float32: "float", np.float64: "double", np.bool_: "bool", ml_dtypes.bfloat16: "bfloat16", np.float16: "float16"}
    for dtype, name in names.items():
        (x,) = hotset.InferenceSession(identity_model(dtype_code(dtype))).get_inputs()
        assert x.type == f"tensor({name})"


def test_codes_are_those_of_onnx():
    for dtype in DTYPES:
        assert helper.tensor_dtype_to_np_dtype(dtype_code(dtype)) == dtype == numpy_dtype(dtype_code(dtype))


def test_scalar(identity_model):
    session = hotset.InferenceSession(identity_model(TensorProto.FLOAT, shape=[]))
    (y,) = session.run(None, {"x": np.array(2.5, np.float32)})
    assert y.shape == () and y == 2.5


def test_tensor():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    value = hotset.OrtValue.ortvalue_from_numpy(array)
    assert value.shape() == [2, 3] and value.data_type() == "tensor(float)" and value.element_type() == TensorProto.FLOAT
    assert value.numpy() is array and value.device_name() == "cpu" and value.data_ptr() == array.ctypes.data
    value.update_inplace(array * 2)
    assert array[1, 2] == 10
    with pytest.raises(hotset.InvalidArgument):
        value.update_inplace(np.zeros(3, np.float32))
    with pytest.raises(hotset.Unsupported):
        hotset.OrtValue.ortvalue_from_numpy(array, "cuda", 0)
    assert hotset.OrtValue.ortvalue_from_shape_and_type([4], ml_dtypes.bfloat16).data_type() == "tensor(bfloat16)"
    np.testing.assert_array_equal(np.asarray(value), array)


def test_io_binding(add_path):
    session = hotset.InferenceSession(add_path)
    x = np.ones((1, 2, 3), np.float32)
    z = np.empty((1, 2, 3), np.float32)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    binding.bind_ortvalue_output("z", hotset.OrtValue.ortvalue_from_numpy(z))
    for value in (1, 3):
        x[...] = value  # the buffer is bound, not its content
        session.run_with_iobinding(binding)
        y, z_again = binding.get_outputs()
        np.testing.assert_array_equal(z, x * x)
        np.testing.assert_array_equal(y.numpy(), x + np.float32([1, 2, 3]))
        assert np.shares_memory(z_again.numpy(), z)
    copies = binding.copy_outputs_to_cpu()
    assert not np.shares_memory(copies[1], z)

    binding.clear_binding_outputs()
    binding.bind_output("z", "cpu", 0, np.float32, [1, 2, 3], z.ctypes.data)
    z[...] = 0
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(z, x * x)
    binding.clear_binding_inputs()
    with pytest.raises(hotset.InvalidArgument, match="x"):
        session.run_with_iobinding(binding)


def test_io_binding_keeps_its_arrays_and_session(add_path):
    session = hotset.InferenceSession(add_path)
    binding = session.io_binding()
    binding.bind_cpu_input("x", np.full((1, 1, 3), 2, np.float32))
    binding.bind_ortvalue_output("z", hotset.OrtValue(np.empty((1, 1, 3), np.float32)))
    session.run_with_iobinding(binding)
    del session
    assert binding.copy_outputs_to_cpu()[0].tolist() == [[[4, 4, 4]]]


def test_io_binding_refuses_small_and_read_only_buffers(add_path):
    session = hotset.InferenceSession(add_path)
    binding = session.io_binding()
    binding.bind_cpu_input("x", np.ones((1, 2, 3), np.float32))
    frozen = np.empty((1, 2, 3), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(hotset.InvalidArgument, match="read-only"):
        binding.bind_ortvalue_output("z", hotset.OrtValue(frozen))
    with pytest.raises(hotset.InvalidArgument, match="24"):
        binding.bind_ortvalue_output("z", hotset.OrtValue(np.empty((1, 1, 3), np.float32)))
        session.run_with_iobinding(binding)
    with pytest.raises(hotset.Unsupported, match="cuda"):
        binding.bind_output("y", "cuda")
