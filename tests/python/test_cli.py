# SPDX-License-Identifier: Apache-2.0
"""The command: output, streams, exit codes, interruption."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

import hotset

HOTSET = [sys.executable, "-m", "hotset"]


def run(*arguments, input=None, code=0):
    done = subprocess.run([*HOTSET, *map(str, arguments)], input=input, capture_output=True, text=True, encoding="utf-8", timeout=600)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_generate():
    done = run("generate", "demo", "-p", "In the beginning", "-n", "12")
    with hotset.Generator("demo") as generator:
        assert done.stdout == generator.generate("In the beginning", 12) + "\n"
    assert "tokens/s" in done.stderr and "first token" in done.stderr and len(done.stderr.splitlines()) == 1


def test_generate_reads_standard_input():
    assert (
        run("generate", "demo", "-n", "5", input="In the beginning").stdout
        == run("generate", "demo", "-n", "5", "-p", "In the beginning").stdout
    )


def test_generate_says_what_ended_it():
    arguments = ["generate", "demo", "-p", "In the beginning", "-n", "6"]
    text = run(*arguments).stdout
    assert "ended by the length limit" in run(*arguments).stderr
    done = run(*arguments, "--stop", text[3:6])
    assert text.startswith(done.stdout.rstrip("\n")) and done.stderr.endswith("; ended by the stop text\n")


def test_generate_settings():
    arguments = ["generate", "demo", "-p", "In", "-n", "20", "--temperature", "1.2", "--top-k", "40", "--top-p", "0.9", "--seed", "3"]
    arguments += ["--repetition-penalty", "1.1", "--threads", "1", "-o", "hotset.cpu_activation=float"]
    assert run(*arguments).stdout == run(*arguments).stdout


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["generate", "no/such/folder", "-p", "a"], "genai_config.json"),
        (["generate", "demo", "-p", "a", "-o", "hotset.cpu_activations=float"], "hotset.cpu_activation"),
        (["generate", "demo", "-p", "a", "--threads", "-5"], "intra_op_num_threads"),
        (["generate", "demo", "-p", "a", "--chat"], "chat template"),
        (["info", "no/such/file.onnx"], "no/such/file.onnx"),
        (["generate", "demo", "-p", "a", "-o", "hotset.popularity_save_file=/no/such/folder/x"], "'/no/such/folder'"),
    ],
)
def test_errors_are_one_line(arguments, word):
    done = run(*arguments, code=1)
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("hotset: ") and word in done.stderr


@pytest.mark.parametrize(
    "arguments", [[], ["nonsense"], ["generate"], ["generate", "demo", "-o", "novalue"], ["generate", "demo", "-n", "x"]], ids=str
)
def test_usage(arguments):
    run(*arguments, code=2)


def test_files_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "genai_config.json").mkdir()
    (tmp_path / "README.md").write_text("x")
    done = run("generate", tmp_path, "-p", "a", code=1)
    assert done.stderr == f"hotset: '{tmp_path / 'genai_config.json'}' cannot be read: Is a directory\n"
    (tmp_path / "genai_config.json").rmdir()
    assert f"'{tmp_path / 'README.md'}' is not a model folder" in run("generate", tmp_path / "README.md", "-p", "a", code=1).stderr
    (tmp_path / "genai_config.json").write_text("[]")
    assert "is not a JSON object" in run("generate", tmp_path, "-p", "a", code=1).stderr
    done = run("profile", "demo", "--prompts", tmp_path / "none", code=1)
    assert done.stderr == f"hotset: '{tmp_path / 'none'}' cannot be read: No such file or directory\n"


@pytest.mark.parametrize("context", [0, 2**31, 10**20])
def test_info_refuses_a_context_that_no_model_has(context):
    assert f"context of {context} tokens, allowed: 1..2147483647" in run("info", "demo", "--context", context, code=1).stderr


def test_profile(tmp_path, demo):
    profile, prompts = tmp_path / "expert-profile.bin", tmp_path / "prompts.txt"
    prompts.write_text("In the beginning\n\nimport os\n", encoding="utf-8")
    arguments = ["profile", "demo", "-n", "4", "--output", profile]
    done = run(*arguments, "-p", "And God said", "--prompts", prompts)
    first = profile.read_bytes()
    assert first[:4] == b"MOEP" and "3 prompts" in done.stdout and "busiest experts" in done.stdout
    assert f"\nto use it: -o session.moe.offload.popularity_file={profile}\n" in done.stdout
    run(*arguments, "--prompts", "-", input="And God said\nIn the beginning\nimport os\n")
    assert profile.read_bytes() == first
    options = hotset.SessionOptions()
    options.add_session_config_entry("session.moe.offload.popularity_file", str(profile))
    layers = hotset.InferenceSession(demo / "model.onnx", options).expert_stats()
    assert all(abs(sum(layer["counters"]) - layer["experts_per_token"]) < 1e-4 for layer in layers)
    assert run(*arguments, code=1).stderr == "hotset: there is no prompt: give -p TEXT or --prompts FILE\n"
    assert run("profile", "demo", "-n", "1", "-p", "In", "--output", tmp_path / "no" / "profile", code=1).stderr.count("\n") == 1


def test_counters_that_are_not_saved_fail_the_command(tmp_path):
    (tmp_path / "taken").mkdir()
    arguments = ["generate", "demo", "-p", "In the beginning", "-n", "3"]
    done = run(*arguments, "-o", f"hotset.popularity_save_file={tmp_path / 'taken'}", code=1)
    assert done.stdout == run(*arguments).stdout and f"'{tmp_path / 'taken'}' cannot be written" in done.stderr
    run(*arguments, "-o", f"hotset.popularity_save_file={tmp_path / 'saved'}")
    assert (tmp_path / "saved").is_file()


def test_changed_routes_are_reported():
    arguments = ["generate", "demo", "-p", "In the beginning", "-n", "3", "--stats"]
    assert "approximate" not in run(*arguments).stderr
    on = ["-o", "hotset.approximate_on_cpu=1", "-o", "session.moe.offload.min_expert_weight=1"]
    with hotset.Generator("demo") as generator:
        layers = len(generator.session.expert_stats())
        list(generator.stream("In the beginning", 3))
        stats = generator.session.stats()
    dropped = layers * stats["expert_tokens"] * (stats["experts"][0]["experts_per_token"] - 1)  # all but the first of each token
    assert f"approximate: {dropped} routes were dropped, 0 replaced" in run(*arguments, *on).stderr


def test_profile_draws_a_heat_map(tmp_path):
    arguments = ["profile", "demo", "-n", "2", "-p", "In", "--output", tmp_path / "profile.bin", "--plot", tmp_path / "map.png"]
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        assert "hotset[plots]" in run(*arguments, code=1).stderr and not list(tmp_path.iterdir())
    else:
        run(*arguments)
        assert (tmp_path / "map.png").read_bytes()[:4] == b"\x89PNG"


def test_info(demo):
    text = run("info", "demo").stdout
    for word in ("input_ids", "past_sliding_length", "QMoE", "GroupQueryAttention", "24"):
        assert word in text
    report = json.loads(run("info", demo / "model.onnx", "--json").stdout)
    shape = ["batch_size", "sequence_length"]
    assert report["inputs"][0] == {"name": "input_ids", "type": "tensor(int64)", "device": "cpu", "shape": shape}
    assert sum(row["bytes"] for row in report["memory"]) > 10e6


def test_doctor():
    assert "hotset" in run("doctor").stdout
    kernels = json.loads(run("doctor", "--json").stdout)["kernels"]
    assert {"int4 weights, int8 activations", "float weights", "attention", "elementwise functions and softmax"} <= kernels.keys()


def test_options():
    text = run("options").stdout
    assert "hotset.cpu_activation = auto" in text
    assert {row["key"] for row in json.loads(run("options", "--json").stdout)} == {row.key for row in hotset.option_table()}


def test_config():
    assert run("config", "--cflags").stdout.startswith("-I")
    assert (pathlib.Path(run("config", "--includedir").stdout.strip()) / "hotset" / "hotset.h").is_file()
    text = run("config", "--cflags", "--libs", "--includedir", "--libdir").stdout
    assert len(text.splitlines()) == 4 and "rpath" in text


def test_version():
    assert run("--version").stdout == f"hotset {hotset.__version__}\n"


def test_unset_standard_output_encoding():
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*HOTSET, "generate", "demo", "-p", "caf\u00e9", "-n", "3"], env=environment, capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr


def start(*arguments, **streams):
    return subprocess.Popen([*HOTSET, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8", **streams)


LONG = ["generate", "demo", "-p", "In the beginning", "-n", "2000"]  # greedy text of this prompt does not end


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("module", ["numpy", "cffi", "argparse"])
def test_interrupt_while_importing(tmp_path, module):
    """The interrupt comes from the first line of a module that the command imports."""
    (tmp_path / f"{module}.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nimport time\ntime.sleep(9)\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run([*HOTSET, "doctor"], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_interrupt():
    process = start(*LONG)
    process.stdout.read(20)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 130 and "Traceback" not in errors


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_broken_pipe():
    process = start(*LONG)
    process.stdout.read(20)
    process.stdout.close()
    begin = time.monotonic()
    errors = process.stderr.read()
    assert process.wait(600) == 141 and "Traceback" not in errors and "Exception" not in errors
    assert time.monotonic() - begin < 30


def test_generate_stats():
    done = run("generate", "demo", "-p", "a", "-n", "3", "--stats")
    assert "routes to experts" in done.stderr and done.stderr.count("QMoE") == 4
