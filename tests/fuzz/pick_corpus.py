# SPDX-License-Identifier: Apache-2.0
"""Picks the files that together cover the most, at most a given number, from what libFuzzer's merge recorded.

usage: pick_corpus.py CONTROL_FILE FOLDER N_FILES    (-merge_control_file of a merge; FOLDER is replaced)

Merging alone keeps every file with an edge of its own: more files than a repository should hold.
"""

import pathlib
import shutil
import sys

MAX_BYTES = 30_000  # of a file


def read_control(path: pathlib.Path) -> dict[pathlib.Path, set[tuple[str, str]]]:
    """What each input reaches. The file: number of inputs, number in the first folder, their names, then lines 'FT|COV index id...'."""
    lines = path.read_text().split("\n")
    names = [pathlib.Path(name) for name in lines[2 : 2 + int(lines[0])]]
    reached = {}
    for line in lines[2 + len(names) :]:
        kind, *fields = line.split() or [""]
        if kind in ("FT", "COV"):
            reached.setdefault(names[int(fields[0])], set()).update((kind, f) for f in fields[1:])
    return reached


def pick(reached: dict[pathlib.Path, set], n_files: int) -> list[pathlib.Path]:
    """The input that adds the most each time, the smaller of two that add as much."""
    left = {path: what for path, what in reached.items() if path.stat().st_size <= MAX_BYTES}
    chosen, covered = [], set()
    while left and len(chosen) < n_files:
        best = max(left, key=lambda path: (len(left[path] - covered), -path.stat().st_size))
        if left[best] <= covered:
            break
        covered |= left.pop(best)
        chosen.append(best)
    return chosen


def main():
    control, folder, n_files = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
    reached = read_control(control)
    chosen = pick(reached, n_files)
    copies = {path.name[:16] if len(path.name) == 40 else path.name: path.read_bytes() for path in chosen}
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, data in copies.items():
        (folder / name).write_bytes(data)
    every, kept = set().union(*reached.values()), set().union(*(reached[path] for path in chosen))
    print(f"{len(copies)} of {len(reached)} files, {sum(map(len, copies.values()))} bytes, {len(kept)} of {len(every)} features")


main()
