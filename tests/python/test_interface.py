# SPDX-License-Identifier: Apache-2.0
"""The package reaches all of the C interface, and has what onnxruntime programs call or says why not."""

import logging
import pathlib
import re

import numpy as np
import pytest

import hotset

ROOT = pathlib.Path(__file__).resolve().parents[2]
X = np.arange(6, dtype=np.float32).reshape(1, 2, 3)

# Functions of the header that no line of the package calls.
NOT_CALLED = {}

# Names of onnxruntime that are absent here, with the reason.
ABSENT = {
    "SessionOptions": {
        "add_provider_for_devices": "devices are chosen by provider name or hotset.device",
        "set_provider_selection_policy_delegate": "devices are chosen by provider name or hotset.device",
        "set_ep_context_data_read_func": "models of compiled providers are not read",
        "clear_ep_context_data_read_func": "models of compiled providers are not read",
    },
    "RunOptions": {},
    "InferenceSession": {
        "create_ortvalue_from_shape_and_type": "OrtValue.ortvalue_from_shape_and_type does it",
        "end_profiling": "no profile file is written: hotset.trace=1 and trace()",
        "get_profiling_start_time_ns": "no profile file is written",
        "get_input_epdevices": "plug-in providers are not loaded",
        "get_input_memory_infos": "tensors live in host memory",
        "get_output_memory_infos": "tensors live in host memory",
        "get_provider_graph_assignment_info": "plan() tells the device and kernel of every node",
        "get_tuning_results": "kernels are chosen by the processor alone",
        "set_tuning_results": "kernels are chosen by the processor alone",
        "release_captured_graph": "no graph is captured",
        "run_with_ortvaluevector": "io_binding serves",
        "set_ep_dynamic_options": "options are fixed when the session is created",
        "set_providers": "a new session is as cheap",
    },
    "IOBinding": {},
    "OrtValue": {
        "as_sparse_tensor": "sparse tensors are not supported",
        "ort_value_from_sparse_tensor": "sparse tensors are not supported",
    },
    "ModelMetadata": {},
    "NodeArg": {},
}


def header_functions():
    header = (ROOT / "include/hotset/hotset.h").read_text()
    return set(re.findall(r"^HOTSET_API [^;(]*?\b(hotset_\w+)\(", header, re.MULTILINE))


def test_every_c_function_is_used():
    source = "".join(path.read_text() for path in pathlib.Path(hotset.__file__).parent.glob("*.py"))
    functions = header_functions()
    assert "hotset_run" in functions and len(functions) >= 50
    assert {name for name in functions if not re.search(rf"\b_?lib\.{name}\b", source)} == NOT_CALLED.keys()


def test_every_option_is_settable_and_documented():
    rows = hotset.option_table()
    section = (ROOT / "README.md").read_text().partition("\n## Options\n")[2].partition("\n## ")[0]
    documented = dict(re.findall(r"^\| `([\w.]+)` \|([^|]*)\|", section, re.MULTILINE))
    assert documented.keys() == {row.key for row in rows}
    options = hotset.SessionOptions()
    for row in rows:
        default = documented[row.key].split(",")[0].strip().strip("`")
        absent = default == "absent"
        assert default == (row.default or default), row.key
        assert absent == (row.default == "" and row.type != "text"), row.key
        if not absent:
            options.add_session_config_entry(row.key, row.default)
        assert options.get_session_config_entry(row.key) == row.default
        if row.type in ("bool", "choice"):
            for value in row.allowed.split("|"):
                options.add_session_config_entry(row.key, value)
                assert f"`{value}`" in documented[row.key], row.key
        if row.type != "text":
            with pytest.raises(hotset.InvalidArgument, match=row.key):
                options.add_session_config_entry(row.key, "x y")


@pytest.mark.parametrize("name", ABSENT)
def test_names_of_onnxruntime(name, add_model):
    onnxruntime = pytest.importorskip("onnxruntime")
    theirs = {attribute for attribute in dir(getattr(onnxruntime, name)) if not attribute.startswith("_")}
    ours = hotset.InferenceSession(add_model).get_modelmeta() if name == "ModelMetadata" else getattr(hotset, name)
    ours = hotset.InferenceSession(add_model).get_inputs()[0] if name == "NodeArg" else ours
    assert theirs - set(dir(ours)) == ABSENT[name].keys()


def test_module_functions():
    assert hotset.get_all_providers() == ["CUDAExecutionProvider", "CPUExecutionProvider"]
    assert hotset.get_available_providers()[-1] == "CPUExecutionProvider"
    assert hotset.get_device() == ("GPU" if len(hotset.get_available_providers()) > 1 else "CPU")
    assert hotset.get_version_string() == hotset.__version__
    cpu, *others = hotset.devices()
    assert cpu.type == "cpu" and cpu.memory_bytes > 0 and all(device.type == "cuda" for device in others)


@pytest.mark.skipif("CUDAExecutionProvider" in hotset.get_available_providers(), reason="a GPU serves here")
def test_fallback_to_the_cpu(add_path, caplog):
    wanted = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    assert hotset.InferenceSession(add_path, providers=wanted).get_providers() == wanted[1:]
    (record,) = caplog.records
    assert record.name == "hotset" and "CUDAExecutionProvider is not available" in record.message and "CPU serves" in record.message
    caplog.clear()
    options = hotset.SessionOptions()
    options.log_severity_level = 3
    options.add_provider("CUDAExecutionProvider", {"device_id": "0"})
    assert options.has_providers()
    hotset.InferenceSession(add_path, options)
    assert not caplog.records
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    for providers in (None, wanted, wanted[:1]):
        with pytest.raises(hotset.Unsupported, match="CUDAExecutionProvider is not available here .*disable_cpu_ep_fallback=1"):
            hotset.InferenceSession(add_path, options, providers)
    hotset.InferenceSession(add_path, options, ["CPUExecutionProvider"])


