# SPDX-License-Identifier: Apache-2.0
"""One QMoE layer with new random routing at every call, so that weights come from memory, beside onnxruntime and ggml.

    pip install '.[bench]' && python tests/bench/bench_moe_layer.py [--shape qwen3-30b-a3b] [--bits 4] [--block 32]
        [--rows 1,2,4,8,32,128,512] [--threads 2] [--rounds 7] [--json FILE]

`pip install llama-cpp-python` adds ggml, with weights in the file's layout (plain) and in its own copy (repacked). Rounds of all
programs are interleaved; the table shows medians. Bytes are those of the experts that a call visits, read once; shares are of what the same
threads read from the same kind of pages, and of the multiply-adds they do, measured in the same run (roofs.c).
"""

import argparse
import ctypes
import json
import pathlib
import platform
import statistics
import subprocess
import tempfile
import time

import numpy as np
import onnx
import onnxruntime
from ggml_layer import GgmlLayer, find_ggml
from onnx import TensorProto, helper

import hotset

SHAPES = {  # hidden, inter, experts, k
    "qwen3-30b-a3b": (2048, 768, 128, 8),
    "gpt-oss-20b": (2880, 2880, 32, 4),
    "mixtral-8x7b": (4096, 14336, 8, 2),
}
PAUSE_S = 0.03  # lets the threads of the program measured before come to rest
CALL_SECONDS = 0.15  # of calls in one round of one program
SIGMOID_SCALE, LIMIT = 1.702, 7.0


# ---- the layer --------------------------------------------------------------------------------------------------------------------


