# SPDX-License-Identifier: Apache-2.0
"""Nothing leaks, nothing breaks at exit, nothing is freed in a forked child."""

import gc
import os
import subprocess
import sys

import numpy as np
import pytest

import hotset


def resident_kib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def mappings():
    with open("/proc/self/maps") as maps:
        return sum(1 for _ in maps)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.sanitizer_unfit
def test_rounds_leave_memory_files_and_threads_flat(demo):
    x = {"input_ids": np.array([[5, 6, 7]])}

    def round():
        with hotset.Generator(demo, max_length=64) as generator:
            list(generator.stream_ids(x["input_ids"][0], 2))
            generator.session.memory_plan()
        with pytest.raises(hotset.InvalidArgument):
            with hotset.InferenceSession(demo / "model.onnx") as session:
                session.run(None, {})
        with pytest.raises(hotset.NotFound):
            hotset.InferenceSession(demo / "absent.onnx")

    for _ in range(20):
        round()
    gc.collect()
    before = resident_kib(), len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), mappings()
    for _ in range(200):
        round()
    gc.collect()
    after = resident_kib(), len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), mappings()
    assert after[0] - before[0] < 2048 and after[1:3] == before[1:3] and after[3] - before[3] < 10, (before, after)


@pytest.mark.sanitizer_unfit
def test_outputs_are_freed(add_path):
    session = hotset.InferenceSession(add_path)
    x = {"x": np.ones((1000, 1000, 3), np.float32)}
    session.run(None, x)
    before = resident_kib()
    for _ in range(50):
        session.run(None, x)
    assert resident_kib() - before < 60 * 1024


def python(code):
    return subprocess.run([sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize(
    "code",
    [
        "generator = hotset.Generator('demo'); generator.generate('a', 2)",
        "generator = hotset.Generator('demo'); stream = generator.stream('a', 9); next(stream)",
        "generator = hotset.Generator('demo'); generator.me = generator",
        "import logging; logging.basicConfig(level=0)\n"
        "o = hotset.SessionOptions(); o.log_severity_level = 0; o.set_progress(lambda *a: None); g = hotset.Generator('demo', o)",
        "import threading\ng = hotset.Generator('demo')\nthreading.Thread(target=g.generate, args=('a', 500), daemon=True).start()",
        "import sys; sys.modules['hotset'].kept = hotset.Generator('demo').session.io_binding()",
    ],
)
def test_exit_is_quiet(code):
    done = python("import hotset\n" + code)
    assert done.returncode == 0 and done.stderr.replace("DEBUG:hotset", "").count("Exception") == 0, done.stderr
    assert "Error" not in done.stderr and "Fatal" not in done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
@pytest.mark.skipif(os.environ.get("HOTSET_SANITIZED") == "tsan", reason="the thread sanitizer allows no threads after fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forked_child(demo):
    """The child may drop what it inherited and open its own; using the parent's is an error, not a hang."""
    done = python(
        """
import os, hotset, numpy as np
with hotset.Generator("demo", max_length=64) as generator:
    text = generator.generate("a", 3)
    child = os.fork()
    if child == 0:
        try:
            generator.generate("a", 3)
        except hotset.InvalidState:
            pass
        else:
            os._exit(3)
        del generator
        os._exit(0 if hotset.Generator("demo", max_length=64).generate("a", 3) == text else 4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert generator.generate("a", 3) == text
"""
    )
    assert done.returncode == 0, done.stderr
