# SPDX-License-Identifier: Apache-2.0
"""Calls that users get wrong: each gives an error that says what to do, and what it was called on works afterwards."""

import os
import shlex
import subprocess
import sys
import threading

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import hotset


def test_one_generator_in_two_threads(demo):
    """Either call may get InvalidState; none may crash or give another text."""
    with hotset.Generator(demo) as generator:
        expected = generator.generate("In the beginning", 12)
        unexpected = []

        def worker():
            for _ in range(15):
                try:
                    if generator.generate("In the beginning", 12) != expected:
                        unexpected.append("another text")
                except hotset.InvalidState:
                    pass
                except Exception as error:
                    unexpected.append(repr(error))

        threads = [threading.Thread(target=worker) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not unexpected
        assert generator.generate("In the beginning", 12) == expected


def test_one_binding_in_several_threads(demo):
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [200, 200])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    session = hotset.InferenceSession(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    )
    binding = session.io_binding()
    x = np.eye(200, dtype=np.float32)
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    refused, unexpected = [], []

    def worker():
        for _ in range(40):
            try:
                session.run_with_iobinding(binding)
            except hotset.InvalidState as error:
                refused.append(str(error))
            except Exception as error:
                unexpected.append(repr(error))

    threads = [threading.Thread(target=worker) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not unexpected and all("another thread" in text for text in refused)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], x)


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda g: g.generate(b"In the beginning", 5), "bytes"),
        (lambda g: g.generate([1.5], 5), "whole number"),
        (lambda g: g.generate("a", 2.5), "max_new_tokens is 2.5"),
        (lambda g: g.generate("a", "3"), "max_new_tokens is '3'"),
        (lambda g: g.generate("a", True), "max_new_tokens is True"),
        (lambda g: g.generate("a", 0), "at least 1"),
        (lambda g: g.generate("a", 3, stop=""), "stop text is empty"),
        (lambda g: g.generate("a", 3, stop=["x", ""]), "stop text is empty"),
        (lambda g: g.generate("a", 3, seed=-1), r"seed is -1, allowed: 0..2\*\*64-1"),
        (lambda g: g.generate("a", 3, seed=2**64), "allowed"),
        (lambda g: g.generate_batch(["a", "b"], [3, 0]), "at least 1"),
        (lambda g: hotset.Generator("demo", max_length=2.5), "max_length is 2.5"),
        (lambda g: hotset.Generator("demo", max_length="5"), "max_length is '5'"),
        (lambda g: g.session.run(None, None), "dict of arrays"),
        (lambda g: g.session.run(None, [1]), "dict of arrays"),
    ],
)
def test_wrong_arguments(demo_generator, call, text):
    with pytest.raises(hotset.InvalidArgument, match=text):
        call(demo_generator)
    assert demo_generator.generate("a", 2)


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda g: hotset.Generator("demo", "x"), "sess_options is 'x'"),
        (lambda g: hotset.InferenceSession(g.folder / "model.onnx", 5), "sess_options is 5"),
        (lambda g: hotset.plan(g.folder / "model.onnx", 5), "sess_options is 5"),
        (lambda g: hotset.SessionOptions().add_session_config_entry("hotset.fuse", 1), "value is 1"),
        (lambda g: hotset.SessionOptions().add_session_config_entry(1, "hotset.fuse"), "key is 1"),
        (lambda g: g.stream("a", stop=5), "stop is 5"),
        (lambda g: g.stream("a", foo=1), "argument 'foo'"),
        (lambda g: g.generate("a", foo=1), "argument 'foo'.* stop"),
        (lambda g: g.generate_batch(["a"], foo=1), "argument 'foo'.* stop"),
        (lambda g: g.stream_ids("a", top_k=1.5), "top_k is 1.5"),
        (lambda g: g.stream_ids("a", do_sample="no"), "do_sample is 'no', expected True"),
        (lambda g: g.stream_ids("a", temperature="hot"), "temperature is 'hot'"),
        (lambda g: g.stream_ids("a", stop_token_ids=5), "stop_token_ids is 5"),
    ],
)
def test_wrong_types(demo_generator, call, text):
    with pytest.raises(TypeError, match=text):
        call(demo_generator)


