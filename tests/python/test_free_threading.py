# SPDX-License-Identifier: Apache-2.0
"""Interpreters without a global lock: hotset has no extension module and relies on no lock but its own.

Most of it runs on every interpreter, with threads that switch as often as Python can; what needs a free-threaded one is skipped
elsewhere."""

import os
import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest

import hotset
from hotset._native import library_path

ROUNDS = 30


@pytest.fixture(autouse=True)
def switch_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(work, count=4):
    """Runs work(number of the thread) in threads that begin together; raises what the first of them raised."""
    failures, barrier = [], threading.Barrier(count)

    def guarded(i):
        try:
            barrier.wait()
            work(i)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert not any(thread.is_alive() for thread in threads)
    if failures:
        raise failures[0]


def test_nothing_in_the_package_is_an_extension_module():
    """Only an extension module has to declare that it needs no lock; one that does not turns the lock on."""
    package = pathlib.Path(hotset.__file__).parent
    modules = [path for path in package.rglob("*") if path.suffix in (".so", ".pyd")]
    assert modules == []
    assert b"PyInit_" not in pathlib.Path(library_path).read_bytes()


def test_sessions_options_and_runs_in_threads(add_model):
    with hotset.InferenceSession(add_model) as shared:

        def work(i):
            x = np.full((2, 1, 3), i, np.float32)
            for _ in range(ROUNDS):
                options = hotset.SessionOptions()
                options.intra_op_num_threads = 1
                with hotset.InferenceSession(add_model, options) as session:
                    for each in (session, shared):
                        y, z = each.run(["y", "z"], {"x": x})
                        np.testing.assert_array_equal(y, x + np.array([1, 2, 3], np.float32))
                        np.testing.assert_array_equal(z, x * x)
                    assert session.stats()["runs"] == 1
                with pytest.raises(hotset.InvalidArgument, match=f"'none{i}'"):
                    shared.run([f"none{i}"], {"x": x})

        in_threads(work)
        assert shared.stats()["runs"] == 4 * ROUNDS


def test_closing_while_others_run(add_model):
    """A run gets its result or the session is closed for it; the model lives until the last one is done."""
    x = np.ones((2, 1, 3), np.float32)
    for _ in range(ROUNDS):
        session = hotset.InferenceSession(add_model)
        done = []

        def work(i, session=session, done=done):
            if i == 0:
                session.close()
                return
            try:
                for _ in range(5):
                    np.testing.assert_array_equal(session.run(["z"], {"x": x})[0], x * x)
            except hotset.InvalidState as closed:
                done.append(str(closed))

        in_threads(work)
        assert all(text == "the session is closed" for text in done)


def test_generations_started_at_once_have_turns_of_their_own(demo):
    """Of many generations that threads start with one Generator exactly one goes on: the last."""
    with hotset.Generator("demo", max_length=64) as generator:
        started = []
        in_threads(lambda i: started.extend(generator.stream_ids([5, 6, 7 + i], 2) for _ in range(ROUNDS)))
        assert len(started) == 4 * ROUNDS and generator._turn == 4 * ROUNDS
        went_on = 0
        for stream in started:
            try:
                went_on += len(list(stream)) > 0
            except hotset.InvalidState:
                continue
        assert went_on == 1


@pytest.mark.parametrize(("flags", "hint"), [("", False), ("t", True)])
def test_cffi_that_is_missing(flags, hint):
    """The import error says what to install, and on a free-threaded interpreter from which one on there is a cffi."""
    code = f"import sys; sys.modules['cffi'] = None; sys.abiflags = {flags!r}; import hotset"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, env=os.environ)
    assert done.returncode == 1 and "ImportError: hotset: cannot import cffi" in done.stderr and "pip install cffi" in done.stderr
    assert ("CPython 3.14" in done.stderr) == hint


@pytest.mark.skipif(getattr(sys, "_is_gil_enabled", lambda: True)(), reason="this interpreter has a global lock")
def test_import_leaves_the_lock_off():
    code = "import sys, hotset; assert not sys._is_gil_enabled()"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
