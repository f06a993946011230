# SPDX-License-Identifier: Apache-2.0
"""SessionOptions: the table, onnxruntime's attributes, log and progress callbacks."""

import logging

import pytest

import hotset


def test_table():
    rows = {row.key: row for row in hotset.option_table()}
    assert rows["intra_op_num_threads"].type == "int"
    assert all(row.help.endswith(".") and row.type in ("int", "bool", "choice", "bytes", "real", "text") for row in rows.values())
    assert all("\n" not in row.help for row in rows.values())
    options = hotset.SessionOptions()
    for key, row in rows.items():
        assert options.get_session_config_entry(key) == row.default


def test_values_are_checked_when_set():
    options = hotset.SessionOptions()
    options.intra_op_num_threads = 2
    assert options.intra_op_num_threads == 2 and options.get_session_config_entry("intra_op_num_threads") == "2"
    with pytest.raises(hotset.InvalidArgument, match="intra_op_num_threads"):
        options.intra_op_num_threads = -1
    assert options.intra_op_num_threads == 2
    with pytest.raises(hotset.InvalidArgument, match="hotset.cpu_activation"):
        options.add_session_config_entry("hotset.cpu_activations", "float")
    options.add_session_config_entry("session.somebody_elses", "1")
    assert options.get_session_config_entry("session.somebody_elses") == "1"
    with pytest.raises(hotset.InvalidArgument):
        options.get_session_config_entry("session.never_set")


@pytest.mark.parametrize("fallback", ["0", "1"])
def test_a_device_that_is_not_there_is_refused(add_path, fallback):
    """Asked for by name it is not replaced by the CPU, whatever the fallback says."""
    options = hotset.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", fallback)
    for value in ("gpu", "cuda:", "cuda:-1", "cuda:1x", "CUDA"):
        with pytest.raises(hotset.InvalidArgument, match=r"is not one of cpu\|cuda:N"):
            options.add_session_config_entry("hotset.device", value)
    assert options.get_session_config_entry("hotset.device") == "cpu"
    with pytest.raises((hotset.Unsupported, hotset.InvalidArgument), match="option 'hotset.device': "):
        options.add_session_config_entry("hotset.device", "cuda:7777")  # refused where the build has no device code
        hotset.InferenceSession(add_path, sess_options=options)


def test_attributes_of_onnxruntime_programs(add_path):
    options = hotset.SessionOptions()
    options.graph_optimization_level = hotset.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = hotset.ExecutionMode.ORT_SEQUENTIAL
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 3
    assert options.graph_optimization_level == 99 and options.enable_mem_pattern is False
    hotset.InferenceSession(add_path, sess_options=options)
    options.enable_profiling = False
    for name, value in (("enable_profiling", True), ("optimized_model_filepath", "a.onnx")):
        with pytest.raises(NotImplementedError):
            setattr(options, name, value)
    with pytest.raises(AttributeError):
        options.intra_op_threads = 2
    with pytest.raises(AttributeError):
        hotset.RunOptions().log_id = "a"
    with pytest.raises(NotImplementedError):
        options.register_custom_ops_library("ops.so")


def test_messages_go_to_logging(add_path, caplog, capfd):
    options = hotset.SessionOptions()
    options.add_session_config_entry("session.somebody_elses", "1")
    options.log_severity_level = 1
    with caplog.at_level(logging.INFO, "hotset"):
        hotset.InferenceSession(add_path, options)
    assert "session.somebody_elses" in caplog.text
    caplog.clear()
    options.log_severity_level = 4
    hotset.InferenceSession(add_path, options)
    assert not caplog.records
    options.log_severity_level = 1
    hotset.set_default_logger_severity(3)
    try:
        hotset.InferenceSession(add_path, options)
    finally:
        hotset.set_default_logger_severity(0)
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


def test_progress(demo):
    calls = []
    options = hotset.SessionOptions()
    options.set_progress(lambda stage, done, total: calls.append((stage, done, total)))
    hotset.InferenceSession(demo / "model.onnx", options)
    assert calls and all(done <= total for _, done, total in calls)

    options.set_progress(lambda stage, done, total: False)
    with pytest.raises(hotset.Cancelled):
        hotset.InferenceSession(demo / "model.onnx", options)

    def fail(stage, done, total):
        raise KeyboardInterrupt

    options.set_progress(fail)
    with pytest.raises(KeyboardInterrupt):
        hotset.InferenceSession(demo / "model.onnx", options)
    options.set_progress(None)
    hotset.InferenceSession(demo / "model.onnx", options)


def test_run_options():
    options = hotset.RunOptions()
    options.logid = "request 7"
    options.add_run_config_entry("a", "b")
    assert options.logid == "request 7" and options.get_run_config_entry("a") == "b" and options.terminate is False
