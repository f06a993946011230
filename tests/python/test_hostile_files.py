# SPDX-License-Identifier: Apache-2.0
"""Damaged and malicious model files: a precise refusal in little time and memory, in a process that lives through all of them."""

import base64
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest

DEMO = pathlib.Path(__file__).resolve().parents[2] / "python/hotset/models/demo"
SECONDS, MEBIBYTES = 5, 64  # that one case may take, in seconds and in growth of resident memory

# Reads cases, one a line; opens each as a session, runs it with zeros, answers with what came of it.
WORKER = """
import base64, json, resource, sys, time
import numpy as np
import hotset
if sys.argv[1] != "0":
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]), int(sys.argv[1])))

def resident(key):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(key)) / 1024

def forget_peak():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")

for line in sys.stdin:
    case = json.loads(line)
    model = base64.b64decode(case["bytes"]) if "bytes" in case else case["path"]
    forget_peak()
    start, before, result = time.monotonic(), resident("VmRSS"), {"error": None}
    try:
        options = hotset.SessionOptions()
        options.intra_op_num_threads = 1
        for key, value in case.get("options", {}).items():
            options.add_session_config_entry(key, value)
        with hotset.InferenceSession(model, options) as session:
            feeds = {}
            for i in session.get_inputs():
                dtype = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_}[i.type]
                shape = [d if isinstance(d, int) else 1 for d in i.shape]
                feeds[i.name] = np.array(case.get("feeds", {}).get(i.name, np.zeros(shape)), dtype)
            result["inputs"] = [[i.name, i.shape] for i in session.get_inputs()]
            outputs = session.run(None, feeds) if case.get("run", True) else []
            result["outputs"] = [o.tolist() if 0 < o.size < 100 else list(o.shape) for o in outputs]
    except hotset.Error as error:
        result["error"], result["text"] = type(error).__name__, str(error)
    result["seconds"], result["mebibytes"] = time.monotonic() - start, resident("VmHWM") - before
    print(json.dumps(result), flush=True)
"""


