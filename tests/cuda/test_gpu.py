# SPDX-License-Identifier: Apache-2.0
"""The installed library on a real GPU; tools/gpu_check.sh runs these on a machine that has one."""

import gc
import time

import numpy as np
import pytest
from onnx import TensorProto, helper

import hotset
from hotset._native import ffi, lib

pytestmark = pytest.mark.gpu


def device_info(index: int):
    info = ffi.new("hotset_device_info *", {"struct_size": ffi.sizeof("hotset_device_info")})
    assert lib.hotset_device_get_info(index, info) == lib.HOTSET_OK, ffi.string(lib.hotset_last_error())
    return info


def test_devices_are_described():
    count = ffi.new("int32_t *")
    assert lib.hotset_device_count(count) == lib.HOTSET_OK and count[0] > 0
    for index in range(count[0]):
        info = device_info(index)
        assert info.device == lib.HOTSET_CUDA and info.device_id == index
        assert info.name != b"" and info.compute_major >= 5 and info.memory_bytes > 1 << 30 and info.driver_version >= 12000


def add_model(elements: int) -> bytes:
    """y = x + x, float32 (elements)."""
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [elements]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "add", value[:1], value[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()


def cuda_session(model):
    return hotset.InferenceSession(model, providers=["CUDAExecutionProvider"])


def test_torch_tensors_go_in_and_out_without_copies():
    torch = pytest.importorskip("torch")
    session = cuda_session(add_model(1 << 20))
    x = torch.randn(1 << 20, device="cuda")
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], (x + x).cpu().numpy())
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", hotset.OrtValue.from_dlpack(x))
    binding.bind_output("y", "cuda", 0)
    session.run_with_iobinding(binding)
    (result,) = binding.get_outputs()
    y = torch.from_dlpack(result)
    assert y.data_ptr() == result.data_ptr() and y.is_cuda
    del result, binding, session
    gc.collect()
    torch.testing.assert_close(y, x + x, rtol=0, atol=0)
    written = torch.zeros_like(x)
    session = cuda_session(add_model(1 << 20))
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", hotset.OrtValue.from_dlpack(x))
    binding.bind_output("y", "cuda", 0, np.float32, list(written.shape), written.data_ptr())
    session.run_with_iobinding(binding)
    torch.testing.assert_close(written, x + x, rtol=0, atol=0)


def test_cupy_arrays_go_in_and_out_without_copies():
    cupy = pytest.importorskip("cupy")
    session = cuda_session(add_model(1000))
    x = cupy.arange(1000, dtype=cupy.float32)
    (y,) = session.run_on_stream(None, {"x": x}, cupy.cuda.get_current_stream().ptr)
    shared = cupy.from_dlpack(y)
    assert shared.data.ptr == y.data_ptr()
    cupy.testing.assert_array_equal(shared, x + x)


def test_runs_keep_the_order_of_a_stream():
    """The stream is busy for long before it writes the input; later work in it reads the result."""
    torch = pytest.importorskip("torch")
    n = 1 << 22
    session = cuda_session(add_model(n))
    stream = torch.cuda.Stream()
    x, y = torch.zeros(n, device="cuda"), torch.zeros(n, device="cuda")
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", hotset.OrtValue.from_dlpack(x))
    binding.bind_output("y", "cuda", 0, np.float32, [n], y.data_ptr())
    session.run_with_iobinding(binding)
    waited = []
    with torch.cuda.stream(stream):
        for value in range(1, 6):
            torch.cuda._sleep(40_000_000)  # about 20 ms
            x.fill_(value)
            begin = time.perf_counter()
            session.run_with_iobinding_on_stream(binding, stream.cuda_stream)
            waited.append(time.perf_counter() - begin)
            seen = y.clone()
            x.fill_(-1)  # after the run has read it
            stream.synchronize()
            assert torch.all(seen == 2 * value), seen[:4]
            (fresh,) = session.run_on_stream(None, {"x": x}, stream.cuda_stream)
            assert torch.all(torch.from_dlpack(fresh) == -2)
    assert min(waited) < 0.01, "the call waited for the stream"


def test_the_demo_model_gives_the_same_text():
    with hotset.Generator("demo") as generator:
        expected = generator.generate("The", max_new_tokens=40)
    options = hotset.SessionOptions()
    options.add_session_config_entry("hotset.device", "cuda:0")
    with hotset.Generator("demo", options) as generator:
        assert generator.generate("The", max_new_tokens=40) == expected
