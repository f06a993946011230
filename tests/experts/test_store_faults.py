# SPDX-License-Identifier: Apache-2.0
"""What goes wrong while experts are read becomes a status, and sessions come and go without a trace."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import hotset
from moe_files import make_layers, options


@pytest.fixture
def layers(tmp_path):
    return make_layers(tmp_path, hidden=256, inter=224, experts=24, k=3, layers=3, shift=36)


def bounded(layers, **more):
    return options(host_expert_bytes=layers.total_bytes // 2, allow_file_backing=1, **more)


def test_truncated_file(layers):
    """A status that names node, expert and file; whole experts are still served, and all are when the file is whole again."""
    rng = np.random.default_rng(0)
    with hotset.InferenceSession(layers.path, bounded(layers)) as session:
        first = layers.feeds(rng, 1, [[0, 1, 2]] * 3)
        want = session.run(None, first)[0]
        whole = layers.data.read_bytes()
        os.truncate(layers.data, len(whole) - layers.expert_bytes // 2)
        for rows in (1, 40):
            last = layers.feeds(rng, rows, [[0, 1, 2], [0, 1, 2], [21, 22, 23]])
            with pytest.raises(hotset.InvalidState, match=r"moe2.*expert 2[123].*layers\.bin.*shorter"):
                session.run(None, last)
        np.testing.assert_array_equal(session.run(None, first)[0], want)
        layers.data.write_bytes(whole)
        session.run(None, last)
        assert session.stats()["expert_store"]["failures"] >= 1


def test_replaced_file(layers):
    """The session keeps the file that it opened."""
    rng = np.random.default_rng(0)
    feeds = layers.feeds(rng, 1)
    with hotset.InferenceSession(layers.path, bounded(layers)) as session:
        new = layers.data.with_suffix(".new")
        new.write_bytes(bytes(layers.data.stat().st_size))
        want = hotset.InferenceSession(layers.path, options()).run(None, feeds)[0]
        new.rename(layers.data)
        np.testing.assert_array_equal(session.run(None, feeds)[0], want)


def test_cancel(layers):
    """A run that is cancelled while it waits for experts gives them up; the next runs are right."""
    rng = np.random.default_rng(0)
    feeds = layers.feeds(rng, 60)
    with hotset.InferenceSession(layers.path, options()) as session:
        want = session.run(None, feeds)[0]
    cancelled = 0
    with hotset.InferenceSession(layers.path, options(host_expert_bytes=0, allow_file_backing=1)) as session:
        for i in range(30):
            run_options = hotset.RunOptions()

            def stop(after=i * 4e-4, run_options=run_options):
                time.sleep(after)
                run_options.terminate = True

            thread = threading.Thread(target=stop)
            thread.start()
            try:
                np.testing.assert_array_equal(session.run(None, feeds, run_options)[0], want)
            except hotset.Cancelled:
                cancelled += 1
            thread.join()
        np.testing.assert_array_equal(session.run(None, feeds)[0], want)
    assert cancelled > 0


@pytest.mark.skipif(sys.platform != "linux", reason="limits addresses")
@pytest.mark.sanitizer_unfit
def test_no_memory_for_the_cache(layers):
    code = f"""
import resource, sys
sys.path[:0] = {sys.path!r}
import hotset
from moe_files import options
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), -1))
chosen = options(threads=1, host_pages="huge")
try:
    for _ in range(100):
        kept = globals().setdefault("kept", [])
        kept.append(hotset.InferenceSession({str(layers.path)!r}, chosen))
except hotset.OutOfMemory as error:
    print("refused:", error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("refused:") and "\n" not in done.stdout.strip()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("pages", ["auto", "huge"])
def test_fork(layers, pages):
    """In a child the session refuses to run and can be dropped; the parent goes on."""
    rng = np.random.default_rng(0)
    feeds = layers.feeds(rng, 5)
    session = hotset.InferenceSession(layers.path, bounded(layers) if pages == "auto" else options(host_pages=pages))
    want = session.run(None, feeds)[0]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            session.run(None, feeds)
        except hotset.InvalidState:
            session.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(session.run(None, feeds)[0], want)
    session.close()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.sanitizer_unfit
def test_sessions_leave_nothing(layers):
    """200 sessions, each with a cache, readers and a run: memory, threads and open files stay where they were."""
    rng = np.random.default_rng(0)
    feeds = layers.feeds(rng, 2)

    def held():
        with open("/proc/self/smaps_rollup") as rollup:
            anonymous = next(int(line.split()[1]) << 10 for line in rollup if line.startswith("Anonymous:"))
        return anonymous, len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    def rounds(n):
        for i in range(n):
            chosen = bounded(layers) if i % 2 else options(host_pages="huge")
            with hotset.InferenceSession(layers.path, chosen) as session:
                session.run(None, feeds)

    rounds(20)
    before = held()
    rounds(200)
    after = held()
    assert after[0] - before[0] <= 4 << 20 and after[1:] == before[1:], (before, after)


def test_decoding_does_not_allocate(layers):
    """Steps that miss and steps that hit: the library's memory does not grow."""
    rng = np.random.default_rng(0)
    with hotset.InferenceSession(layers.path, bounded(layers)) as session:
        for _ in range(5):
            session.run(None, layers.feeds(rng, 1))
        rows = [row["bytes"] for row in session.memory_plan() if row["purpose"] != "expert cache"]
        for _ in range(50):
            session.run(None, layers.feeds(rng, 1))
        assert [row["bytes"] for row in session.memory_plan() if row["purpose"] != "expert cache"] == rows
