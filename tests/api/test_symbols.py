# SPDX-License-Identifier: Apache-2.0
"""What leaves the library and what is inside its objects, read with binutils."""

import pathlib
import platform
import re
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not shutil.which("nm") or not shutil.which("objdump"), reason="needs binutils")

X86 = platform.machine() == "x86_64"


def output(*command) -> str:
    return subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def library(native_build) -> pathlib.Path:
    return native_build / "native" / "libhotset.so.1"


@pytest.fixture
def declared(source_root) -> set[str]:
    header = (source_root / "include" / "hotset" / "hotset.h").read_text()
    return set(re.findall(r"^HOTSET_API\b[^;(]*?\b(hotset_\w+)\(", header, re.M))


def archives(native_build, pattern: str) -> list[pathlib.Path]:
    return sorted((native_build / "native" / "cpu_avx").glob(pattern))


def test_exports_are_the_header(library, declared):
    rows = [line.split() for line in output("nm", "-D", "--defined-only", library).splitlines()]
    symbols = {row[-1].split("@")[0] for row in rows if row[-2] != "A"}  # A: the version node itself
    assert symbols == declared
    assert {row[-1].split("@@")[1] for row in rows if row[-2] != "A"} == {"HOTSET_1"}


def test_file_name_is_the_soname(library):
    dynamic = output("readelf", "-d", library)
    assert re.search(r"SONAME.*\[(.*)\]", dynamic).group(1) == library.name
    assert "RUNPATH" not in dynamic and "RPATH" not in dynamic


def test_needs_nothing_but_libc(library, native_build):
    if "libasan" in (needed := output("readelf", "-d", library)) or "libtsan" in needed or "libubsan" in needed:
        pytest.skip("a sanitizer build links its run-time libraries")
    names = set(re.findall(r"NEEDED.*\[(.*)\]", needed))
    assert {n for n in names if not re.match(r"(libc|libm|libdl|libpthread|ld-linux.*)\.so", n)} == set()


@pytest.mark.parametrize(("standard", "suffix"), [("c11", "c"), ("c++20", "cpp")])
def test_header_compiles_alone(source_root, tmp_path, standard, suffix):
    source = tmp_path / f"alone.{suffix}"
    source.write_text("#include <hotset/hotset.h>\n")
    compiler = shutil.which("cc" if suffix == "c" else "c++") or pytest.skip("no compiler")
    flags = ["-Wall", "-Wextra", "-Wpedantic", "-Wstrict-prototypes", "-Werror"][: 5 if suffix == "c" else 3]
    subprocess.run([compiler, f"-std={standard}", *flags, "-fsyntax-only", f"-I{source_root}/include", source], check=True)


def test_isa_objects_hold_no_weak_symbols(native_build):
    """The linker may keep the AVX-512 copy of an inline function for everyone. (A sanitized object has a weak pointer too, to what
    unwinds exceptions: data.)"""
    weak = []
    for archive in archives(native_build, "libkernels_*.a"):
        if archive.name != "libkernels_baseline.a":
            weak += [f"{archive.name}: {line}" for line in output("nm", archive).splitlines() if re.search(r" [WVwvu] (?!DW\.ref\.)", line)]
    assert weak == []


def instructions(archive: pathlib.Path):
    """(function, instruction) pairs."""
    function = "?"
    for line in output("objdump", "-d", "--no-show-raw-insn", archive).splitlines():
        if line.endswith(">:"):
            function = line.split("<")[1][:-2]
        elif "\t" in line:
            yield function, line.split("\t", 1)[1]


@pytest.mark.skipif(not X86, reason="x86-64 instruction names")
def test_baseline_objects_run_on_any_cpu(native_build):
    found = set()
    for archive in [native_build / "native" / "libhotset_core.a", *archives(native_build, "libkernels_baseline.a")]:
        found |= {(archive.name, function) for function, text in instructions(archive) if re.match(r"v[a-z]", text) or "%ymm" in text}
    assert found == set()


@pytest.mark.skipif(not X86, reason="x86-64 instruction names")
def test_avx2_objects_hold_no_avx512(native_build):
    for archive in archives(native_build, "libkernels_avx2*.a"):
        wide = {f for f, text in instructions(archive) if re.search(r"%zmm|%k[0-7]|%[xy]mm(1[6-9]|2\d|3[01])\b", text)}
        assert wide == set(), archive.name


@pytest.mark.skipif(not X86, reason="x86-64 instruction names")
@pytest.mark.parametrize(
    ("isa", "above"),
    [
        ("baseline", "tile|tdp"),
        ("avx2", "vpdp|tile|tdp"),
        ("avx2vnni", "tile|tdp"),
        ("avx512", "vpdp|vdpbf16|tile|tdp"),
        ("avx512vnni", "vdpbf16|tile|tdp"),
    ],
)
def test_objects_hold_nothing_above_their_tier(native_build, isa, above):
    """Dot products of bytes and of bfloat16, and tiles, in the objects of their own tiers alone."""
    (archive,) = archives(native_build, f"libkernels_{isa}.a")
    assert {function for function, text in instructions(archive) if re.search(rf"\b({above})", text)} == set()


@pytest.mark.skipif(not X86, reason="x86-64 instruction names")
@pytest.mark.parametrize(("isa", "own"), [("avx2vnni", "vpdpbusd"), ("avx512vnni", "vpdpbusd"), ("amx", "tdpbssd"), ("amx", "tdpbf16ps")])
def test_a_tier_uses_its_instructions(native_build, isa, own):
    (archive,) = archives(native_build, f"libkernels_{isa}.a")
    assert any(own in text for _, text in instructions(archive))


def test_rooms_include_downwards(source_root):
    done = subprocess.run([sys.executable, source_root / "tools" / "check_includes.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_upward_include_is_found(source_root, tmp_path):
    (tmp_path / "native" / "base").mkdir(parents=True)
    (tmp_path / "native" / "base" / "list.h").write_text('#include "ops/op.h"\n')
    (tmp_path / "native" / "cpu_avx").mkdir()
    (tmp_path / "native" / "cpu_avx" / "sum_avx2.cpp").write_text("#include <vector>\n")
    done = subprocess.run([sys.executable, source_root / "tools" / "check_includes.py", tmp_path], capture_output=True, text=True)
    assert done.returncode == 1
    assert "base must not know ops" in done.stderr and "C headers only" in done.stderr