def test_log_callback(add_path, caplog):
    messages = []
    options = hotset.SessionOptions()
    options.add_session_config_entry("session.somebody_elses", "1")
    options.log_severity_level = 1
    options.set_log(lambda level, text: messages.append((level, text)))
    with caplog.at_level(logging.INFO, "hotset"):
        hotset.InferenceSession(add_path, options)
        assert len(messages) == 1 and messages[0][0] == 1 and "session.somebody_elses" in messages[0][1]
        assert not caplog.records

        def fail(level, text):
            raise RuntimeError("no")

        options.set_log(fail)
        hotset.InferenceSession(add_path, options)
        assert "log callback failed" in caplog.text
        caplog.clear()
        options.set_log(None)
        hotset.InferenceSession(add_path, options)
        assert "session.somebody_elses" in caplog.text
    assert len(messages) == 1


def test_cancelled_load(add_path):
    options = hotset.SessionOptions()
    options.set_load_cancellation_flag(True)
    with pytest.raises(hotset.Cancelled):
        hotset.InferenceSession(add_path, options)
    options.set_load_cancellation_flag(False)
    options.set_progress(lambda stage, done, total: options.set_load_cancellation_flag(True))
    with pytest.raises(hotset.Cancelled):
        hotset.InferenceSession(add_path, options)


def test_run_options_name_the_run(add_path):
    options = hotset.RunOptions()
    options.logid = "request 7"
    options.terminate = True
    with hotset.InferenceSession(add_path) as session, pytest.raises(hotset.Cancelled, match="request 7"):
        session.run(None, {"x": X}, options)


def test_run_async(add_path):
    import threading

    done, results = threading.Event(), []

    def callback(*arguments):
        results.append(arguments)
        done.set()

    with hotset.InferenceSession(add_path) as session:
        session.run_async(["z"], {"x": X}, callback, "user data")
        assert done.wait(600)
        (values, user_data, error) = results.pop()
        np.testing.assert_array_equal(values[0], X * X)
        assert (user_data, error) == ("user data", "")
        done.clear()
        session.run_async(["nowhere"], {"x": X}, callback)
        assert done.wait(600)
        assert results[0][0] == [] and "nowhere" in results[0][2]


def test_dlpack():
    value = hotset.OrtValue.from_dlpack(X)
    assert value.data_ptr() == X.ctypes.data
    np.testing.assert_array_equal(np.from_dlpack(value), X)
    value = hotset.OrtValue.ortvalue_from_numpy_with_onnx_type(np.array([0x3F80], np.uint16), 16)
    assert value.data_type() == "tensor(bfloat16)" and float(value.numpy()[0]) == 1.0
    with pytest.raises(hotset.InvalidArgument, match="bytes an element"):
        hotset.OrtValue.ortvalue_from_numpy_with_onnx_type(X, 16)


def test_caller_allocated_outputs(add_path):
    with hotset.InferenceSession(add_path) as session:
        binding = session.io_binding()
        binding.bind_cpu_input("x", X)
        room = hotset.OrtValue.ortvalue_from_shape_and_type([100], np.float32)
        binding.bind_ortvalue_output("y", room)
        for _ in range(2):
            session.run_with_iobinding(binding)
        (y,) = binding.get_outputs()
        assert y.data_ptr() == room.data_ptr() and y.shape() == [1, 2, 3]
        np.testing.assert_array_equal(y.numpy(), X + np.float32([1, 2, 3]))
        binding.bind_ortvalue_output("y", hotset.OrtValue.ortvalue_from_shape_and_type([5], np.float32))
        with pytest.raises(hotset.InvalidArgument, match="'y'.*20 bytes.*needs 24"):
            session.run_with_iobinding(binding)
        binding.bind_ortvalue_output("y", hotset.OrtValue(X.copy()))
        session.run_with_iobinding(binding)
        binding.bind_ortvalue_output("y", hotset.OrtValue(np.ascontiguousarray(X)))
        with pytest.raises(hotset.InvalidArgument, match="overlaps input 'x'"):
            session.run_with_iobinding(binding)


def test_caches_in_place(demo, reference, certain_tokens):
    """One OrtValue is past and present of a layer."""
    with hotset.InferenceSession(demo / "model.onnx") as session:
        binding, caches = session.io_binding(), []
        for arg in session.get_inputs():
            if not arg.name.startswith("past_key_values."):
                continue
            length = 128 if "sliding" in arg.shape[2] else 64
            caches.append(hotset.OrtValue.ortvalue_from_numpy(np.zeros((1, arg.shape[1], length, 64), np.float32)))
            binding.bind_ortvalue_input(arg.name, caches[-1])
            binding.bind_ortvalue_output(arg.name.replace("past_key_values.", "present."), caches[-1])
        binding.bind_output("logits")
        ids, new, tokens = list(reference["prompt_ids"]), list(reference["prompt_ids"]), []
        for _ in certain_tokens:
            binding.bind_cpu_input("input_ids", np.array([new], np.int64))
            binding.bind_cpu_input("attention_mask", np.ones((1, len(ids)), np.int64))
            session.run_with_iobinding(binding)
            new = [int(binding.get_outputs()[-1].numpy()[0, -1].argmax())]
            tokens += new
            ids += new
        assert tokens == certain_tokens
        assert all(np.abs(cache.numpy()).max() > 0 for cache in caches)
