# SPDX-License-Identifier: Apache-2.0
"""Each native test program is one test: exit status 0 passes, 77 skips with the last line as reason."""

import json
import pathlib
import subprocess

import pytest

from conftest import ROOT

TESTS = ROOT / "tests"
ROOMS = ["base", "formats", "cpu_avx", "cuda", "model", "experts", "ops", "session"]


def programs() -> list[str]:
    """The programs that tests/meson.build makes, known before anything is built."""
    files = [f for room in ROOMS for f in (TESTS / room).glob("test_*.cpp")]
    files += [f for room in ("kernels", "cuda") for f in (TESTS / room).glob("check_*.cpp")]
    files += (TESTS / "fuzz").glob("fuzz_*.cpp")
    files += [*(TESTS / "api").glob("*.c"), *(TESTS / "api").glob("*.cpp")]
    return sorted(f"{f.parent.name}-{f.stem}" for f in files)


@pytest.mark.parametrize("program", programs())
def test_program(native_build: pathlib.Path, program: str):
    corpus = TESTS / "fuzz" / "corpus" / program.removeprefix("fuzz-fuzz_")
    command = [native_build / "tests" / program, *([corpus] if program.startswith("fuzz-") and corpus.is_dir() else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode == 77:
        pytest.skip((done.stdout.strip().splitlines() or ["no reason given"])[-1])
    assert done.returncode == 0, f"{program} ended with {done.returncode}\n{done.stdout[-8000:]}"


def test_no_program_is_forgotten(native_build: pathlib.Path):
    listed = json.loads((native_build / "meson-info" / "intro-tests.json").read_text())
    assert sorted(test["name"] for test in listed) == programs()
