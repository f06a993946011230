# SPDX-License-Identifier: Apache-2.0
"""Weights in files of their own: where they may lie, and how little of them is read."""

import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import hotset
from ops.test_qmoe import SWIGLU, random_node
from ops.weight_node import relative_error

W = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
X = np.ones((1, 3), np.float32)


def write_model(path, location, offset, length=W.nbytes):
    """y = x w, w in the file `location` at `offset`."""
    w = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=W.shape, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        w.external_data.add(key=key, value=str(value))
    values = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])] for name, size in (("x", 3), ("y", 4))]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", *values, [w])
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10).SerializeToString())
    return path


def write_data(path, offset, data=W.tobytes()):
    with open(path, "wb") as file:
        file.seek(offset)
        file.write(data)


def check(model, *arguments):
    with hotset.InferenceSession(model, *arguments) as session:
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], X @ W)


@pytest.mark.parametrize("offset", [0, 1, 7, 4096, 4097, (4 << 30) + 3, (9 << 30)])
def test_offsets(tmp_path, offset):
    """Any byte is a place, past 4 GiB too (the file is sparse)."""
    try:
        write_data(tmp_path / "w.bin", offset)
    except OSError as error:
        pytest.skip(f"no sparse files here: {error}")
    check(write_model(tmp_path / "m.onnx", "w.bin", offset))


def test_folders_with_any_letters(tmp_path):
    folder = tmp_path / "ein Ordner \u00fc \u4e2d \U0001f600"
    folder.mkdir()
    write_data(folder / "die Gewichte \u00e9.bin", 5)
    check(write_model(folder / "das Modell \u00e9.onnx", "die Gewichte \u00e9.bin", 5))
    (folder / "unter").mkdir()
    write_data(folder / "unter" / "w.bin", 0)
    check(write_model(folder / "m2.onnx", "unter/w.bin", 0))


def test_long_paths(tmp_path):
    folder = tmp_path.joinpath(*["a" * 100] * 4)
    folder.mkdir(parents=True)
    assert len(str(folder)) > 400
    write_data(folder / "w.bin", 0)
    check(write_model(folder / "m.onnx", "w.bin", 0))


def test_one_byte_short(tmp_path):
    model = write_model(tmp_path / "m.onnx", "w.bin", 16)
    write_data(tmp_path / "w.bin", 16, W.tobytes()[:-1])
    with pytest.raises(hotset.InvalidModel, match="w.bin") as failure:
        hotset.InferenceSession(model)
    assert "63" in str(failure.value) and "\n" not in str(failure.value)  # 16 + 48 - 1 bytes are there
    write_data(tmp_path / "w.bin", 16)
    check(model)


def test_two_models_share_a_file(tmp_path):
    write_data(tmp_path / "w.bin", 0, W.tobytes() + W.tobytes())
    first, second = write_model(tmp_path / "a.onnx", "w.bin", 0), write_model(tmp_path / "b.onnx", "w.bin", W.nbytes)
    with hotset.InferenceSession(first) as a, hotset.InferenceSession(second) as b:
        for session in (a, b, a):
            np.testing.assert_array_equal(session.run(None, {"x": X})[0], X @ W)


def test_model_as_bytes(tmp_path):
    write_data(tmp_path / "w.bin", 3)
    model = write_model(tmp_path / "m.onnx", "w.bin", 3).read_bytes()
    with pytest.raises(hotset.Error, match="no folder"):
        hotset.InferenceSession(model)
    options = hotset.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(tmp_path))
    check(model, options)


def test_a_file_replaced_by_renaming(tmp_path):
    """The session keeps the bytes it opened."""
    write_data(tmp_path / "w.bin", 0)
    model = write_model(tmp_path / "m.onnx", "w.bin", 0)
    with hotset.InferenceSession(model) as session:
        write_data(tmp_path / "new.bin", 0, b"\xff" * W.nbytes)
        os.replace(tmp_path / "new.bin", tmp_path / "w.bin")
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], X @ W)


EXPERTS, HIDDEN, INTER = 32, 512, 1024

RESIDENT = """
import gc, json, sys
import numpy as np
import hotset

def resident():
    gc.collect()
    with open("/proc/self/smaps_rollup") as rollup:
        sizes = {line.split(":")[0]: int(line.split()[1]) << 10 for line in rollup if line.endswith("kB\\n")}
    return np.array([sizes["Rss"], sizes["Anonymous"]])

options = hotset.SessionOptions()
options.intra_op_num_threads = 2
warm = hotset.InferenceSession(sys.argv[2], options)
x = np.load(sys.argv[3])
logits = np.full((1, 32), -9, np.float32)
logits[0, [3, 17]] = 1
warm.run(None, {"x": x[:, :3]})
before = resident()
session = hotset.InferenceSession(sys.argv[1], options)
loaded = resident()
y = session.run(None, {"input": x, "router_probs": logits})[0]
np.save(sys.argv[4], y)
print(json.dumps([*(loaded - before).tolist(), *(resident() - before).tolist()]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.sanitizer_unfit
@pytest.mark.parametrize("prepacked", [False, True])
def test_only_experts_in_use_are_read(tmp_path, prepacked):
    """Loading reads none of the weights; a token reads its two experts of 32, and nothing keeps a second copy."""
    import json

    from ops.test_qmoe import expected

    named = random_node(np.random.default_rng(1), experts=EXPERTS, hidden=HIDDEN, inter=INTER, tokens=(1,), prepacked=prepacked)
    attributes = {"k": 2, **SWIGLU, "block_size": 32, "normalize_routing_weights": 1, "weights_prepacked": int(prepacked)}
    order = ["fc1_experts_weights", "fc1_scales", "fc1_experts_bias", "fc2_experts_weights", "fc2_scales", "fc2_experts_bias"]
    initializers = [onnx.numpy_helper.from_array(named[name], name) for name in order]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", s]) for n, s in (("input", HIDDEN), ("router_probs", EXPERTS))]
    node = helper.make_node("QMoE", ["input", "router_probs", *order], ["y"], domain="com.microsoft", **attributes)
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], initializers)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    path = tmp_path / "moe.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path, save_as_external_data=True, location="moe.bin")
    total = os.path.getsize(tmp_path / "moe.bin")
    write_data(tmp_path / "w.bin", 0)
    small = write_model(tmp_path / "small.onnx", "w.bin", 0)
    np.save(tmp_path / "x.npy", named["input"])
    command = [sys.executable, "-c", RESIDENT, *map(str, (path, small, tmp_path / "x.npy", tmp_path / "y.npy"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    loaded, _, ran, anonymous = json.loads(done.stdout)
    chosen = {name: array[[3, 17]] if name in order else array for name, array in named.items()}
    chosen["router_probs"] = np.ones((1, 2), np.float32)
    assert relative_error(np.load(tmp_path / "y.npy"), expected(chosen, attributes)) < 3e-6
    assert total > 30 << 20
    assert loaded < 2 << 20, f"{loaded} of {total} bytes"
    assert anonymous < 2 << 20
    # The system may map the huge pages in which the two ends of each of the six places lie.
    assert ran < 2 * total / EXPERTS + 12 * (2 << 20), f"{ran} of {total} bytes"
