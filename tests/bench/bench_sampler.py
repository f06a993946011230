# SPDX-License-Identifier: Apache-2.0
"""Microseconds to choose a token from random normal logits, through the C interface and from Python.

    pip install . && python tests/bench/bench_sampler.py [--vocabulary 200000] [--rounds 300]

The rows are sampled in turn, so they come from the outer caches. Lower quartile and median of the rounds; the programs of all
settings run one after another, several times. The bar is 200 us for a vocabulary of 200,000.
"""

import argparse
import pathlib
import statistics
import subprocess
import tempfile
import time

import numpy as np

from hotset._errors import check
from hotset._native import ffi, lib, library_path, own
from hotset.tensor import fill

ROOT = pathlib.Path(__file__).resolve().parents[2]
SETTINGS = {  # do_sample, top_k, top_p, repetition_penalty
    "greedy": (0, 0, 1.0, 1.0),
    "penalty, greedy": (0, 0, 1.0, 1.1),
    "plain": (1, 0, 1.0, 1.0),
    "top_k 50": (1, 50, 1.0, 1.0),
    "top_k 50, top_p 0.9": (1, 50, 0.9, 1.0),
    "top_p 0.95": (1, 0, 0.95, 1.0),
    "top_p 0.5": (1, 0, 0.5, 1.0),
    "top_p 0.1": (1, 0, 0.1, 1.0),
    "top_p 0.9, penalty": (1, 0, 0.9, 1.1),
}
DEVIATIONS = (1.0, 4.0)  # flat, and about as peaked as a model's


def time_python(arguments, deviation, setting):
    do_sample, top_k, top_p, penalty = setting
    config = ffi.new("hotset_sampler_config *", [0, do_sample, top_k, top_p, 0.8, penalty, 1])
    config.struct_size = ffi.sizeof("hotset_sampler_config")
    out, token = ffi.new("hotset_sampler **"), ffi.new("int64_t *")
    check(lib.hotset_sampler_create(out, config))
    sampler = own(out[0], lib.hotset_sampler_free)
    check(lib.hotset_sampler_accept(sampler, [i * 37 % arguments.vocabulary for i in range(1000)], 1000))
    logits = (np.random.default_rng(1).standard_normal((4, arguments.vocabulary)) * deviation).astype(np.float32)
    rows = [ffi.new("hotset_tensor *") for _ in logits]
    kept = [fill(tensor, row, "logits") for tensor, row in zip(rows, logits, strict=True)]
    times = []
    for i in range(arguments.rounds):
        begin = time.perf_counter()
        check(lib.hotset_sampler_next(sampler, rows[i % len(rows)], token))
        times.append((time.perf_counter() - begin) * 1e6)
    del kept
    return statistics.quantiles(times, n=4)[:2]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vocabulary", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=300)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "bench_sampler"
        source = ROOT / "tests/bench/bench_sampler.c"
        library = pathlib.Path(library_path).resolve()
        command = ["cc", "-O2", "-std=c11", f"-I{ROOT / 'include'}", source, library, f"-Wl,-rpath,{library.parent}", "-lm", "-o", program]
        subprocess.run(command, check=True)
        print(f"{'us a token':<22} {'deviation':>9}  {'C':>15}  {'Python':>15}")
        for deviation in DEVIATIONS:
            for name, setting in SETTINGS.items():
                runs = []
                for _ in range(3):
                    values = map(str, (program, arguments.vocabulary, arguments.rounds, deviation, *setting))
                    done = subprocess.run(list(values), check=True, capture_output=True, text=True)
                    runs.append([float(value) for value in done.stdout.split()])
                c, python = min(runs), time_python(arguments, deviation, setting)
                print(f"{name:<22} {deviation:>9}  {c[0]:7.1f} {c[1]:7.1f}  {python[0]:7.1f} {python[1]:7.1f}")


if __name__ == "__main__":
    main()
