# SPDX-License-Identifier: Apache-2.0
"""What `hotset info` says about caches: as many bytes as a Generator allocates, per token and for a context."""

import json
import pathlib
import subprocess
import sys

import pytest

import hotset
from hotset.cache_report import cache_report
from hotset.decoding import DecodeLoop
from hotset.genai_config import read_genai_config

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"


def report_of(folder, context=None):
    config = read_genai_config(folder)
    return cache_report(hotset.plan(config.model_path)["inputs"], config, context)


def allocated(folder, max_length):
    """Bytes of the states that a decode loop of one sequence holds; those that alternate hold two buffers."""
    with hotset.Generator(folder, max_length=max_length) as generator:
        loop = DecodeLoop(generator.session, generator.config, max_length, hotset.RunOptions())
        memories = [state._memory if hasattr(state, "_memory") else state._memories[0] for state in loop._states]
        return sum(memory._array.nbytes for memory in memories)


@pytest.mark.parametrize("name", ["gpt_oss-genai-int4-cpu", "gpt_oss-genai-fp16-cuda", "qwen3_moe-mobius-int4-cpu"])
@pytest.mark.parametrize("context", [17, 64])
def test_golden_models(name, context):
    assert report_of(GOLDEN / name, context)["bytes"] == allocated(GOLDEN / name, context)


def test_demo(demo):
    report = report_of(demo)
    assert report["context"] == 2048 and report["bytes"] == allocated(demo, 2048)
    # Two layers keep every row, two a window of 128; each has 2 heads of 64 float32 for K and for V.
    assert report["bytes_per_token"] == 2 * 2 * 2 * 64 * 4
    assert report["bytes"] == 2048 * report["bytes_per_token"] + 128 * 2 * 2 * 2 * 64 * 4
    assert [state["kind"] for state in report["states"]].count("window") == 4


def info(*arguments, code=0):
    command = [sys.executable, "-m", "hotset", "info", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=600)
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def test_command(demo):
    text = info("demo", "--context", "1000")
    assert "caches of one sequence" in text and "all together for 1000 tokens" in text and "K/V of a window" in text
    assert json.loads(info(demo / "model.onnx", "--context", "1000", "--json"))["caches"] == report_of(demo, 1000)
    assert info("demo", "--context", "0", code=1) == "hotset: a context of 0 tokens, allowed: 1..2147483647\n"


def test_command_with_experts_in_ordinary_operators():
    text = info(GOLDEN / "qwen3_moe-mobius-int4-cpu")
    assert "experts in ordinary operators" in text and "all of them for every token" in text


def test_command_without_config(add_path):
    text = info(add_path)
    assert "caches of one sequence" not in text and "K/V" not in text


def rows(*shapes, names=("past_key_values.0.key", "past_key_values.0.value"), type_name="float16"):
    return [{"name": name, "type": type_name, "shape": shape} for name, shape in zip(names, shapes, strict=True)]


@pytest.mark.parametrize(
    "names",
    [
        ("past_key_values.0.key", "past_key_values.0.value"),
        ("past_key_values.layers.0.keys", "past_key_values.layers.0.values"),
        ("key_cache.0", "value_cache.0"),
        ("key_cache", "value_cache"),
        ("past_key", "past_value"),
    ],
)
def test_names_of_exporters(names):
    report = cache_report(rows(["batch", 4, "past", 32], ["batch", 4, "past", 48], names=names), context=10)
    assert (report["bytes_per_token"], report["bytes"]) == (4 * (32 + 48) * 2, 10 * 4 * (32 + 48) * 2)


def test_other_inputs_are_no_caches():
    others = ("input_ids", "attention_mask", "key", "position_ids", "values")
    assert cache_report(rows(*[["n", 4, "m", 8]] * 5, names=others))["states"] == []


def test_fixed_rows_and_rows_of_heads():
    report = cache_report(rows(["batch", 4, 100, 32], ["batch", 100, 128]), context=10)
    assert [state["kind"] for state in report["states"]] == ["window", "window"]
    assert report["bytes"] == 100 * 128 * 2 * 2 and report["bytes_per_token"] == 0


def test_open_sizes_are_said_to_be_open():
    report = cache_report(rows(["batch", "heads", "past", 32], ["batch", 4, "past", 32]), context=10)
    assert report["bytes_per_token"] is None and report["bytes"] is None and report["states"][1]["bytes"] == 10 * 4 * 32 * 2
    report = cache_report(rows(["batch", 4, "past", 32], None), context=10)
    assert report["states"][1]["bytes"] is None
    report = cache_report(rows(["batch", 4, "past", 32], ["batch", 4, "past", 32]))
    assert report["context"] is None and report["bytes"] is None and report["bytes_per_token"] == 2 * 4 * 32 * 2


@pytest.mark.parametrize(("type_name", "size"), [("float", 4), ("bfloat16", 2), ("int8", 1), ("float8e4m3fn", 1)])
def test_types(type_name, size):
    report = cache_report(rows(["batch", 4, "past", 32], ["batch", 4, "past", 32], type_name=type_name))
    assert report["bytes_per_token"] == 2 * 4 * 32 * size
