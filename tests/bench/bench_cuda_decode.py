# SPDX-License-Identifier: Apache-2.0
"""A whole decoder on a GPU: loading, a prompt, decode steps with and without CUDA graphs.

usage: python tests/bench/bench_cuda_decode.py [FOLDER] [--shape qwen3-30b-a3b] [--layers N] [--prompt 4096] [--steps 200] [--json FILE]

FOLDER holds a model of tests/bench/random_model.py; without it one is written to a temporary folder, two distinct layers long. The
caches are buffers of the GPU that past and present share; logits of the last token come back to the host.
"""

import argparse
import json
import pathlib
import sys
import tempfile
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import hotset  # noqa: E402


def open_session(path, graph):
    options = hotset.SessionOptions()
    options.add_session_config_entry("hotset.device", "cuda:0")
    options.add_session_config_entry("hotset.cuda_graph", graph)
    options.log_severity_level = 3
    return hotset.InferenceSession(str(path), options)


class Loop:
    """Runs with shared past and present buffers of `rows` rows on the GPU."""

    def __init__(self, session, rows):
        self.session, self.binding = session, session.io_binding()
        self.mask = np.ones((1, rows), np.int64)
        for arg in session.get_inputs():
            if arg.name.startswith("past_key_values."):
                dtype = {"tensor(float)": np.float32, "tensor(float16)": np.float16}.get(arg.type, 16)  # 16: bfloat16
                value = hotset.OrtValue.ortvalue_from_shape_and_type([1, arg.shape[1], rows, arg.shape[3]], dtype, "cuda", 0)
                self.binding.bind_ortvalue_input(arg.name, value)
                self.binding.bind_ortvalue_output(arg.name.replace("past_key_values", "present"), value)
        self.binding.bind_output("logits")

    def step(self, ids, length):
        """Seconds of a run that makes `length` tokens known."""
        self.binding.bind_cpu_input("input_ids", ids)
        self.binding.bind_cpu_input("attention_mask", self.mask[:, :length])
        begin = time.perf_counter()
        self.session.run_with_iobinding(self.binding)
        return time.perf_counter() - begin


def measure(path, prompt, steps):
    result = {"model": str(path), "prompt": prompt}
    ids, token = np.random.default_rng(0).integers(0, 1000, (1, prompt)), np.array([[7]])
    for graph in ("1", "0"):
        begin = time.perf_counter()
        with open_session(path, graph) as session:
            load_s = time.perf_counter() - begin
            loop = Loop(session, prompt + steps + 8)
            prompt_s = min(loop.step(ids, prompt) for _ in range(3))
            before = session.stats()["device"]
            times = [loop.step(token, prompt + 1 + i) for i in range(steps)][steps // 10 :]
            counts = {key: value - before[key] for key, value in session.stats()["device"].items()}
            rows = [row for row in session.memory_plan() if row["where"] == "cuda:0"]
            held = sum(row["bytes"] for row in rows if "weights" in row["purpose"])
            result["with graphs" if graph == "1" else "without"] = {
                "load_s": load_s,
                "load_gb_s": held / load_s / 1e9,
                "weight_bytes": held,
                "device_bytes": sum(row["bytes"] for row in rows),
                "prompt_ms": prompt_s * 1e3,
                "step_ms": float(np.median(times)) * 1e3,
                "tokens_per_s": 1 / float(np.median(times)),
                "counts": counts,
                "on_cpu": [node["name"] for node in session.plan()["nodes"] if node.get("fallback")],
            }
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, nargs="?")
    parser.add_argument("--shape", default="qwen3-30b-a3b")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--prompt", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", type=pathlib.Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        path = given.folder and given.folder / "model.onnx"
        if path is None:
            import random_model

            context = given.prompt + given.steps + 8
            path = random_model.write(temporary, given.shape, layers=given.layers, distinct_layers=2, context=context)
        result = measure(path, given.prompt, given.steps)
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    for name in ("with graphs", "without"):
        row = result[name]
        print(
            f"{name:12s} load {row['load_s']:.2f} s ({row['load_gb_s']:.1f} GB/s)  prompt {row['prompt_ms']:.1f} ms  "
            f"step {row['step_ms']:.3f} ms  {row['tokens_per_s']:.0f} tokens/s  {row['counts']}"
        )


if __name__ == "__main__":
    main()
