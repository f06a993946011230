# SPDX-License-Identifier: Apache-2.0
"""The installed package: what the wheel holds, and that C hosts can build against it."""

import importlib.metadata
import importlib.resources
import importlib.util
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import types

import pytest

import hotset


def load_tool(root: pathlib.Path, name: str):
    spec = importlib.util.spec_from_file_location(name, root / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def package():
    return importlib.resources.files(hotset)


@pytest.fixture(scope="module")
def distribution():
    return importlib.metadata.distribution("hotset")


def test_version_is_one(source_root, distribution):
    project = re.search(r"version: '([^']+)'", (source_root / "meson.build").read_text()).group(1)
    assert distribution.version == project == hotset.__version__


def test_wheel_serves_every_python(distribution):
    tags = re.findall(r"^Tag: (.*)$", distribution.read_text("WHEEL"), re.M)
    assert [tag.rsplit("-", 1)[0] for tag in tags] == ["py3-none"]


def test_runtime_dependencies(distribution):
    plain = [r for r in distribution.requires if "extra ==" not in r]
    assert sorted(re.match(r"[\w-]+", r).group() for r in plain) == ["cffi", "ml_dtypes", "numpy"]


def test_declarations_come_from_the_header(source_root, package):
    header = (source_root / "include" / "hotset" / "hotset.h").read_text()
    installed = (package / "_cdef.h").read_text()
    assert installed.split("\n", 1)[1] == load_tool(source_root, "gen_cdef").cdef(header)


def test_header_is_installed(source_root, package):
    assert (package / "include" / "hotset" / "hotset.h").read_bytes() == (source_root / "include" / "hotset" / "hotset.h").read_bytes()


def test_demo_model_is_installed(source_root, package):
    shipped = {
        f.relative_to(source_root / "python" / "hotset").as_posix()
        for f in (source_root / "python/hotset/models").rglob("*")
        if f.is_file()
    }
    assert shipped
    assert all((package / name).is_file() for name in shipped)


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_c_host_builds_with_config(source_root, tmp_path):
    words = subprocess.run(
        [sys.executable, "-m", "hotset", "config", "--cflags", "--libs"], check=True, capture_output=True, text=True
    ).stdout
    program = tmp_path / "host"
    source = source_root / "tests" / "api" / "test_header.c"
    subprocess.run(["cc", "-std=c11", str(source), "-o", str(program), *shlex.split(words)], check=True)
    subprocess.run([str(program)], check=True)


@pytest.fixture
def backend(source_root, monkeypatch):
    """The build backend over a stand-in for meson-python, which the tests do not install."""

    class WheelBuilder:
        _has_extension_modules = property(lambda self: True)

    stand_in = types.ModuleType("mesonpy")
    stand_in._WheelBuilder = WheelBuilder
    stand_in.build_sdist = stand_in.get_requires_for_build_sdist = None
    stand_in.get_requires_for_build_wheel = lambda settings: ["ninja"]
    monkeypatch.setitem(sys.modules, "mesonpy", stand_in)
    module = load_tool(source_root, "hotset_build")
    assert WheelBuilder()._has_extension_modules is False
    return module


@pytest.mark.parametrize(
    ("settings", "nvcc_found", "downloads"),
    [
        (None, False, False),
        ({"setup-args": "-Dcuda=auto"}, False, False),
        ({"setup-args": "-Dcuda=enabled"}, True, False),
        ({"setup-args": "-Dcuda=enabled"}, False, True),
        ({"setup-args": ["-Dcuda=enabled", "-Darchs=90a"], "host-platform": "win_amd64"}, False, True),
        ({"setup-args": ["-Dcuda=enabled", "-Dkernels=prebuilt"]}, False, False),
    ],
)
def test_cuda_compiler_is_downloaded_only_when_asked_for(backend, monkeypatch, settings, nvcc_found, downloads):
    monkeypatch.setattr(backend.subprocess, "run", lambda *a, **k: types.SimpleNamespace(returncode=0 if nvcc_found else 1))
    needed = backend.get_requires_for_build_wheel(settings)
    assert needed[0] == "ninja"
    assert any(r.startswith("nvidia-cuda-nvcc==") for r in needed) == downloads
