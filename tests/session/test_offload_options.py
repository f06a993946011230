# SPDX-License-Identifier: Apache-2.0
"""The keys session.moe.offload.*: the values that onnxruntime takes and refuses, and what they say together."""

import logging
import os
import shutil
from unittest import mock

import numpy as np
import pytest

import helpers
import hotset
from hotset.generator import model_folder

PREFIX = "session.moe.offload."
BYTES = (["0", "007", "18446744073709551615"], ["", "-1", "+1", " 1", "1KiB", "0x10", "18446744073709551616"])
BYTES_AUTO = ([*BYTES[0], "auto", "AUTO"], [*BYTES[1], "automatic"])
BYTES_POSITIVE = (["1", "18446744073709551615"], ["", "0", "auto", "1.5"])
INT = (["0", "-0", "2147483647"], ["", "-1", "+1", "2147483648", "1.0"])
DIGIT_FLAG = (["0", "1"], ["", "true", "2"])
TEXT = (["", "anything; at all"], [])
KEYS = {  # key -> values taken, values refused
    "mode": (["disabled", "OFF", "0", "auto", "Required", "on", "1"], ["", "true", "enabled", "2"]),
    "cpu_execution": (["auto", "ENABLED", "1", "disabled", "0"], ["", "on"]),
    "placement": (["adaptive", "Static"], ["", "basic", "layered"]),
    "device_expert_bytes": BYTES_AUTO,
    "gpu_budget_bytes": BYTES_AUTO,
    "host_expert_bytes": BYTES_AUTO,
    "pinned_bytes": BYTES_AUTO,
    "reserve_device_bytes": BYTES_AUTO,
    "device_working_bytes": BYTES_POSITIVE,
    "host_working_bytes": BYTES_POSITIVE,
    "gpu_device_mem_limit": (BYTES[0], [*BYTES[1], "auto"]),
    "budget_group": TEXT,
    "allow_file_backing": (["0", "1", "TRUE", "false"], ["", "yes", "2"]),
    "cpu_threads": INT,
    "async_max_tokens": INT,
    "prefill_wave_experts": (["1", "2147483647"], ["", "0", "-0"]),
    "popularity_file": (["", "profile.bin"], []),
    "source_root": (["", "folder"], []),
    "derived_cache_dir": TEXT,
    "node_overrides": (
        ["", ";", "a:max_resident_slots=1,;b c : device_expert_bytes = 2"],
        ["a", "a:", "a:slots=1", ":max_resident_slots=1", "a:device_expert_bytes=auto", "a:,max_resident_slots=1"],
    ),
    "skip_zero_cold_doorbell": DIGIT_FLAG,
    "min_expert_weight": (["0", "1", " 0.5", "0x1p-1", "1e-60"], ["", "1.5", "-1", "nan", "half"]),
    "skip_tail_cold_only": DIGIT_FLAG,
    "tail_substitution_threshold": (["0", "1e30", ".5", "1e-40"], ["", " 1", "+1", "0x1", "3.5e38", "1e-46", "inf", "-1"]),
    "tail_substitution_min_rank": INT,
}
VALUES = [(key, value, taken) for key, (good, bad) in KEYS.items() for values, taken in ((good, True), (bad, False)) for value in values]


@pytest.fixture(scope="module")
def model():
    return helpers.node_model("Add", [np.ones(3, np.float32), np.ones(3, np.float32)], {})


def takes(model, key, value):
    options = hotset.SessionOptions()
    try:
        options.add_session_config_entry(key, value)
    except hotset.InvalidArgument as refusal:
        assert str(refusal).startswith("OFFLOAD_BAD_OPTION") and key in str(refusal) and "\n" not in str(refusal)
        return False
    if key.endswith(("source_root", "popularity_file")):
        return True
    hotset.InferenceSession(model, options).close()
    return True


def test_all_keys_are_listed():
    listed = {row.key for row in hotset.option_table() if row.key.startswith(PREFIX)}
    assert listed == {PREFIX + key for key in KEYS} and len(listed) == 25


