# SPDX-License-Identifier: Apache-2.0
"""Decode speed beside a busy process that is pinned to one of the processors, next to the same run alone.

    pip install '.[cli,bench]' && python tests/bench/bench_neighbour.py [--threads 2] [--rounds 7] [--json FILE]

The neighbour takes half of one processor, so a program of t threads on t processors can keep (t - 0.5) / t of its speed. A
program whose threads wait for one another without care keeps far less: each step waits for a thread that the system has put aside.
Rounds of programs, alone and beside the neighbour, are interleaved; the table shows medians over the rounds and, in brackets, the
quartiles. `cpu` is processor time per token, `kept` the median of the rounds' own ratios of speed. On a machine that is busy with
other things "alone" is not alone: look at the load in the first line.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import numpy as np
from bench_generate import GOLDEN, PAUSE_S, Hotset, Onnxruntime, machine

from hotset.generator import model_folder

TOKENS = 128
SPIN = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); print('ready', flush=True)\nwhile True: pass"


@contextlib.contextmanager
def neighbour(processor):
    """A process that never rests, pinned to `processor`."""
    process = subprocess.Popen([sys.executable, "-c", SPIN, str(processor)], stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.wait()


def measure(programs, processor, rounds):
    """{program: {"alone" | "beside": [(seconds, processor seconds) a token, ...]}}"""
    ids = np.load(GOLDEN / "heldout_scripture.npy").astype(np.int64)[:32]
    results = {program.name: {"alone": [], "beside": []} for program in programs}
    for turn in range(rounds + 1):
        for kind in ("alone", "beside") if turn % 2 else ("beside", "alone"):
            with neighbour(processor) if kind == "beside" else contextlib.nullcontext():
                for program in programs if turn % 2 else reversed(programs):
                    time.sleep(PAUSE_S)
                    used = time.process_time()
                    seconds = program.decode(ids, TOKENS)
                    if turn:  # the first round only warms up
                        results[program.name][kind].append((seconds, (time.process_time() - used) / TOKENS))
    return results


def quartiles(values):
    low, median, high = np.percentile(values, [25, 50, 75])
    return f"{median:.4g} [{low:.4g} {high:.4g}]"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo", help="model folder; default: the demo model")
    parser.add_argument("--threads", type=int, default=2, help="threads and processors used")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", metavar="FILE", help="write all figures")
    arguments = parser.parse_args()
    processors = sorted(os.sched_getaffinity(0))[: arguments.threads]
    os.sched_setaffinity(0, processors)
    about = machine(arguments.threads)
    folder = model_folder(arguments.model)
    results = measure([program(folder, arguments.threads) for program in (Hotset, Onnxruntime)], processors[-1], arguments.rounds)
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    n = len(processors)
    print(f"{arguments.threads} threads on {n} processors, a neighbour on one: {(n - 0.5) / n:.0%} could be kept\n")
    print(f"{'':<14}{'alone us/token':<26}{'beside us/token':<26}{'cpu alone':<11}{'cpu beside':<12}kept")
    for name, kinds in results.items():
        alone, beside = (np.array(kinds[kind]) * 1e6 for kind in ("alone", "beside"))
        kept = statistics.median(alone[:, 0] / beside[:, 0])
        cells = f"{quartiles(alone[:, 0]):<26}{quartiles(beside[:, 0]):<26}"
        print(f"{name:<14}{cells}{np.median(alone[:, 1]):<11.4g}{np.median(beside[:, 1]):<12.4g}{kept:.0%}")
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps({"machine": about, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
