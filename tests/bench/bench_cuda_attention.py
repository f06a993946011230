# SPDX-License-Identifier: Apache-2.0
"""Attention of this library beside torch's scaled_dot_product_attention, on one GPU in one run.

    python tests/bench/bench_cuda_attention.py build/tests/cuda-check_attention [--only TEXT]

The program prints one line a shape; torch (which must be there) computes the same shape, and the ratio of rates is printed.
"""

import re
import subprocess
import sys

import torch
import torch.nn.functional as F

LINE = re.compile(
    r"(?P<kind>prefill|decode) +(?P<type>\w+) +(?P<n>\d+)/(?P<kv>\d+)/(?P<d>\d+) (?:rows|context) +"
    r"(?P<length>\d+): +(?P<us>[\d.]+) us"
)
TYPES = {"float": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def microseconds(call, repeats: int = 20) -> float:
    """Median time of one call."""
    for _ in range(3):
        call(0)
    times = []
    for i in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call(i)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return sorted(times)[len(times) // 2]


def peer(kind: str, dtype: torch.dtype, n: int, kv: int, d: int, length: int) -> float:
    """Torch on the same shape; copies of the cache change from call to call, so that none stays in the L2 cache."""
    rows = length if kind == "prefill" else 1
    copies = 1 if kind == "prefill" else 8
    q = torch.randn(1, n, rows, d, device="cuda", dtype=dtype)
    caches = [torch.randn(2, 1, kv, length, d, device="cuda", dtype=dtype) for _ in range(copies)]

    def call(i: int) -> torch.Tensor:
        k, v = caches[i % copies]
        return F.scaled_dot_product_attention(q, k, v, is_causal=kind == "prefill", enable_gqa=True)

    return microseconds(call, 10 if kind == "prefill" else 24)


def main() -> None:
    output = subprocess.run([sys.argv[1], "--bench", *sys.argv[2:]], capture_output=True, text=True, check=True).stdout
    for line in output.splitlines():
        print(line, end="")
        if found := LINE.match(line):
            shape = [int(found[key]) for key in ("n", "kv", "d", "length")]
            theirs = peer(found["kind"], TYPES[found["type"]], *shape)
            print(f"   torch {theirs:.1f} us, we are {theirs / float(found['us']):.2f} times as fast", end="")
        print()


if __name__ == "__main__":
    main()
