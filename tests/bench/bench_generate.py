# SPDX-License-Identifier: Apache-2.0
"""Text generation of the demo model and per-node overhead, next to onnxruntime-genai and onnxruntime.

    pip install '.[cli,bench]' onnx && python tests/bench/bench_generate.py [--threads 2] [--rounds 9] [--json FILE]

Rounds of all programs are interleaved, so that a busy machine hurts them alike; the table shows medians, and in brackets the
quartiles. The ratio is the median of the rounds' own ratios, above 1 where hotset is faster.
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import time

import numpy as np
import onnx
import onnxruntime
import onnxruntime_genai
from onnx import TensorProto, helper

import hotset
from hotset.generator import model_folder

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden" / "demo"
PREFILL_TOKENS = 512
DECODE_TOKENS = 256
CHAIN_NODES = 200
PAUSE_S = 0.03  # lets the threads of the program measured before come to rest


class Hotset:
    name = "hotset"

    def __init__(self, folder, threads):
        self.options = hotset.SessionOptions()
        self.options.intra_op_num_threads = threads
        self.folder = folder
        self.generator = hotset.Generator(folder, self.options, max_length=1024)

    def prefill(self, ids):
        next(self.generator.stream_ids(ids, 1))
        return self.generator.stats.first_token_s

    def decode(self, ids, n):
        for _ in self.generator.stream_ids(ids, n):
            pass
        stats = self.generator.stats
        return stats.decode_s / (stats.new_tokens - 1)

    def open(self):
        return timed(lambda: hotset.InferenceSession(self.folder / "model.onnx", self.options))

    def start(self, ids):
        return timed(lambda: next(hotset.Generator(self.folder, self.options, max_length=1024).stream_ids(ids, 1)))

    def session(self, model):
        return hotset.InferenceSession(model, self.options)


class Onnxruntime:
    name = "onnxruntime"

    def __init__(self, folder, threads):
        self.options = onnxruntime.SessionOptions()
        self.options.intra_op_num_threads = threads
        self.folder = folder
        self.threads = threads
        self.model = self._load()

    def _load(self):
        config = onnxruntime_genai.Config(str(self.folder))
        config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": self.threads}}}}))
        return onnxruntime_genai.Model(config)

    def _first_token(self, model, ids):
        parameters = onnxruntime_genai.GeneratorParams(model)
        parameters.set_search_options(max_length=1024)
        generator = onnxruntime_genai.Generator(model, parameters)
        generator.append_tokens(ids.astype(np.int32))
        generator.generate_next_token()
        return generator

    def prefill(self, ids):
        return timed(lambda: self._first_token(self.model, ids))

    def decode(self, ids, n):
        generator = self._first_token(self.model, ids)
        begin, done = time.perf_counter(), 1
        while done < n and not generator.is_done():
            generator.generate_next_token()
            done += 1
        return (time.perf_counter() - begin) / (done - 1)

    def open(self):
        return timed(lambda: onnxruntime.InferenceSession(self.folder / "model.onnx", self.options))

    def start(self, ids):
        return timed(lambda: self._first_token(self._load(), ids))

    def session(self, model):
        return onnxruntime.InferenceSession(model, self.options)


def timed(call):
    begin = time.perf_counter()
    result = call()
    seconds = time.perf_counter() - begin
    del result
    return seconds


def add_chain(n):
    """y = x + c + c ...: nodes so small that only their overhead counts."""
    nodes = [helper.make_node("Add", [f"v{i}", "c"], [f"v{i + 1}"]) for i in range(n)]
    values = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8])] for name in ("v0", f"v{n}")]
    graph = helper.make_graph(nodes, "chain", *values, [helper.make_tensor("c", TensorProto.FLOAT, [1, 8], [1.0] * 8)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10).SerializeToString()


class Chain:
    """Seconds a node: the difference between a long and a short chain, so that the cost of a run itself drops out."""

    def __init__(self, program):
        self._bindings = []
        for n in (CHAIN_NODES, 1):
            session = program.session(add_chain(n))
            binding = session.io_binding()
            binding.bind_cpu_input("v0", np.ones((1, 8), np.float32))
            binding.bind_output(f"v{n}")
            session.run_with_iobinding(binding)
            assert (binding.copy_outputs_to_cpu()[0] == n + 1).all()
            self._bindings.append((session, binding))

    def __call__(self):
        long, short = (min(timed(lambda s=s, b=b: s.run_with_iobinding(b)) for _ in range(200)) for s, b in self._bindings)
        return (long - short) / (CHAIN_NODES - 1)


def measure(programs, rounds):
    ids = np.load(GOLDEN / "heldout_scripture.npy").astype(np.int64)
    chains = {program.name: Chain(program) for program in programs}
    work = {
        "prefill": lambda program: program.prefill(ids[:PREFILL_TOKENS]),
        "decode": lambda program: program.decode(ids[:32], DECODE_TOKENS),
        "open": lambda program: program.open(),
        "start": lambda program: program.start(ids[:32]),
        "node": lambda program: chains[program.name](),
    }
    seconds = {task: {program.name: [] for program in programs} for task in work}
    for turn in range(rounds + 1):
        for task, call in work.items():
            for program in programs if turn % 2 else reversed(programs):
                time.sleep(PAUSE_S)
                value = call(program)
                if turn:  # the first round only warms up
                    seconds[task][program.name].append(value)
    return seconds


ROWS = {
    "prefill": (f"prefill of {PREFILL_TOKENS} tokens", "tokens/s", lambda s: PREFILL_TOKENS / s),
    "decode": (f"decode of {DECODE_TOKENS} tokens", "tokens/s", lambda s: 1 / s),
    "open": ("session creation", "ms", lambda s: s * 1e3),
    "start": ("load and first token", "ms", lambda s: s * 1e3),
    "node": (f"one node of a chain of {CHAIN_NODES} Add", "us", lambda s: s * 1e6),
}


def summary(seconds):
    for task, (title, unit, convert) in ROWS.items():
        ours, theirs = seconds[task]["hotset"], seconds[task]["onnxruntime"]
        ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
        yield title, unit, [np.percentile([convert(s) for s in values], [25, 50, 75]).tolist() for values in (ours, theirs)], ratio


def machine(threads):
    cpu = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as info:
            cpu = next((line.split(":")[1].strip() for line in info if line.startswith("model name")), cpu)
    root = pathlib.Path(__file__).resolve().parents[2]
    commit = subprocess.run(["git", "-C", root, "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    return {
        "cpu": cpu,
        "processors": os.cpu_count(),
        "threads": threads,
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "hotset": hotset.__version__,
        "commit": commit or "unknown",
        "level": hotset.doctor()["cpu"]["level"],
        "onnxruntime": onnxruntime.__version__,
        "onnxruntime-genai": onnxruntime_genai.__version__,
        "onnx": onnx.__version__,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="model folder; default: the demo model")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", metavar="FILE", help="write all figures, one list of seconds for each task and program")
    arguments = parser.parse_args()
    folder = model_folder(arguments.model)
    about = machine(arguments.threads)
    seconds = measure([program(folder, arguments.threads) for program in (Hotset, Onnxruntime)], arguments.rounds)
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    print(f"\n{'':<34}{'':<10}{'hotset':<28}{'onnxruntime(-genai)':<28}ratio")
    for title, unit, values, ratio in summary(seconds):
        cells = [f"{median:.4g} [{low:.4g} {high:.4g}]" for low, median, high in values]
        print(f"{title:<34}{unit:<10}{cells[0]:<28}{cells[1]:<28}{ratio:.2f}")
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps({"machine": about, "seconds": seconds}, indent=2) + "\n")


if __name__ == "__main__":
    main()
