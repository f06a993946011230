# SPDX-License-Identifier: Apache-2.0
"""Import of the package: which library, which version, what is said when it does not fit."""

import os
import shutil
import subprocess
import sys

import pytest


def start(library, *arguments):
    environment = os.environ | {"HOTSET_LIBRARY": str(library)}
    return subprocess.run(list(map(str, arguments)), env=environment, capture_output=True, text=True, timeout=600)


def import_with(library):
    return start(library, sys.executable, "-c", "import hotset")


def test_missing_library(tmp_path):
    done = import_with(tmp_path / "libabsent.so")
    assert done.returncode == 1 and "libabsent.so" in done.stderr and "HOTSET_LIBRARY" in done.stderr and "ImportError" in done.stderr


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@pytest.mark.parametrize(
    ("source", "word"), [("unsigned hotset_api_version(void) { return 999; }", "version 999"), ("int x;", "hotset_api_version")]
)
def test_other_library(tmp_path, source, word):
    (tmp_path / "other.c").write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "other.so", tmp_path / "other.c"], check=True)
    done = import_with(tmp_path / "other.so")
    assert done.returncode == 1 and word in done.stderr and "ImportError" in done.stderr


# As pip writes the program `hotset`.
PROGRAM = "import sys\nfrom hotset.__main__ import main\nif __name__ == '__main__':\n    sys.exit(main())\n"


def test_the_command_says_in_one_line_that_the_library_is_missing(tmp_path):
    (tmp_path / "hotset").write_text(PROGRAM)
    library = tmp_path / "libabsent.so"
    for program in (["-m", "hotset"], ["-mhotset"], ["-Wignore", "-m", "hotset.__main__"], [tmp_path / "hotset"]):
        for arguments in (["doctor"], ["--version"], ["generate", "demo", "-p", "a"], []):
            done = start(library, sys.executable, *program, *arguments)
            assert done.returncode == 1 and done.stdout == "" and len(done.stderr.splitlines()) == 1, (program, done.stderr)
            assert done.stderr.startswith("hotset: cannot load ") and "libabsent.so" in done.stderr and "HOTSET_LIBRARY" in done.stderr


def test_other_programs_get_an_import_error(tmp_path):
    """Also those that are started by name and have an argument "hotset": a host decides itself how it ends."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "__init__.py").write_text("import hotset\n")
    (tmp_path / "other" / "__main__.py").write_text("")
    (tmp_path / "script.py").write_text("import hotset\n")
    library = tmp_path / "libabsent.so"
    loader = f"import runpy, sys; sys.path.insert(0, {os.fspath(tmp_path)!r}); runpy.run_module('other')"
    for program in (["-c", loader, "hotset"], [tmp_path / "script.py", "-m", "hotset"]):
        done = start(library, sys.executable, *program)
        assert done.returncode == 1 and "Traceback" in done.stderr and "ImportError: hotset: cannot load" in done.stderr
    environment = os.environ | {"HOTSET_LIBRARY": str(library), "PYTHONPATH": os.pathsep.join([os.fspath(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-m", "other", "hotset"], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1 and "Traceback" in done.stderr and "ImportError" in done.stderr


def test_every_function_of_the_header_is_there():
    from hotset._native import lib

    names = [name for name in dir(lib) if name.startswith("hotset_")]
    assert len(names) > 40
    for name in names:
        getattr(lib, name)


def test_every_status_has_its_exception():
    from hotset import _errors
    from hotset._native import ffi

    for value, name in ffi.typeof("hotset_status").elements.items():
        assert name == "HOTSET_OK" or issubclass(_errors._BY_STATUS[value], _errors.Error)


def test_import_starts_no_thread_and_prints_nothing():
    code = "import threading, os, hotset; assert threading.active_count() == 1; assert len(os.listdir('/proc/self/task')) == 1"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