class Layer:
    """A QMoE model in a folder. Codes are random, scales near those that keep the size of activations."""

    def __init__(self, folder, shape, bits, block, accuracy_level):
        self.hidden, self.inter, self.experts, self.k = SHAPES[shape]
        self.bits, self.block = bits, block
        self.path = folder / f"{shape}-int{bits}-b{block}-a{accuracy_level}.onnx"
        self.data = folder / f"{shape}-int{bits}-b{block}.data"
        self.sizes = {}
        matrices = {"fc1": (2 * self.inter, self.hidden), "fc2": (self.hidden, self.inter)}
        for name, (n, k) in matrices.items():
            self.sizes[f"{name}_weights"] = (self.experts, n, k * bits // 8), np.uint8
            self.sizes[f"{name}_scales"] = (self.experts, n, k // block), np.float32
        self.places, at = {}, 0
        for name, (dims, dtype) in self.sizes.items():
            self.places[name] = at
            at += int(np.prod(dims)) * np.dtype(dtype).itemsize
        self.data_bytes = at
        self.expert_bytes = at // self.experts
        self._write_data()
        self._write_model(accuracy_level)

    def _write_data(self):
        if self.data.exists() and self.data.stat().st_size == self.data_bytes:
            return
        rng = np.random.default_rng(7)
        with open(self.data, "wb") as file:
            for dims, dtype in self.sizes.values():
                for _ in range(dims[0]):
                    if dtype == np.uint8:
                        file.write(rng.bytes(dims[1] * dims[2]))
                    else:
                        typical = 1 / (0.29 * 2**self.bits * np.sqrt(dims[2] * self.block))
                        file.write((typical * rng.uniform(0.8, 1.2, dims[1:])).astype(np.float32).tobytes())

    def _write_model(self, accuracy_level):
        def stored(name):
            dims, dtype = self.sizes[name]
            proto = TensorProto(name=name, dims=dims, data_type=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
            proto.data_location = TensorProto.EXTERNAL
            length = int(np.prod(dims)) * np.dtype(dtype).itemsize
            for key, value in (("location", self.data.name), ("offset", self.places[name]), ("length", length)):
                proto.external_data.add(key=key, value=str(value))
            return proto

        inputs = ["x", "router", "fc1_weights", "fc1_scales", "", "fc2_weights", "fc2_scales"]
        attributes = {
            "k": self.k,
            "normalize_routing_weights": 1,
            "activation_type": "swiglu",
            "swiglu_fusion": 1,
            "activation_alpha": SIGMOID_SCALE,
            "activation_beta": 1.0,
            "swiglu_limit": LIMIT,
            "expert_weight_bits": self.bits,
            "block_size": self.block,
            "accuracy_level": accuracy_level,
        }
        node = helper.make_node("QMoE", inputs, ["y"], name="layer", domain="com.microsoft", **attributes)
        float_info = lambda name, width: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", width])  # noqa: E731
        graph = helper.make_graph(
            [node],
            "layer",
            [float_info("x", self.hidden), float_info("router", self.experts)],
            [float_info("y", self.hidden)],
            [stored(name) for name in self.sizes],
        )
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), self.path)

    def tensor(self, name):
        dims, dtype = self.sizes[name]
        return np.memmap(self.data, dtype, "r", self.places[name], dims)

    def feeds(self, rng, rows):
        return {
            "x": rng.standard_normal((rows, self.hidden), np.float32),
            "router": rng.standard_normal((rows, self.experts), np.float32),
        }

    def visited(self, feeds):
        """Experts that the rows of a call go to."""
        return np.unique(np.argpartition(-feeds["router"], self.k - 1, axis=1)[:, : self.k])

    def expected(self, feeds):
        """The layer in float64."""

        def matrix(name, e):
            packed = np.asarray(self.tensor(f"{name}_weights")[e])
            codes = packed if self.bits == 8 else np.stack([packed & 15, packed >> 4], -1).reshape(len(packed), -1)
            scales = np.asarray(self.tensor(f"{name}_scales")[e], np.float64)
            return (codes.astype(np.float64) - 2 ** (self.bits - 1)) * np.repeat(scales, self.block, axis=1)

        x, router = feeds["x"].astype(np.float64), feeds["router"].astype(np.float64)
        chosen = np.argsort(-router, axis=1)[:, : self.k]
        weights = np.exp(np.take_along_axis(router, chosen, 1))
        weights /= weights.sum(1, keepdims=True)
        y = np.zeros_like(x)
        for e in np.unique(chosen):
            rows, j = np.nonzero(chosen == e)
            a = x[rows] @ matrix("fc1", e).T
            gate, value = np.minimum(a[:, 0::2], LIMIT), np.clip(a[:, 1::2], -LIMIT, LIMIT)
            h = gate / (1 + np.exp(-SIGMOID_SCALE * gate)) * (value + 1)
            y[rows] += weights[rows, j, None] * (h @ matrix("fc2", e).T)
        return y


# ---- programs ---------------------------------------------------------------------------------------------------------------------


class Hotset:
    def __init__(self, layer, threads, activation, pages="map"):
        options = hotset.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("hotset.cpu_activation", activation)
        if pages != "map":
            options.add_session_config_entry("hotset.host_pages", pages)
        self.name = f"hotset {activation} {pages}"
        self.int8 = activation == "int8"
        self.pages = "huge" if pages == "huge" else "map"
        self.session = hotset.InferenceSession(layer.path, options)

    def run(self, feeds):
        return self.session.run(None, feeds)[0]


class Onnxruntime:
    int8, pages = None, None

    def __init__(self, layer, threads, name):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.name = name
        self.session = onnxruntime.InferenceSession(layer.path, options, providers=["CPUExecutionProvider"])

    def run(self, feeds):
        return self.session.run(None, feeds)[0]


class Ggml:
    int8, pages = None, None

    def __init__(self, layer, threads, library, repacked):
        self.name = "ggml repacked" if repacked else "ggml plain"
        self.k = layer.k
        self.layer = GgmlLayer(library, layer.hidden, layer.inter, layer.experts, layer.k, layer.bits, threads, repacked)

    def run(self, feeds):
        order = np.argsort(-feeds["router"], axis=1)[:, : self.k].astype(np.int32)
        weights = np.take_along_axis(feeds["router"], order, 1)
        return self.layer.run(feeds["x"], order, weights)


def time_calls(program, layer, rng, rows, n_calls):
    feeds = [layer.feeds(rng, rows) for _ in range(n_calls + 1)]
    program.run(feeds[0])
    if isinstance(program, Ggml):  # its router and the graph are made outside of the clock
        return program.layer.seconds(feeds[1:], program.k) / n_calls
    begin = time.perf_counter()
    for f in feeds[1:]:
        program.run(f)
    return (time.perf_counter() - begin) / n_calls


# ---- roofs ------------------------------------------------------------------------------------------------------------------------


class Roofs:
    def __init__(self, layer, threads, folder):
        source, library = pathlib.Path(__file__).with_name("roofs.c"), folder / "roofs.so"
        subprocess.run(["cc", "-O3", "-shared", "-fPIC", "-pthread", source, "-o", library], check=True)
        self.c = ctypes.CDLL(library)
        self.c.roof_read_seconds.restype = self.c.roof_gmacs.restype = ctypes.c_double
        self.c.roof_read_seconds.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int]
        self.c.roof_huge_alloc.restype = ctypes.c_void_p
        self.c.roof_huge_alloc.argtypes = [ctypes.c_uint64]
        self.threads = threads
        self.file = np.memmap(layer.data, np.uint8, "r")
        self.file[:: 4096 // 2].max()  # in memory
        self.run_bytes = min(layer.expert_bytes, 16 << 20)
        self.n_places = len(self.file) // self.run_bytes
        self.bases = {"map": self.file.ctypes.data, "huge": self.c.roof_huge_alloc(len(self.file))}
        self.rng = np.random.default_rng(3)

    def read(self, pages):
        """10^9 bytes a second of runs as long as an expert, in random order."""
        order = self.rng.permutation(self.n_places)[: max(1, (256 << 20) // self.run_bytes)]
        offsets = (order * self.run_bytes).astype(np.uint64)
        seconds = self.c.roof_read_seconds(self.bases[pages], offsets.ctypes.data, len(offsets), self.run_bytes, self.threads)
        return len(offsets) * self.run_bytes / seconds / 1e9

    def gmacs(self, int8):
        return self.c.roof_gmacs(int(int8), self.threads)


# ---- report -----------------------------------------------------------------------------------------------------------------------


def cpu_model():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor()


def commit():
    """Of the checkout that this file lies in; empty where there is none."""
    command = ["git", "-C", pathlib.Path(__file__).parent, "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def rms(a):
    return float(np.sqrt(np.mean(np.square(a, dtype=np.float64))))


def measure(layer, programs, roofs, rows, rounds):
    rng = np.random.default_rng(rows)
    macs = rows * layer.k * 3 * layer.hidden * layer.inter
    seen = statistics.mean(len(layer.visited(layer.feeds(rng, rows))) for _ in range(20))
    n_calls = {}
    for p in programs:
        once = time_calls(p, layer, rng, rows, 1)
        n_calls[p.name] = max(1, min(400, int(CALL_SECONDS / once)))
    times = {p.name: [] for p in programs}
    read = {"map": [], "huge": []}
    peak = {True: [], False: []}
    for _ in range(rounds):
        for p in programs:
            time.sleep(PAUSE_S)
            times[p.name].append(time_calls(p, layer, rng, rows, n_calls[p.name]))
        time.sleep(PAUSE_S)
        for pages, values in read.items():
            values.append(max(roofs.read(pages) for _ in range(4)))
        for int8, values in peak.items():
            values.append(roofs.gmacs(int8))
    lines = []
    for p in programs:
        seconds = statistics.median(times[p.name])
        line = {
            "program": p.name,
            "rows": rows,
            "us": seconds * 1e6,
            "GB/s": seen * layer.expert_bytes / seconds / 1e9,
            "GMAC/s": macs / seconds / 1e9,
        }
        if p.pages:
            line["share of read"] = line["GB/s"] / statistics.median(read[p.pages])
            line["share of peak"] = line["GMAC/s"] / statistics.median(peak[p.int8])
        lines.append(line)
    roof = {"read map": statistics.median(read["map"]), "read huge": statistics.median(read["huge"])}
    roof |= {"FMA GMAC/s": statistics.median(peak[False]), "int8 GMAC/s": statistics.median(peak[True])}
    return lines, roof


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-30b-a3b")
    parser.add_argument("--bits", type=int, choices=(4, 8), default=4)
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--rows", default="1,2,4,8,32,128,512")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--programs", default="", help="only those whose names contain one of these words, comma separated")
    parser.add_argument("--folder", type=pathlib.Path, help="keeps the model here instead of a temporary folder")
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or pathlib.Path(temporary)
        folder.mkdir(exist_ok=True, parents=True)
        layer, layer4 = (Layer(folder, arguments.shape, arguments.bits, arguments.block, level) for level in (0, 4))
        make = {
            "hotset float map": lambda: Hotset(layer, arguments.threads, "float"),
            "hotset int8 map": lambda: Hotset(layer, arguments.threads, "int8"),
            "hotset float huge": lambda: Hotset(layer, arguments.threads, "float", "huge"),
            "hotset int8 huge": lambda: Hotset(layer, arguments.threads, "int8", "huge"),
            "onnxruntime": lambda: Onnxruntime(layer, arguments.threads, "onnxruntime"),
            "onnxruntime accuracy_level=4": lambda: Onnxruntime(layer4, arguments.threads, "onnxruntime accuracy_level=4"),
        }
        library = find_ggml()
        if library:
            make["ggml plain"] = lambda: Ggml(layer, arguments.threads, library, False)
            if arguments.bits == 4:  # ggml has no other layout of Q8_0 for x86
                make["ggml repacked"] = lambda: Ggml(layer, arguments.threads, library, True)
        words = arguments.programs.split(",")
        programs = [construct() for name, construct in make.items() if any(word in name for word in words)]
        roofs = Roofs(layer, arguments.threads, pathlib.Path(temporary))

        record = {
            "cpu": cpu_model(),
            "commit": commit(),
            "threads": arguments.threads,
            "shape": arguments.shape,
            "bits": arguments.bits,
            "block": arguments.block,
        }
        feeds = layer.feeds(np.random.default_rng(1), 4)
        expected = layer.expected(feeds)
        record["error"] = {p.name: rms(p.run(feeds) - expected) / rms(expected) for p in programs if not isinstance(p, Ggml)}
        print("error, RMS over RMS of the output: " + ", ".join(f"{name} {value:.1e}" for name, value in record["error"].items()))
        record["lines"] = []
        for rows in map(int, arguments.rows.split(",")):
            lines, roof = measure(layer, programs, roofs, rows, arguments.rounds)
            record["lines"].append({"rows": rows, "roofs": roof, "programs": lines})
            print(f"{rows} rows; roofs: " + ", ".join(f"{name} {value:.1f}" for name, value in roof.items()))
            for line in lines:
                shares = "" if "share of read" not in line else f"{line['share of read']:6.2f} of read {line['share of peak']:6.2f} of peak"
                print(
                    f"  {line['program']:<30}{line['us']:12.1f} us{line['GB/s']:8.1f} GB/s{line['GMAC/s']:9.1f} GMAC/s{shares}", flush=True
                )
        if arguments.json:
            arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
