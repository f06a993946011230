# SPDX-License-Identifier: Apache-2.0
"""Decoding experts from a cold file inside a host budget, and from mapped and huge pages.

    python tests/bench/bench_cold_file.py [--folder DIR] [--shape qwen3-30b-a3b] [--layers 6] [--part 8] [--steps 24] [--threads 2]
        [--json FILE]

Writes a model of QMoE layers (int4, blocks of 32, float32 scales) into the folder; its disk is what is measured. Three tables:

  cold    one row a step, random experts, a budget of 1/part of the experts, nothing of the file in the page cache. The bar is the
          time that the disk needs for the bytes that were missing, at its rate for sequential reads of the same sizes: measured
          in the same run before and after, one read at a time and as many as the session has readers; the better rate counts.
  pages   decoding when everything is in memory: the mapped file (4 KiB pages) and huge pages, interleaved.
  first   the first steps of a session with and without a profile of how often experts are chosen.
  start   from the creation of a session to its first step, with the file in the page cache and without.
"""

import argparse
import contextlib
import ctypes
import json
import mmap
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

import hotset

sys.path.insert(0, os.fspath(pathlib.Path(__file__).resolve().parents[1]))
from moe_files import make_layers, options  # noqa: E402

SHAPES = {"qwen3-30b-a3b": (2048, 768, 128, 8), "gpt-oss-20b": (2880, 2880, 32, 4), "mixtral-8x7b": (4096, 14336, 8, 2)}
REQUEST = 4 << 20  # the longest read of the session's readers
READERS = 4


