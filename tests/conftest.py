# SPDX-License-Identifier: Apache-2.0
"""Shared fixtures: the source tree and a Meson build folder with the native test programs in it."""

import contextlib
import os
import pathlib
import subprocess
import sys

import hypothesis
import pytest

# The same cases each time, so that a failure is the change's; HOTSET_RANDOM_TESTS=1 looks for new ones.
hypothesis.settings.register_profile("repeatable", derandomize=True)
if not os.environ.get("HOTSET_RANDOM_TESTS"):
    hypothesis.settings.load_profile("repeatable")

ROOT = pathlib.Path(__file__).resolve().parents[1]


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu"):
        from hotset._native import ffi, lib

        count = ffi.new("int32_t *")
        if lib.hotset_device_count(count) != lib.HOTSET_OK or count[0] == 0:
            pytest.skip(ffi.string(lib.hotset_device_note()).decode())


def tool_environment() -> dict[str, str]:
    """This Python's scripts (ninja, meson) come first, also when its virtual environment is not activated."""
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}  # of a sanitizer: not for compilers
    return environment | {"PATH": str(pathlib.Path(sys.executable).parent) + os.pathsep + os.environ.get("PATH", "")}


@contextlib.contextmanager
def locked(path: pathlib.Path):
    """One pytest-xdist worker builds, the others wait."""
    import fcntl

    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run_tool(*command) -> None:
    done = subprocess.run(
        [str(c) for c in command], cwd=ROOT, env=tool_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != 0:
        pytest.fail(" ".join(map(str, command)) + "\n" + done.stdout[-8000:], pytrace=False)


def device_code() -> list[str]:
    """Real device code where there is a GPU and an nvcc; without a GPU its names, which the stand-in driver takes."""
    tools = ("gpu_archs.py", "find_nvcc.py")
    gpu, nvcc = [subprocess.run([sys.executable, ROOT / "tools" / t], capture_output=True).stdout.strip() for t in tools]
    if not gpu:
        return ["-Dcuda=enabled", "-Dkernels=empty"]
    return [] if nvcc else ["-Dcuda=disabled"]


@pytest.fixture(scope="session")
def source_root() -> pathlib.Path:
    return ROOT


@pytest.fixture(scope="session")
def native_build() -> pathlib.Path:
    """A configured build folder, all native programs built: build-tests, or the one that HOTSET_TEST_BUILD names."""
    folder = pathlib.Path(os.environ.get("HOTSET_TEST_BUILD") or ROOT / "build-tests")
    folder.mkdir(parents=True, exist_ok=True)
    meson = [sys.executable, "-m", "mesonbuild.mesonmain"]
    with locked(folder / ".lock"):
        # Reconfigured each time: the source lists are made by looking at the folders.
        arguments = ["--reconfigure"] if (folder / "build.ninja").exists() else device_code()
        run_tool(*meson, "setup", *arguments, folder, ROOT, "-Dtests=true")
        run_tool(*meson, "compile", "-C", folder)
    return folder


@pytest.fixture(scope="session")
def fake_gpu(native_build: pathlib.Path) -> dict[str, str]:
    """Environment of a process whose GPUs are those of tests/cuda/fake_cuda.h: its knobs may be added."""
    libraries = {"HOTSET_LIBRARY": "native/libhotset.so.1", "HOTSET_LIBCUDA": "tests/libfake_cuda.so"}
    return os.environ | {name: str(native_build / path) for name, path in libraries.items()}
