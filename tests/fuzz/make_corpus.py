# SPDX-License-Identifier: Apache-2.0
"""Writes seeds for the fuzz targets: a valid call of every operator, small models, option lines.

usage: make_corpus.py FOLDER    (seeds go to FOLDER/graph, FOLDER/model, FOLDER/options)

The corpus that is committed was grown from these by coverage-guided runs and minimised.
"""

import pathlib
import struct
import sys

import ml_dtypes
import numpy as np

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1]), str(pathlib.Path(__file__).resolve().parents[2] / "python")]

from helpers import onnx_type  # noqa: E402
from ops.example_calls import CALLS  # noqa: E402
from ops.test_refusals import model_of  # noqa: E402

FOUR_BITS = (np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.uint4))


def text(s):
    s = s if isinstance(s, bytes) else s.encode()
    return bytes([len(s)]) + s


def number(v):
    return bytes([v + 16]) if -16 <= v < 208 else b"\xff" + struct.pack("<q", v)


def real(v):
    return b"\xff" + struct.pack("<f", v)


def content(array):
    """fuzz_graph.cpp says how a tensor is written."""
    array = np.asarray(array)
    header = bytes([onnx_type(array.dtype), array.ndim, *array.shape])
    raw = array.tobytes()
    if array.dtype in FOUR_BITS:
        return header + b"\x02"
    if len(raw) <= 64 or not np.array_equal(array, array) or array.dtype.kind in "iu" and array.dtype.itemsize > 1:
        piece = raw[:240]
        return header + b"\x03" + bytes([len(piece)]) + piece
    return header + b"\x03" + bytes([64]) + raw[:64]


def attribute(name, value):
    head = text(name)
    if isinstance(value, int):
        return head + b"\0" + number(value)
    if isinstance(value, float):
        return head + b"\1" + real(value)
    if isinstance(value, str):
        return head + b"\2" + text(value)
    if isinstance(value, list):
        return head + b"\3" + bytes([len(value)]) + b"".join(map(number, value))
    return head + b"\4" + content(np.array([7], np.int32))


def node(call):
    data = b"n" + text(f"{call.domain}::{call.op}") + bytes([(call.opset if not call.domain else 1) - 1, 0, call.outputs - 1, 0])
    data += bytes([len(call.attributes)]) + b"".join(attribute(k, v) for k, v in call.attributes.items())
    data += bytes([len(call.inputs)])
    for i, array in enumerate(call.inputs):
        data += bytes([(array is None) | (i in call.constant) << 1]) + content(np.zeros(()) if array is None else array)
    return data


def main():
    folder = pathlib.Path(sys.argv[1])
    for name in ("graph", "model", "options"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for call in CALLS:
        name = call.name.replace("::", ".")
        (folder / "graph" / f"{name}-{call.opset}").write_bytes(node(call))
    for path in sorted((pathlib.Path(__file__).resolve().parents[1] / "golden").glob("*/model.onnx")):
        data = path.read_bytes()
        if len(data) < 200_000:
            (folder / "model" / path.parent.name).write_bytes(data)
    for call in CALLS[::8]:
        (folder / "model" / call.name.replace("::", ".")).write_bytes(model_of(call))
        (folder / "graph" / ("model-" + call.name.replace("::", "."))).write_bytes(b"m\1" + model_of(call))
    (folder / "options" / "all").write_text(
        "intra_op_num_threads=4\nhotset.trace=1\nhotset.fuse=false\nhotset.cpu_activation=int8\nep.cuda.x=1\n"
    )


main()
