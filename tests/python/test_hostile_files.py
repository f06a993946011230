# SPDX-License-Identifier: Apache-2.0
"""Damaged and malicious model files and their external data: a precise refusal in little time and memory."""

import os
import pathlib
import shutil
import sys

import numpy as np
import pytest

import hotset
from python.hostile_models import SIMPLE, external, field, graph, model, node, open_all, open_one, refused, runs, value

DEMO = pathlib.Path(__file__).resolve().parents[2] / "python/hotset/models/demo"


def test_truncated(tmp_path):
    data = (DEMO / "model.onnx").read_bytes()
    shutil.copy(DEMO / "model.onnx.data", tmp_path)
    cases = []
    for i in range(50):
        path = tmp_path / f"{i}.onnx"
        path.write_bytes(data[: len(data) * i // 50])
        cases.append({"path": str(path), "run": False})
    for result in open_all(cases):
        assert result["error"] == "InvalidModel", result


def test_truncated_data(tmp_path):
    shutil.copy(DEMO / "model.onnx", tmp_path)
    data = (DEMO / "model.onnx.data").read_bytes()
    for n in (0, 1, len(data) // 2, len(data) - 1):
        (tmp_path / "model.onnx.data").write_bytes(data[:n])
        refused(tmp_path / "model.onnx", "InvalidModel", "needs bytes", "model.onnx.data", f"which has {n}")
    (tmp_path / "model.onnx.data").unlink()
    refused(tmp_path / "model.onnx", "NotFound", "model.onnx.data")


@pytest.mark.skipif(sys.platform == "win32", reason="mapped files cannot be truncated there")
def test_data_truncated_while_mapped(tmp_path):
    """A status and not the end of the process, at the first run and later; well again when the file is; a file put in its place by
    renaming is another file."""
    for name in ("model.onnx", "model.onnx.data"):
        shutil.copy(DEMO / name, tmp_path)
    data = tmp_path / "model.onnx.data"
    whole = data.read_bytes()
    session, unused = (hotset.InferenceSession(tmp_path / "model.onnx") for _ in range(2))
    feeds = {"input_ids": np.array([[5, 6, 7]]), "attention_mask": np.ones((1, 3), np.int64)}
    for arg in session.get_inputs():
        if arg.name.startswith("past"):
            feeds[arg.name] = np.zeros((1, 2, 128 if "sliding" in arg.shape[2] else 0, 64), np.float32)
    logits = session.run(["logits"], feeds)[0]
    for bytes_left in (0, len(whole) // 2, len(whole) - 8192):
        os.truncate(data, bytes_left)
        for each in (session, unused):
            with pytest.raises(hotset.InvalidState, match=rf"model\.onnx\.data.* shorter: {bytes_left} bytes") as refusal:
                each.run(["logits"], feeds)
            assert "renaming" in str(refusal.value)
        data.write_bytes(whole)
        np.testing.assert_array_equal(session.run(["logits"], feeds)[0], logits)
    (tmp_path / "new").write_bytes(whole[:100])
    (tmp_path / "new").rename(data)
    for each in (session, unused):
        np.testing.assert_array_equal(each.run(["logits"], feeds)[0], logits)


def test_no_models(tmp_path):
    rng = np.random.default_rng(1)
    cases = [
        b"",
        b"\0",
        b"PK\x03\x04" + bytes(100),
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        rng.bytes(1000),
        bytes(100000),
    ]
    for data in cases:
        refused(data, "InvalidModel")
    refused(tmp_path, "NotFound", "not a file")
    refused(tmp_path / "absent.onnx", "NotFound", "absent.onnx")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        refused(tmp_path / "pipe", "NotFound", "not a file")
        refused("/dev/zero", "NotFound", "not a file")


@pytest.mark.parametrize(
    "location",
    ["../outside", "a/../../outside", "/etc/passwd", "..", ".", "", "link", "folder/link", "a\0b", b"\xff\xfe", "a" * 5000, "folder"],
)
def test_external_data_stays_in_the_folder(tmp_path, location):
    (tmp_path / "outside").write_bytes(bytes(64))
    home = tmp_path / "home"
    (home / "folder").mkdir(parents=True)
    (home / "link").symlink_to(tmp_path / "outside")
    (home / "folder" / "link").symlink_to(tmp_path)
    data = model(graph([node("Identity", ["w"], ["y"])], [], ["y"], [external("w", [4], location)]))
    (home / "model.onnx").write_bytes(data)
    result = open_one(home / "model.onnx")
    assert result["error"] in ("InvalidModel", "NotFound") and "tensor 'w'" in result["text"], result
    assert (location in (".", "folder", "a" * 5000)) or result["error"] == "InvalidModel", result


@pytest.mark.parametrize(
    "fields, text",
    [
        ({"length": "15"}, "needs 16 bytes, its external data have 15"),
        ({"length": "17"}, "needs 16 bytes, its external data have 17"),
        ({"offset": "1"}, "needs bytes 1 to 17"),
        ({"offset": str(2**64 - 8)}, "needs bytes"),
        ({"offset": str(2**64)}, "is not a number"),
        ({"offset": "-1"}, "is not a number"),
        ({"offset": "0x10"}, "is not a number"),
        ({"dims": [2**40]}, "needs bytes 0 to"),
        ({"dims": [2**62, 4]}, "overflow"),
        ({"dims": [-4]}, "negative"),
    ],
)
def test_external_data_of_another_size(tmp_path, fields, text):
    (tmp_path / "data").write_bytes(bytes(16))
    tensors = [external("w", fields.pop("dims", [4]), "data", **fields)]
    (tmp_path / "model.onnx").write_bytes(model(graph([node("Identity", ["w"], ["y"])], [], ["y"], tensors)))
    refused(tmp_path / "model.onnx", "InvalidModel", "tensor 'w'", text)


def test_huge_sparse_data(tmp_path):
    """A terabyte of holes: mapped, not read."""
    with open(tmp_path / "data", "wb") as file:
        try:
            file.truncate(1 << 40)
        except OSError:
            pytest.skip("no large sparse files here")
    nodes = [node("Gather", ["w", "i"], ["y"])]
    data = graph(nodes, [value("i", 7, [1])], ["y"], [external("w", [1 << 34, 16], "data")])
    (tmp_path / "model.onnx").write_bytes(model(data))
    if "asan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("the address space is limited")
    result = open_one(tmp_path / "model.onnx")
    assert result["error"] == "OutOfMemory" or result["outputs"] == [[[0.0] * 16]], result


def test_bytes_with_external_data(tmp_path):
    (tmp_path / "data").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    data = model(graph([node("Add", ["x", "w"], ["y"])], [value("x", 1, [4])], ["y"], [external("w", [4], "data")]))
    refused(data, "InvalidArgument", "'w'", "'data'", "no folder")
    folder = {"session.model_external_initializers_file_folder_path": str(tmp_path)}
    assert runs(data, options=folder) == [[0.0, 1.0, 2.0, 3.0]]
    refused(data, "NotFound", "'w'", options={"session.model_external_initializers_file_folder_path": str(tmp_path / "absent")})
    escapes = model(graph([node("Add", ["x", "w"], ["y"])], [value("x", 1, [4])], ["y"], [external("w", [4], "../data")]))
    (tmp_path / "inner").mkdir()
    refused(
        escapes, "InvalidModel", "not inside", options={"session.model_external_initializers_file_folder_path": str(tmp_path / "inner")}
    )


def test_opsets():
    refused(field(1, 10) + field(7, SIMPLE), "InvalidModel")
    for version in (0, -1, 2**40, 99):
        result = open_one(model(SIMPLE, opset=version))
        assert result["error"] in ("InvalidModel", "Unsupported") and "opset" in result["text"], result
    refused(model(graph([node("NoSuchOperator", ["x"], ["y"])], ["x"], ["y"])), "Unsupported", "ai.onnx::NoSuchOperator")
    refused(model(graph([node("Bad\n\xff\x01Name", ["x"], ["y"])], ["x"], ["y"])), "Unsupported")