class Worker:
    """The process, started when needed, and again after a case that ended it."""

    process = None

    def open(self, case):
        if self.process is None:
            sanitized = "san" in os.environ.get("LD_PRELOAD", "")
            limit = "0" if sanitized else str(8 << 30)
            self.process = subprocess.Popen([sys.executable, "-c", WORKER, limit], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        timer = threading.Timer(60, self.process.kill)
        timer.start()
        try:
            self.process.stdin.write(json.dumps(case) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            code, self.process = self.process.wait(), None
            pytest.fail(f"the process ended with {code}", pytrace=False)
        return json.loads(line)


WORKERS = Worker()


@pytest.fixture(scope="module", autouse=True)
def end_worker():
    yield
    if WORKERS.process:
        WORKERS.process.stdin.close()
        WORKERS.process.wait()


def open_all(cases, mebibytes=MEBIBYTES):
    sanitized = "san" in os.environ.get("LD_PRELOAD", "")
    results = [WORKERS.open(case) for case in cases]
    for result in results:
        assert result["seconds"] < SECONDS and (sanitized or result["mebibytes"] < mebibytes), result
        if result["error"]:
            assert result["error"] != "InternalError" and result["text"] and "\n" not in result["text"]
    return results


def open_one(model, mebibytes=MEBIBYTES, **case):
    place = {"path": str(model)} if isinstance(model, (str, os.PathLike)) else {"bytes": base64.b64encode(model).decode()}
    return open_all([case | place], mebibytes)[0]


def refused(model, error, *texts, **case):
    result = open_one(model, **case)
    assert result["error"] == error, result
    for text in texts:
        assert text in result["text"], result["text"]


def runs(model, **case):
    result = open_one(model, **case)
    assert result["error"] is None, result
    return result["outputs"]


# Messages by hand: the onnx package refuses to write what these tests need.


def varint(n):
    n &= 2**64 - 1
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes(out + bytes([n]))


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def node(op, inputs, outputs, *attributes, domain="", name="n"):
    lists = b"".join(field(1, i) for i in inputs) + b"".join(field(2, o) for o in outputs)
    return lists + field(3, name) + field(4, op) + (field(7, domain) if domain else b"") + b"".join(field(5, a) for a in attributes)


def subgraph(name, message):
    return field(1, name) + field(6, message) + field(20, 5)


def value(name, dtype=1, dims=None):
    shape = b"" if dims is None else field(2, b"".join(field(1, field(1, d) if isinstance(d, int) else field(2, d)) for d in dims))
    return field(1, name) + field(2, field(1, field(1, dtype) + shape))


def tensor(name, dims, raw=b"", dtype=1):
    return b"".join(field(1, d) for d in dims) + field(2, dtype) + field(8, name) + field(9, raw)


def external(name, dims, location, offset=None, length=None, dtype=1):
    entries = {"location": location, "offset": offset, "length": length}
    message = b"".join(field(1, d) for d in dims) + field(2, dtype) + field(8, name) + field(14, 1)
    for key, text in entries.items():
        if text is not None:
            message += field(13, field(1, key) + field(2, text if isinstance(text, bytes) else str(text)))
    return message


def graph(nodes, inputs=(), outputs=(), tensors=()):
    inputs = [value(i) if isinstance(i, str) else i for i in inputs]
    outputs = [value(o) if isinstance(o, str) else o for o in outputs]
    return b"".join(
        [
            *(field(1, n) for n in nodes),
            field(2, "g"),
            *(field(5, t) for t in tensors),
            *(field(11, i) for i in inputs),
            *(field(12, o) for o in outputs),
        ]
    )


def model(graph_message, functions=(), opset=21):
    sets = b"".join(field(8, field(1, d) + field(2, v)) for d, v in (("", opset), ("com.microsoft", 1), ("local", 1)))
    return field(1, 10) + field(7, graph_message) + sets + b"".join(field(25, f) for f in functions)


def function(name, inputs, outputs, nodes, domain="local"):
    fields = [field(1, name), *(field(4, i) for i in inputs), *(field(5, o) for o in outputs), *(field(7, n) for n in nodes)]
    return b"".join(fields) + field(9, field(1, "") + field(2, 18)) + field(10, domain)


SIMPLE = graph([node("Identity", ["x"], ["y"])], ["x"], ["y"])


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


def test_cycles():
    loop = [node("Add", ["x", "b"], ["a"], name="first"), node("Identity", ["a"], ["b"], name="second")]
    refused(model(graph(loop, ["x"], ["b"])), "InvalidModel", "cycle", "'first'", "'second'")
    refused(model(graph([node("Add", ["x", "y"], ["y"], name="itself")], ["x"], ["y"])), "InvalidModel", "cycle", "'itself'")
    branch = graph([node("Identity", ["y"], ["t"])], [], ["t"])
    inside = [node("If", ["c"], ["y"], subgraph("then_branch", branch), subgraph("else_branch", branch), name="choice")]
    refused(model(graph(inside, [value("c", 9)], ["y"])), "InvalidModel", "cycle", "'choice'")


def test_depth_bombs():
    inner = graph([node("Identity", ["x"], ["y"])], [], ["y"])
    for _ in range(2000):
        inner = graph(
            [
                node(
                    "If",
                    ["c"],
                    ["y"],
                    subgraph("then_branch", inner),
                    subgraph("else_branch", graph([node("Identity", ["x"], ["y"])], [], ["y"])),
                )
            ],
            [],
            ["y"],
        )
    refused(model(inner + field(11, value("x")) + field(11, value("c", 9))), "Unsupported", "nested deeper than")
    message = b""
    for _ in range(3000):
        message = field(6, field(5, message))
    refused(model(graph([node("Identity", ["x"], ["y"]) + field(5, message)], ["x"], ["y"])), "InvalidModel")


def test_exponential_functions():
    functions = [function("F0", ["a"], ["b"], [node("Abs", ["a"], ["b"])])]
    for i in range(1, 40):
        functions.append(
            function(
                f"F{i}", ["a"], ["b"], [node(f"F{i - 1}", ["a"], ["m"], domain="local"), node(f"F{i - 1}", ["m"], ["b"], domain="local")]
            )
        )
    data = model(graph([node("F39", ["x"], ["y"], domain="local")], ["x"], ["y"]), functions)
    result = open_one(data, mebibytes=1024)  # 262144 calls are made before the refusal
    assert result["error"] == "Unsupported" and "calls of functions" in result["text"], result
    itself = function("Loop", ["a"], ["b"], [node("Loop", ["a"], ["b"], domain="local")])
    refused(model(graph([node("Loop", ["x"], ["y"], domain="local")], ["x"], ["y"]), [itself]), "Unsupported", "calls itself")


def test_branches_that_share_bytes():
    """Two branches a level, each holding the level below: the file is as large as its graph, and stays so."""
    inner = graph([node("Identity", ["x"], ["y"])], [], ["y"])
    for _ in range(13):
        inner = graph([node("If", ["c"], ["y"], subgraph("then_branch", inner), subgraph("else_branch", inner))], [], ["y"])
    assert runs(model(inner + field(11, value("x", 1, [2])) + field(11, value("c", 9, [])))) == [[0.0, 0.0]]


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


@pytest.mark.parametrize(
    "dims, raw, error, text",
    [
        ([4], bytes(15), "InvalidModel", "needs 16 bytes, the file holds 15"),
        ([4], bytes(17), "InvalidModel", "needs 16 bytes, the file holds 17"),
        ([2**33, 2**33], bytes(16), "InvalidModel", "overflow"),
        ([2**62, 4], bytes(16), "InvalidModel", "overflow"),
        ([2**63 - 1], bytes(16), "InvalidModel", "overflow"),
        ([-1], bytes(16), "InvalidModel", "-1 is negative"),
        ([-(2**63)], bytes(16), "InvalidModel", "is negative"),
        ([2**62, 2**62, 0], b"", "InvalidModel", "overflow"),
        ([1] * 9, bytes(4), "Unsupported", "rank 9"),
        ([1] * 5000, bytes(4), "Unsupported", "rank 5000"),
        ([2**40], bytes(16), "InvalidModel", "the file holds 16"),
    ],
)
def test_dimensions(dims, raw, error, text):
    refused(model(graph([node("Identity", ["w"], ["y"])], [], ["y"], [tensor("w", dims, raw)])), error, "tensor 'w'", text)


def test_types():
    for dtype in (0, -1, 99, 10**6, 2**62):
        result = open_one(model(graph([node("Identity", ["w"], ["y"])], [], ["y"], [tensor("w", [1], bytes(4), dtype)])))
        assert result["error"] in ("InvalidModel", "Unsupported") and "tensor 'w'" in result["text"], result
    refused(
        model(graph([node("Identity", ["w"], ["y"])], [], ["y"], [field(1, 1) + field(2, 8) + field(8, "w") + field(6, "text")])),
        "Unsupported",
        "'w'",
    )


def test_duplicate_names():
    identity = [node("Identity", ["x"], ["y"])]
    twice = [node("Identity", ["x"], ["y"], name="one"), node("Abs", ["x"], ["y"], name="two")]
    refused(model(graph(twice, ["x"], ["y"])), "InvalidModel", "'y'")
    refused(model(graph([node("TopK", ["x", "k"], ["y", "y"])], ["x", value("k", 7)], ["y"])), "InvalidModel", "'y'")
    refused(model(graph([node("Identity", ["x"], ["x"])], ["x"], ["x"])), "InvalidModel", "'x'")
    refused(model(graph(identity, ["x", "x"], ["y"])), "InvalidModel", "two graph inputs", "'x'")
    refused(model(graph(identity, ["x"], ["y", "y"])), "InvalidModel", "two graph outputs", "'y'")
    weights = [tensor("w", [1], bytes(4))] * 2
    refused(model(graph([node("Add", ["x", "w"], ["y"])], ["x"], ["y"], weights)), "InvalidModel", "two initializers", "'w'")
    refused(
        model(
            graph([node("F", ["x"], ["y"], domain="local")], ["x"], ["y"]), [function("F", ["a"], ["b"], [node("Abs", ["a"], ["b"])])] * 2
        ),
        "InvalidModel",
        "two functions",
        "'F'",
    )


def test_values_from_nowhere():
    refused(model(graph([node("Add", ["x", "ghost"], ["y"], name="reader")], ["x"], ["y"])), "InvalidModel", "'ghost'", "'reader'")
    refused(model(graph([], ["x"], ["ghost"])), "InvalidModel", "'ghost'")
    branch = graph([node("Identity", ["ghost"], ["t"])], [], ["t"])
    nodes = [node("If", ["c"], ["y"], subgraph("then_branch", branch), subgraph("else_branch", branch), name="choice")]
    refused(model(graph(nodes, [value("c", 9)], ["y"])), "InvalidModel", "'ghost'")


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


def test_digits_as_a_dimension_name():
    data = model(graph([node("Identity", ["x"], ["y"])], [value("x", 1, ["3", "batch"])], ["y"]))
    result = open_one(data)
    assert result["inputs"] == [["x", [3, "batch"]]] and result["outputs"] == [[[0.0]] * 3]
    refused(data, "InvalidArgument", "'x'", "expected [3,batch]", feeds={"x": [[1.0]]})
    for digits in ("9" * 30, "-3", "3x", "0x3", " 3", ""):
        result = open_one(model(graph([node("Identity", ["x"], ["y"])], [value("x", 1, [digits])], ["y"])))
        assert result["error"] is None, result


def test_local_functions():
    relu = function("QuickGelu", ["X"], ["Y"], [node("Neg", ["X"], ["Y"])], domain="com.microsoft")
    one = tensor("one", [1], np.float32(1).tobytes())
    with_kernel = model(graph([node("QuickGelu", ["one"], ["y"], domain="com.microsoft")], [], ["y"], [one]), [relu])
    assert runs(with_kernel) == [[pytest.approx(0.8457957)]]  # the kernel, not the body
    body = function("Twice", ["X"], ["Y"], [node("Add", ["X", "X"], ["Y"])])
    without = model(graph([node("Twice", ["one"], ["y"], domain="local")], [], ["y"], [one]), [body])
    assert runs(without) == [[2.0]]
    refused(model(graph([node("Absent", ["one"], ["y"], domain="local")], [], ["y"], [one]), [body]), "Unsupported", "local::Absent")
    refused(
        model(graph([node("Twice", ["one", "one"], ["y"], domain="local")], [], ["y"], [one]), [body]),
        "InvalidModel",
        "2 inputs, its function has 1",
    )
    broken = function("Twice", ["X"], ["Y"], [node("Add", ["X", "ghost"], ["Y"])])
    refused(model(graph([node("Twice", ["one"], ["y"], domain="local")], [], ["y"], [one]), [broken]), "InvalidModel", "ghost")


def constant(name, *numbers):
    return tensor(name, [len(numbers)], np.array(numbers, np.int64).tobytes(), 7)


@pytest.mark.parametrize(
    "nodes, dims",
    [
        ([node("ConstantOfShape", ["s"], ["y"])], (2**40,)),
        ([node("ConstantOfShape", ["s"], ["y"])], (2**54,)),
        ([node("ConstantOfShape", ["s"], ["y"])], (2**62, 2**62)),
        ([node("ConstantOfShape", ["s"], ["y"])], (-1,)),
        ([node("Expand", ["one", "s"], ["y"])], (2**20, 2**20)),
        ([node("Tile", ["one", "s"], ["y"])], (2**41,)),
        (
            [
                node("ConstantOfShape", ["s"], ["a"]),
                *[node("Identity" if i % 2 else "Exp", [f"a{i}" if i else "a"], [f"a{i + 1}"]) for i in range(8)],
                node("ReduceSum", ["a8"], ["y"]),
            ],
            (2**42,),
        ),
        ([node("Range", ["zero", "many", "step"], ["y"])], ()),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_results_larger_than_memory(nodes, dims, late):
    """Claims that no machine holds; `late`: the sizes are inputs of the run."""
    tensors = [tensor("one", [1], np.float32(1).tobytes())]
    for name, number in (("zero", 0), ("many", 2**45), ("step", 1)):
        tensors.append(tensor(name, [], np.int64(number).tobytes(), 7))
    inputs, feeds = [], {}
    if late:
        inputs, feeds = [value("s", 7, [len(dims)])], {"s": list(dims)}
    else:
        tensors.append(constant("s", *dims))
    result = open_one(model(graph(nodes, inputs, ["y"], tensors)), feeds=feeds)
    assert result["error"] in ("OutOfMemory", "InvalidArgument"), result


def test_rows_of_nothing():
    """2^54 rows of 0 columns are no work."""
    tensors = [constant("s", 2**54, 0), constant("t", 0, 2**50, 3)]
    for op in ("Exp", "Softmax", "Transpose", "LpNormalization", "Identity", "Not", "CumSum", "Trilu"):
        nodes = [node("ConstantOfShape", ["s"], ["a"]), node(op, ["a"] if op != "CumSum" else ["a", "axis"], ["y"])]
        result = open_one(model(graph(nodes, [], ["y"], [*tensors, tensor("axis", [], bytes(8), 7)])))
        assert result["error"] in (None, "Unsupported"), result
    for op in ("ReduceSum", "ReduceMax", "ReduceMean"):
        nodes = [node("ConstantOfShape", ["s"], ["a"]), node(op, ["a"], ["y"])]
        open_one(model(graph(nodes, [], ["y"], tensors)))
    width = tensor("w", [0], b"")
    nodes = [node("ConstantOfShape", ["s"], ["a"]), node("LayerNormalization", ["a", "w"], ["y"])]
    open_one(model(graph(nodes, [], ["y"], [*tensors, width])))


def branch_model(then_branch, else_branch, condition=None, outputs=("y",)):
    attributes = [subgraph(n, b) for n, b in (("then_branch", then_branch), ("else_branch", else_branch)) if b is not None]
    nodes = [node("If", ["c"], outputs, *attributes, name="choice")]
    return model(graph(nodes, [value("x", 1, [2]), condition if condition is not None else value("c", 9, [])], outputs))


def test_if():
    one, two = graph([node("Identity", ["x"], ["t"])], [], ["t"]), graph([node("Neg", ["x"], ["t"])], [], ["t"])
    assert runs(branch_model(one, two), feeds={"x": [1, 2], "c": True}) == [[1.0, 2.0]]
    assert runs(branch_model(one, two), feeds={"x": [1, 2], "c": False}) == [[-1.0, -2.0]]
    refused(branch_model(one, None), "InvalidModel", "'choice'", "else_branch")
    refused(branch_model(one, two, outputs=("y", "z")), "InvalidModel", "'choice'", "fewer results")
    refused(branch_model(one, two, condition=value("c", 1, [])), "InvalidArgument", "'choice'", "one bool")
    refused(branch_model(one, two, condition=value("c", 9, [2])), "InvalidArgument", "'choice'", "one bool")
    refused(branch_model(graph([node("Identity", ["i"], ["t"])], ["i"], ["t"]), two), "InvalidModel", "'choice'", "without inputs")
    nothing = graph([], [], ["x"])  # a branch may return what it captures
    assert runs(branch_model(nothing, two), feeds={"x": [1, 2], "c": True}) == [[1.0, 2.0]]


def test_opsets():
    refused(field(1, 10) + field(7, SIMPLE), "InvalidModel")
    for version in (0, -1, 2**40, 99):
        result = open_one(model(SIMPLE, opset=version))
        assert result["error"] in ("InvalidModel", "Unsupported") and "opset" in result["text"], result
    refused(model(graph([node("NoSuchOperator", ["x"], ["y"])], ["x"], ["y"])), "Unsupported", "ai.onnx::NoSuchOperator")
    refused(model(graph([node("Bad\n\xff\x01Name", ["x"], ["y"])], ["x"], ["y"])), "Unsupported")


def test_many_of_everything():
    """Long lists are read in linear time."""
    chain = [node("Identity", [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i in range(20000)]
    assert runs(model(graph(chain, [value("v0", 1, [1])], ["v20000"]))) == [[0.0]]
    runs(model(graph(chain[::-1], [value("v0", 1, [1])], ["v20000"])))
    wide = node("Sum", ["x"] * 20000, ["y"])
    assert runs(model(graph([wide], [value("x", 1, [1])], ["y"]))) == [[0.0]]
    name = "x" * 1_000_000
    assert runs(model(graph([node("Identity", [name], ["y"], name=name)], [value(name, 1, [1])], ["y"]))) == [[0.0]]
    refused(model(graph([node("Add", [name], ["y"], name=name)], [value(name, 1, [1])], ["y"])), "InvalidModel", "(Add)")
