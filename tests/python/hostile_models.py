# SPDX-License-Identifier: Apache-2.0
"""Damaged and malicious models: messages written by hand, and a process that opens one after the other and lives through all of them."""

import atexit
import base64
import json
import os
import subprocess
import sys
import threading

import pytest

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


@atexit.register
def end_worker():
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
