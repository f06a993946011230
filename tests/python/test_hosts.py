# SPDX-License-Identifier: Apache-2.0
"""The example hosts generate the reference tokens of the demo model."""

import pathlib
import shlex
import shutil
import subprocess
import sys

import pytest

HOSTS = pathlib.Path(__file__).resolve().parents[1] / "hosts"


def generate(program, demo, reference, certain_tokens):
    arguments = [demo / "model.onnx", 64, 128, len(certain_tokens), *reference["prompt_ids"]]
    done = subprocess.run([*program, *map(str, arguments)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


@pytest.mark.parametrize(("compiler", "standard", "source"), [("cc", "c11", "generate_c11.c"), ("c++", "c++20", "generate_cpp20.cpp")])
def test_native_host(compiler, standard, source, tmp_path, demo, reference, certain_tokens):
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler}")
    flags = subprocess.run(
        [sys.executable, "-m", "hotset", "config", "--cflags", "--libs"], check=True, capture_output=True, text=True
    ).stdout
    program = tmp_path / "host"
    warnings = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
    subprocess.run([compiler, f"-std={standard}", *warnings, str(HOSTS / source), "-o", str(program), *shlex.split(flags)], check=True)
    assert generate([program], demo, reference, certain_tokens) == certain_tokens
    done = subprocess.run([program, "absent.onnx", "64", "128", "1", "1"], capture_output=True, text=True)
    assert done.returncode == 1 and "absent.onnx" in done.stderr


def test_python_host(demo, reference, certain_tokens):
    assert generate([sys.executable, HOSTS / "generate_python.py"], demo, reference, certain_tokens) == certain_tokens