def drop_cache(path):
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def request_sizes(layers):
    """Of one expert, in the order in which the readers ask: matrices and scales, in pieces of up to REQUEST."""
    n = layers.hidden * layers.inter
    sizes = []
    for whole in (n, n // 4, n // 2, n // 8):
        whole = -(-whole // 4096) * 4096
        while whole:
            sizes.append(min(whole, REQUEST))
            whole -= sizes[-1]
    return sizes


def read_rate(layers, depth, limit):
    """Bytes a second of reads in the order of the file, past the page cache, `depth` at a time."""
    sizes = request_sizes(layers)
    plan, at = [], 0
    while at + sum(sizes) <= min(limit, os.path.getsize(layers.data)):
        for size in sizes:
            plan.append((at, size))
            at += size
    drop_cache(layers.data)
    fd = os.open(layers.data, os.O_RDONLY | os.O_DIRECT)
    todo = iter(plan)
    lock = threading.Lock()

    def reader():
        buffer = mmap.mmap(-1, REQUEST + (4 << 20), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        view = memoryview(buffer)[-address % (2 << 20) :]
        with contextlib.suppress(AttributeError, OSError):
            buffer.madvise(mmap.MADV_HUGEPAGE)
        view[:REQUEST] = bytes(REQUEST)
        while True:
            with lock:
                offset, size = next(todo, (None, None))
            if size is None:
                return
            os.preadv(fd, [view[:size]], offset)

    threads = [threading.Thread(target=reader) for _ in range(depth)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    os.close(fd)
    return at / seconds


def steps_of(session, layers, rng, n):
    """Seconds of n steps of one row, and what was read for them."""
    feeds = [layers.feeds(rng, 1) for _ in range(n)]
    before = session.stats()["expert_store"]
    start = time.perf_counter()
    for feed in feeds:
        session.run(None, feed)
    seconds = time.perf_counter() - start
    after = session.stats()["expert_store"]
    return seconds, {key: after[key] - before[key] for key in ("hits", "misses", "bytes_read")}


def cold(layers, arguments):
    rates = {depth: [read_rate(layers, depth, 1 << 30)] for depth in (1, READERS)}
    rounds = []
    for io in ("read", "map") * 2:
        drop_cache(layers.data)
        chosen = options(arguments.threads, host_expert_bytes=layers.total_bytes // arguments.part, allow_file_backing=1, file_io=io)
        start = time.perf_counter()
        with hotset.InferenceSession(layers.path, chosen) as session:
            opened = time.perf_counter() - start
            rng = np.random.default_rng(3)
            steps_of(session, layers, rng, max(4, 2 * layers.experts // (layers.k * arguments.part)))  # all frames have been in use
            seconds, store = steps_of(session, layers, rng, arguments.steps)
        rounds.append({"file_io": io, "open_s": opened, "seconds": seconds, **store})
        for depth, seen in rates.items():
            seen.append(read_rate(layers, depth, 1 << 29))
    medians = {depth: statistics.median(seen) for depth, seen in rates.items()}
    best = max(medians.values())
    shown = ", ".join(f"{depth} at a time {rate / 1e9:.2f} GB/s" for depth, rate in medians.items())
    print(f"\ncold file, budget 1/{arguments.part}; sequential reads: {shown}")
    for row in rounds:
        row["ratio"] = row["seconds"] / (row["bytes_read"] / best)
        row["ratio_one_read"] = row["seconds"] / (row["bytes_read"] / medians[1])
        print(
            f"  {row['file_io']:5} {arguments.steps} steps {row['seconds']:.3f} s, {row['bytes_read'] / 1e6:.0f} MB missing of "
            f"{row['misses']} parts ({row['hits']} found), {row['bytes_read'] / row['seconds'] / 1e9:.2f} GB/s: "
            f"{row['ratio']:.2f} x the time of the disk; session opened in {row['open_s'] * 1e3:.1f} ms"
        )
    return {"read_rates": rates, "rounds": rounds}


def skewed_feeds(layers, rng):
    """One row whose routes follow 1 / rank, ranks of experts differing by layer: of 128 experts the first 32 get 75 %."""
    feeds = layers.feeds(rng, 1)
    for layer in range(layers.layers):
        ranks = np.random.default_rng(layer).permutation(layers.experts)
        feeds[f"r{layer}"] = (rng.gumbel(size=(1, layers.experts)) - np.log1p(ranks)).astype(np.float32)
    return feeds


def first_steps(layers, arguments):
    """The first steps of a session with a cold file: without a profile, with one, and with one once its experts have been read."""
    bound = {"host_expert_bytes": layers.total_bytes // 4, "allow_file_backing": 1}
    profile = layers.path.with_suffix(".profile")
    with hotset.InferenceSession(layers.path, options(arguments.threads)) as session:
        rng = np.random.default_rng(6)
        for _ in range(300):
            session.run(None, skewed_feeds(layers, rng))
        session.save_expert_profile(profile)
    rows = []
    for name in ("no profile", "profile", "profile, read") * 2:
        drop_cache(layers.data)
        feeds = [skewed_feeds(layers, np.random.default_rng(100 + i)) for i in range(arguments.steps)]
        more = {} if name == "no profile" else {"popularity_file": profile}
        begin = time.perf_counter()
        with hotset.InferenceSession(layers.path, options(arguments.threads, **bound, **more)) as session:
            opened = time.perf_counter() - begin
            before, resident = session.stats()["expert_store"], -1
            while name == "profile, read" and before["resident_bytes"] != resident:
                time.sleep(0.05)
                resident, before = before["resident_bytes"], session.stats()["expert_store"]
            filled = time.perf_counter() - begin
            begin = time.perf_counter()
            for feed in feeds:
                session.run(None, feed)
            seconds = time.perf_counter() - begin
            store = session.stats()["expert_store"]
        rows.append(
            {"start": name, "open_s": opened, "filled_s": filled, "seconds": seconds, "hits": store["hits"], "misses": store["misses"]}
        )
    print(f"\nfirst {arguments.steps} steps from a cold file, budget 1/4, routes by 1 / rank")
    for row in rows:
        share = row["hits"] / (row["hits"] + row["misses"])
        print(
            f"  {row['start']:14} session opened in {row['open_s'] * 1e3:.1f} ms, {row['seconds'] / arguments.steps * 1e3:.2f} ms a step, "
            f"{100 * share:.0f} % of parts found" + (f"; reading took {row['filled_s']:.2f} s" if row["start"].endswith("read") else "")
        )
    return rows


def pages(layers, arguments):
    sessions = {name: hotset.InferenceSession(layers.path, options(arguments.threads, host_pages=name)) for name in ("map", "huge")}
    while sessions["huge"].stats()["expert_store"]["resident_bytes"] < layers.total_bytes:
        time.sleep(0.05)
    time.sleep(0.5)
    rng = np.random.default_rng(4)
    layers.data.read_bytes()
    steps_of(sessions["map"], layers, rng, 40)
    seconds = {name: [] for name in sessions}
    for _ in range(arguments.rounds):
        for name, session in sessions.items():
            seconds[name].append(steps_of(session, layers, rng, 8)[0] / 8)
    step_bytes = layers.layers * layers.k * layers.expert_bytes
    print("\neverything in memory")
    for name, seen in seconds.items():
        print(f"  {name:5} {statistics.median(seen) * 1e3:.2f} ms a step, {step_bytes / statistics.median(seen) / 1e9:.1f} GB/s")
    return seconds


def start(layers, arguments):
    rows = []
    for where in ("in the page cache", "on the disk"):
        for name in ("map", "huge"):
            if where == "on the disk":
                drop_cache(layers.data)
            else:
                layers.data.read_bytes()
            feeds = [layers.feeds(np.random.default_rng(5 + i), 1) for i in range(20)]
            begin = time.perf_counter()
            with hotset.InferenceSession(layers.path, options(arguments.threads, host_pages=name)) as session:
                session.run(None, feeds[0])
                first = time.perf_counter() - begin
                for feed in feeds[1:]:
                    session.run(None, feed)
                rows.append({"file": where, "host_pages": name, "first_s": first, "steps20_s": time.perf_counter() - begin})
    print("\nstart")
    for row in rows:
        print(
            f"  {row['host_pages']:5} file {row['file']:18} first step after {row['first_s'] * 1e3:.0f} ms, "
            f"20 steps {row['steps20_s'] * 1e3:.0f} ms"
        )
    return rows


def commit():
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=pathlib.Path(__file__).parent)
    return done.stdout.strip()


def cpu_model():
    with open("/proc/cpuinfo") as file:
        return next((line.split(":")[1].strip() for line in file if line.startswith("model name")), platform.processor())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder")
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-30b-a3b")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--part", type=int, default=8)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        hidden, inter, experts, k = SHAPES[arguments.shape]
        layers = make_layers(folder, hidden, inter, experts, k, arguments.layers)
        print(
            f"{arguments.shape}: {layers.total_bytes / 1e9:.2f} GB in {arguments.layers} layers, "
            f"{layers.expert_bytes / 1e6:.2f} MB an expert"
        )
        report = {
            "machine": {
                "cpu": cpu_model(), "processors": os.cpu_count(), "load": os.getloadavg()[0], "commit": commit(),
                "hotset": hotset.__version__, "kernel": platform.release(),
            },
            "shape": arguments.shape, "layers": arguments.layers, "bytes": layers.total_bytes, "part": arguments.part,
            "threads": arguments.threads,
            "cold": cold(layers, arguments), "first": first_steps(layers, arguments),
            "pages": pages(layers, arguments), "start": start(layers, arguments),
        }  # fmt: skip
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
