# SPDX-License-Identifier: Apache-2.0
"""Threads of a session: how many, where, what they cost, and that they do not change the answer."""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import hotset

linux = pytest.mark.skipif(sys.platform != "linux", reason="affinity masks and /proc")

# Prints the threads that a session takes and those that the process has then.
COUNT = """
import json, os, sys, hotset
if len(sys.argv) > 2:
    os.sched_setaffinity(0, {int(c) for c in sys.argv[2].split(",")})
before = len(os.listdir("/proc/self/task"))
session = hotset.InferenceSession(sys.argv[1])
print(json.dumps([session.plan()["threads"], len(os.listdir("/proc/self/task")) - before, hotset.doctor()["cpu"]["threads"]]))
"""


def count_threads(path, *, prefix=(), mask=(), environment=None):
    command = [*prefix, sys.executable, "-c", COUNT, str(path), *mask]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=os.environ | (environment or {}))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def quota_threads():
    """Processors that the CPU quota of this process's control group pays for, rounded up; many without one. Looks where
    systemd and container engines mount the groups; native/base/cpu_quota.cpp finds them anywhere."""
    quotas = [4096]
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, group = line.split(":", 2)
        if number != "0" and "cpu" not in controllers.split(","):
            continue
        top = pathlib.Path("/sys/fs/cgroup" if number == "0" else f"/sys/fs/cgroup/{controllers}")
        for folder in (top / group[1:], *(top / parent for parent in pathlib.PurePath(group[1:]).parents)):
            with contextlib.suppress(OSError, ValueError):
                names = ["cpu.max"] if number == "0" else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
                quota, period = map(int, " ".join((folder / name).read_text() for name in names).split())
                if quota > 0:
                    quotas.append(-(-quota // period))
    return min(quotas)


@linux
def test_default_is_the_affinity_mask_or_the_quota(add_path):
    allowed = sorted(os.sched_getaffinity(0))
    n = min(len(allowed), quota_threads())
    assert count_threads(add_path) == [n, n - 1, n]
    assert count_threads(add_path, mask=[str(allowed[-1])]) == [1, 0, 1]


@linux
@pytest.mark.skipif(not shutil.which("taskset"), reason="no taskset")
def test_default_under_taskset(add_path):
    one = str(min(os.sched_getaffinity(0)))
    assert count_threads(add_path, prefix=["taskset", "-c", one]) == [1, 0, 1]


@linux
@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@pytest.mark.skipif("HOTSET_SANITIZED" in os.environ, reason="preloads a library")
def test_affinity_call_that_fails(add_path, tmp_path):
    (tmp_path / "fail.c").write_text("int sched_getaffinity(int pid, unsigned long n, void *mask) { return -1; }")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "fail.so", tmp_path / "fail.c"], check=True)
    threads, started, _ = count_threads(add_path, environment={"LD_PRELOAD": str(tmp_path / "fail.so")})
    assert threads >= 1 and started == threads - 1


def options(threads):
    options = hotset.SessionOptions()
    options.intra_op_num_threads = threads
    return options


class Decoder:
    """Prompts and steps of the demo model through session.run, with caches of its own."""

    def __init__(self, session):
        self.session = session
        self.caches = {}
        for arg in session.get_inputs():
            if len(arg.shape) == 4:
                window = "sliding" in str(arg.shape[2])
                self.caches[arg.name] = np.zeros((1, 2, 128 if window else 192, 64), np.float32)
        self.length = 0

    def feed(self, ids):
        self.length += len(ids)
        feeds = {"input_ids": np.array([ids], np.int64), "attention_mask": np.ones((1, self.length), np.int64), **self.caches}
        names = [arg.name for arg in self.session.get_outputs()]
        results = dict(zip(names, self.session.run(names, feeds), strict=True))
        for name in self.caches:
            self.caches[name] = results[name.replace("past_key_values", "present")]
        return results["logits"]

    def answers(self, seed, prompt):
        ids = np.random.default_rng(seed).integers(5, 4000, prompt + 4).tolist()
        self.length = 0
        return [self.feed(ids[:prompt]), *(self.feed([token]) for token in ids[prompt:])]


@pytest.fixture(scope="module")
def one_thread(demo):
    with hotset.InferenceSession(demo / "model.onnx", options(1)) as session:
        decoder = Decoder(session)
        return {(seed, prompt): decoder.answers(seed, prompt) for seed, prompt in ((1, 1), (3, 150), (2, 3), (4, 40))}


@pytest.mark.parametrize("threads", [1, 2, 65, 129])
def test_number_of_threads_does_not_change_the_answer(demo, one_thread, threads):
    """65 and 129 are more threads than rows, columns of blocks, heads or experts."""
    with hotset.InferenceSession(demo / "model.onnx", options(threads)) as session:
        decoder = Decoder(session)
        for key, expected in one_thread.items():
            for got, want in zip(decoder.answers(*key), expected, strict=True):
                np.testing.assert_array_equal(got, want)


def test_several_threads_run_one_session(demo, one_thread):
    failures = []
    with hotset.InferenceSession(demo / "model.onnx", options(3)) as session:

        def work(key):
            decoder = Decoder(session)
            for _ in range(3):
                for got, want in zip(decoder.answers(*key), one_thread[key], strict=True):
                    if not np.array_equal(got, want):
                        failures.append(key)

        threads = [threading.Thread(target=work, args=(key,)) for key in [*one_thread, *one_thread]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


@linux
def test_idle_session_uses_no_processor(demo):
    with hotset.InferenceSession(demo / "model.onnx", options(4)) as session:
        Decoder(session).answers(1, 9)
        time.sleep(0.05)
        before = time.process_time()
        time.sleep(1)
        assert time.process_time() - before < 0.003


def test_refused_numbers_of_threads():
    for number in (-1, 5000):
        with pytest.raises(hotset.InvalidArgument, match="0..4096"):
            options(number)


def test_two_sessions_in_one_process(demo, one_thread):
    """Each has its threads and its memory."""
    with hotset.InferenceSession(demo / "model.onnx", options(2)) as a, hotset.InferenceSession(demo / "model.onnx", options(3)) as b:
        decoders = Decoder(a), Decoder(b)
        for key in [*one_thread, *reversed(one_thread)]:
            for decoder in decoders:
                for got, want in zip(decoder.answers(*key), one_thread[key], strict=True):
                    np.testing.assert_array_equal(got, want)