def test_a_graph_optimization_level_that_does_not_exist():
    options = hotset.SessionOptions()
    with pytest.raises(hotset.InvalidArgument, match="graph_optimization_level is 77, allowed: .*ORT_ENABLE_ALL"):
        options.graph_optimization_level = 77
    assert options.graph_optimization_level == hotset.GraphOptimizationLevel.ORT_ENABLE_ALL


@pytest.fixture(scope="module")
def demo_generator():
    with hotset.Generator("demo") as generator:
        yield generator


def test_a_model_file_stands_for_its_folder(demo):
    with hotset.Generator(demo / "model.onnx") as generator:
        assert generator.generate("In the beginning", 3)


def test_a_folder_named_demo_without_a_model_is_not_meant(tmp_path, monkeypatch):
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    with hotset.Generator("demo") as generator:
        assert generator.generate("a", 1)


def test_a_damaged_tokenizer_is_named(demo, tmp_path):
    for file in demo.iterdir():
        if file.name != "tokenizer.json":
            (tmp_path / file.name).symlink_to(file)
    (tmp_path / "tokenizer.json").write_text("{")
    with hotset.Generator(tmp_path) as generator, pytest.raises(hotset.InvalidModel, match="tokenizer.json"):
        generator.generate("a", 1)


def command_in_shell(arguments):
    """The command with redirections. A preloaded sanitizer is for the command: the shell itself may crash under it."""
    environment = os.environ.copy()
    preload = shlex.quote(environment.pop("LD_PRELOAD", ""))
    return subprocess.run(
        ["bash", "-c", f"LD_PRELOAD={preload} exec {sys.executable} -m hotset {arguments}"],
        env=environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("redirection", ["<&-", ">&- -p x", ">/dev/full -p x"])
def test_closed_and_full_streams(redirection):
    done = command_in_shell(f"generate demo -n 2 {redirection}")
    assert done.returncode != 0 and "Traceback" not in done.stderr and "hotset: " in done.stderr
    if "/dev/full" in redirection:
        assert done.stderr == "hotset: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_text_without_standard_error(redirection):
    done = command_in_shell(f"generate demo -p 'In the beginning' -n 2 --stats {redirection}")
    with hotset.Generator("demo") as generator:
        assert (done.returncode, done.stdout) == (0, generator.generate("In the beginning", 2) + "\n")


def test_info_of_a_model_with_unknown_operators(tmp_path):
    graph = helper.make_graph(
        [helper.make_node("NoSuchOp", ["x"], ["y"]), helper.make_node("Neg", ["y"], ["z"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
    )
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    assert hotset.plan(path)["missing_operators"] == ["ai.onnx::NoSuchOp"]
    done = subprocess.run([sys.executable, "-m", "hotset", "info", path], capture_output=True, text=True)
    assert done.returncode == 0 and "ai.onnx::NoSuchOp" in done.stdout
    with pytest.raises(hotset.Unsupported, match="model.onnx.*NoSuchOp"):
        hotset.InferenceSession(path)


def test_a_run_carries_its_tag_into_the_trace(demo):
    options = hotset.SessionOptions()
    options.add_session_config_entry("hotset.trace", "1")
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    session = hotset.InferenceSession(model, options)
    run_options = hotset.RunOptions()
    run_options.logid = "turn 7"
    session.run(None, {"x": np.ones(2, np.float32)}, run_options)
    assert [event["args"]["tag"] for event in session.trace()] == ["turn 7"]


def test_dimension_overrides_are_refused_not_ignored():
    with pytest.raises(hotset.Unsupported):
        hotset.SessionOptions().add_free_dimension_override_by_name("batch_size", 1)
