# SPDX-License-Identifier: Apache-2.0
"""Fail when an #include points the wrong way between the rooms of native/: the architecture, executable.

usage: check_includes.py [ROOT]

Rooms know the rooms below them. Within a row only the pairs in SIDEWAYS are allowed. Files of cpu_avx for one instruction set
include C headers only: an inline function of the standard library compiled for AVX-512 could become everybody's copy.
"""

import pathlib
import re
import sys

ROWS = [["base"], ["formats"], ["cpu_avx", "cuda"], ["model", "experts", "ops"], ["session"], ["api", "ort"]]
RANK = {room: rank for rank, row in enumerate(ROWS) for room in row}
SIDEWAYS = {("ops", "model"), ("ops", "experts"), ("experts", "model")}  # (who, whom)
ISA_FILE = re.compile(r"_(avx2|avx2vnni|avx512|avx512vnni|avx512bf16|amx|neon|neondot|neoni8mm)\.cpp$")
C_HEADERS = {"cstdint", "cstddef", "cstring"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.M)


def problems(root: pathlib.Path):
    for file in sorted((root / "native").rglob("*")):
        if file.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
            continue
        path = file.relative_to(root).as_posix()
        room = path.split("/")[1]
        if room not in RANK:
            yield f"{path}: native/{room} is no room; rooms: {' '.join(RANK)}"
            continue
        for kind, target in INCLUDE.findall(file.read_text(encoding="utf-8")):
            other = target.split("/")[0] if "/" in target else room
            if kind == "<":
                if ISA_FILE.search(path) and not target.endswith(".h") and target not in C_HEADERS:
                    yield f"{path}: <{target}> in a file for one instruction set, which may include C headers only"
                if target.startswith("cuda") and file.suffix in {".h", ".cpp"}:
                    yield f"{path}: <{target}>: host code declares what it needs of CUDA in native/cuda/driver.h"
            elif other == "..":
                yield f'{path}: "{target}": write it from native/, as "room/file.h"'
            elif other == "hotset" or other == room:
                continue
            elif other not in RANK:
                yield f'{path}: "{target}" is in no room'
            elif RANK[other] > RANK[room] or (RANK[other] == RANK[room] and (room, other) not in SIDEWAYS):
                yield f'{path}: "{target}": {room} must not know {other}'


def main() -> None:
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[1]
    found = list(problems(root))
    if found:
        sys.exit("\n".join(found))


main()