@pytest.mark.parametrize("key,value,taken", VALUES)
def test_values(model, key, value, taken):
    assert takes(model, PREFIX + key, value) == taken


def test_onnxruntime_agrees(model):
    onnxruntime = pytest.importorskip("onnxruntime")
    if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 32):
        pytest.skip("onnxruntime before 1.32 does not know the keys")
    disagree = []
    for key, value, taken in VALUES:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.add_session_config_entry(PREFIX + key, value)
        try:
            onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
            theirs = True
        except Exception:
            theirs = False
        if theirs != taken:
            disagree.append((key, value, theirs))
    assert not disagree


def test_unknown_keys():
    options = hotset.SessionOptions()
    for key in ("session.moe.offload.modes", "session.moe.offload."):
        with pytest.raises(hotset.InvalidArgument, match="OFFLOAD_BAD_OPTION.*nearest"):
            options.add_session_config_entry(key, "1")
    with pytest.raises(hotset.InvalidArgument, match=r"session\.moe\.offload"):
        options.add_session_config_entry("moe.cpu_offload.mode", "auto")


def test_two_names_of_one_budget(model):
    for a, b, fits in (("1000", "01000", True), ("auto", "AUTO", True), ("0", "auto", False), ("1", "2", False)):
        options = hotset.SessionOptions()
        options.add_session_config_entry(PREFIX + "device_expert_bytes", a)
        options.add_session_config_entry(PREFIX + "gpu_budget_bytes", b)
        if fits:
            hotset.InferenceSession(model, options)
            continue
        with pytest.raises(hotset.InvalidArgument, match="device_expert_bytes.*gpu_budget_bytes"):
            hotset.InferenceSession(model, options)


def test_environment_stands_in(model):
    key = PREFIX + "min_expert_weight"

    def in_force(value, options=None):
        with mock.patch.dict(os.environ, {"ORT_QMOE_MIN_EXPERT_WEIGHT": value}):
            return hotset.InferenceSession(model, options or hotset.SessionOptions()).plan()["options"][key]

    assert in_force("0.25") == "0.25" and in_force("") == "0"
    with pytest.raises(hotset.InvalidArgument, match="ORT_QMOE_MIN_EXPERT_WEIGHT.*min_expert_weight"):
        in_force("2")
    options = hotset.SessionOptions()
    options.add_session_config_entry(key, "0.5")
    assert in_force("2", options) == "0.5"


def test_keys_of_a_gpu_are_named_once(model, caplog):
    options = hotset.SessionOptions()
    options.add_session_config_entry(PREFIX + "mode", "required")
    options.add_session_config_entry(PREFIX + "placement", "static")
    options.add_session_config_entry(PREFIX + "host_expert_bytes", "18446744073709551615")
    with caplog.at_level(logging.WARNING, "hotset"):
        hotset.InferenceSession(model, options)
    warnings = [r.message for r in caplog.records if "without a GPU" in r.message]
    assert len(warnings) == 1 and "placement" in warnings[0] and "mode" in warnings[0] and "host_expert_bytes" not in warnings[0]


def test_a_budget_without_experts_is_told(model):
    log = []
    options = hotset.SessionOptions()
    options.add_session_config_entry("session.moe.offload.host_expert_bytes", "1048576")
    options.set_log(lambda level, text: log.append(text))
    hotset.InferenceSession(model, options)
    assert len(log) == 1 and "host_expert_bytes bounds nothing" in log[0]


def test_source_root(tmp_path):
    demo = model_folder("demo")
    (tmp_path / "model").mkdir()
    (tmp_path / "data").mkdir()
    for file in demo.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path / ("data" if file.name.endswith(".data") else "model") / file.name)
    path = tmp_path / "model" / "model.onnx"
    with pytest.raises(hotset.NotFound):
        hotset.InferenceSession(path)
    for root in ("../data", str(tmp_path / "data")):
        options = hotset.SessionOptions()
        options.add_session_config_entry(PREFIX + "source_root", root)
        session = hotset.InferenceSession(path, options)
        assert any(os.path.samefile(file["path"], tmp_path / "data" / "model.onnx.data") for file in session.plan()["files"])
