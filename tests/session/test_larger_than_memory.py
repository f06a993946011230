# SPDX-License-Identifier: Apache-2.0
"""Models larger than the memory that the process may use: loading touches no weight, a run stays below the cap."""

import json
import os
import pathlib
import subprocess
import sys
import uuid

import pytest
from onnx import TensorProto, helper

LIMIT, EXPERTS, SIZE = 256 << 20, 96, 1024  # an expert has two matrices of SIZE x SIZE float32, 8 MiB
GROUPS = pathlib.Path("/sys/fs/cgroup")

# argv: group or "", model, rows. Loads the model, sends row i to expert i, tells times and memory.
CODE = """
import json, sys, time
if sys.argv[1]:
    open(sys.argv[1] + "/cgroup.procs", "w").write("0")
import numpy as np
import hotset

def resident(key):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(key)) * 1024

options = hotset.SessionOptions()
options.intra_op_num_threads = 1
before, begin = resident("VmRSS"), time.process_time()
session = hotset.InferenceSession(sys.argv[2], options)
load_s, loaded = time.process_time() - begin, resident("VmRSS") - before
rows = int(sys.argv[3])
experts, hidden = session.get_inputs()[1].shape[1], session.get_inputs()[0].shape[1]
feeds = {"x": np.ones((rows, hidden), np.float32), "router": 9 * np.eye(experts, dtype=np.float32)[np.arange(rows) % experts]}
y = session.run(None, feeds)[0] if rows else np.zeros(1)
print(json.dumps({"load_s": load_s, "loaded": loaded, "anonymous": resident("RssAnon"), "zero": not y.any()}))
"""


def write_model(folder, experts):
    """One MoE node whose weights are holes of a file: zeros that take memory when they are read, not on the disk."""
    folder.mkdir()
    matrices = []
    for i, name in enumerate(("fc1", "fc2")):
        data = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[experts, SIZE, SIZE], data_location=TensorProto.EXTERNAL)
        place = {"location": "weights.bin", "offset": str(i * experts * SIZE * SIZE * 4), "length": str(experts * SIZE * SIZE * 4)}
        for key, value in place.items():
            entry = data.external_data.add()
            entry.key, entry.value = key, value
        matrices.append(data)
    with open(folder / "weights.bin", "wb") as file:
        try:
            file.truncate(2 * experts * SIZE * SIZE * 4)
        except OSError:
            pytest.skip("no large sparse files here")
    node = helper.make_node("MoE", ["x", "router", "fc1", "", "fc2"], ["y"], domain="com.microsoft", k=1, activation_type="silu")
    inputs = [helper.make_tensor_value_info(*value) for value in (("x", 1, ["n", SIZE]), ("router", 1, ["n", experts]))]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", 1, ["n", SIZE])], matrices)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    (folder / "model.onnx").write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())
    return folder / "model.onnx"


def work(model, rows, group=""):
    done = subprocess.run([sys.executable, "-c", CODE, group, str(model), str(rows)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (done.returncode, done.stderr)
    return json.loads(done.stdout)


@pytest.fixture
def group():
    """A memory control group of version 1 or 2 with the limit, where this process may make one."""
    name = f"hotset-{uuid.uuid4().hex[:8]}"
    for parent, limit in ((GROUPS / "memory", "memory.limit_in_bytes"), (GROUPS, "memory.max")):
        folder = parent / name
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / limit).write_text(str(LIMIT))
        except OSError:
            folder.rmdir()
            continue
        yield os.fspath(folder)
        folder.rmdir()
        return
    pytest.skip("no memory control group can be made here")


@pytest.mark.skipif(sys.platform != "linux", reason="control groups")
@pytest.mark.sanitizer_unfit
def test_a_run_over_three_times_the_memory_of_the_group(tmp_path, group):
    """Every expert is read once; the pages come and go, and the process is not ended for them."""
    model = write_model(tmp_path / "large", EXPERTS)
    assert (tmp_path / "large" / "weights.bin").stat().st_size == 3 * LIMIT
    result = work(model, EXPERTS, group)
    assert result["zero"] and result["anonymous"] < LIMIT // 2


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/status")
@pytest.mark.sanitizer_unfit
def test_loading_does_not_depend_on_the_size_of_the_file(tmp_path):
    small, large = write_model(tmp_path / "small", 2), write_model(tmp_path / "large", 1 << 13)  # 16 MiB and 64 GiB
    times = []
    for model in (small, large):
        results = [work(model, 0) for _ in range(3)]
        assert max(result["loaded"] for result in results) < 16 << 20
        times.append(min(result["load_s"] for result in results))
    assert times[1] < 3 * times[0] + 0.05
