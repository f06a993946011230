# SPDX-License-Identifier: Apache-2.0
"""The bound on host memory for experts, proven from outside: anonymous and file pages of the process, and the file's pages in the
page cache, sampled while it decodes; and a control group that is a third of the file."""

import ctypes
import json
import mmap
import os
import pathlib
import subprocess
import sys
import time

import pytest

import moe_files

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"), pytest.mark.sanitizer_unfit]

MIB = 1 << 20

RUN = """
import json, os, pathlib, sys, time
sys.path[:0] = json.loads(sys.argv[2])
wanted = json.loads(sys.argv[1])
import numpy as np
import hotset
from moe_files import Layers, options

layers = Layers(path=pathlib.Path(wanted["path"]), **wanted["shape"])
rng = np.random.default_rng(1)
feeds = [layers.feeds(rng, rows) for rows in (1, 64, 1)]
if wanted.get("group"):
    for tasks in wanted["group"]:
        open(tasks, "w").write(str(os.getpid()))
start = time.perf_counter()
session = hotset.InferenceSession(layers.path, options(**wanted["options"]))
loaded = time.perf_counter() - start
for i in range(2):
    session.run(None, feeds[i])
print(json.dumps({"ready": True}), flush=True)
sys.stdin.readline()
end = time.monotonic() + wanted["seconds"]
steps = 0
results = []
while time.monotonic() < end or steps < 3:
    rows = 64 if steps % 20 == 7 else 1
    y = session.run(None, layers.feeds(rng, rows))[0]
    results.append(float(np.abs(y).mean()))
    steps += 1
print(json.dumps({"loaded": loaded, "steps": steps, "store": session.stats()["expert_store"], "finite": bool(np.isfinite(results).all())}))
"""


@pytest.fixture(scope="module")
def layers(tmp_path_factory):
    """240 MiB: 4 layers of 32 experts, 4 a row."""
    return moe_files.make_layers(tmp_path_factory.mktemp("large"))


class PageCache:
    """Bytes of a file that the page cache holds, by mincore."""

    def __init__(self, path):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.mmap.restype = ctypes.c_void_p
        self.libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        self.libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
        self.bytes = os.path.getsize(path)
        with open(path, "rb") as file:
            self.address = self.libc.mmap(None, self.bytes, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
        self.pages = ctypes.create_string_buffer(-(-self.bytes // mmap.PAGESIZE))

    def resident(self):
        assert self.libc.mincore(self.address, self.bytes, self.pages) == 0
        return sum(self.pages.raw.translate(bytes(i & 1 for i in range(256)))) * mmap.PAGESIZE


def rollup(pid):
    fields = {}
    with open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            words = line.split()
            if len(words) == 3 and words[2] == "kB":
                fields[words[0].rstrip(":")] = int(words[1]) << 10
    return fields


def file_pages(pid, path):
    """Pages of the data file in the process's page tables."""
    total, inside = 0, False
    with open(f"/proc/{pid}/smaps") as file:
        for line in file:
            if line[0] in "0123456789abcdef" and "-" in line.split()[0]:
                inside = line.rstrip().endswith(os.fspath(path))
            elif inside and line.startswith("Rss:"):
                total += int(line.split()[1]) << 10
    return total


def start(layers, group=(), seconds=3.0, **options):
    shape = {key: getattr(layers, key) for key in ("hidden", "inter", "experts", "k", "layers")}
    wanted = {
        "path": os.fspath(layers.path),
        "shape": shape,
        "options": options,
        "seconds": seconds,
        "group": [os.fspath(g) for g in group],
    }
    paths = [os.path.dirname(moe_files.__file__)]
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, json.dumps(wanted), json.dumps(paths)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    ready = process.stdout.readline()
    assert ready, f"ended with {process.wait()}"
    return process


def finish(process):
    report = json.loads(process.stdout.readline())
    assert process.wait() == 0
    return report


@pytest.mark.parametrize("part", [3, 8])
@pytest.mark.parametrize("io", ["read", "map"])
def test_bound(layers, part, io):
    """What the process has beyond an idle one, in any kind of page, and what the page cache keeps of the file."""
    bound = layers.total_bytes // part
    cache = PageCache(layers.data)
    idle = start(layers, seconds=0, host_expert_bytes=0, allow_file_backing=1)
    base = rollup(idle.pid)
    idle.stdin.write("\n")
    idle.stdin.close()
    least = finish(idle)["store"]["bound_bytes"]

    process = start(layers, host_expert_bytes=bound, allow_file_backing=1, **({"file_io": "map"} if io == "map" else {}))
    process.stdin.write("\n")
    process.stdin.close()
    samples = []
    while process.poll() is None:
        try:
            now = rollup(process.pid)
            samples.append((now["Anonymous"] - base["Anonymous"] + least, file_pages(process.pid, layers.data), cache.resident()))
        except (OSError, KeyError):  # it has ended
            break
        time.sleep(0.02)
    report = finish(process)
    assert report["finite"] and report["steps"] >= 3 and len(samples) >= 10
    anonymous, mapped, cached = (max(column) for column in zip(*samples, strict=True))
    slack = 6 * MIB  # of the interpreter's own growth
    readers = 4 * layers.expert_bytes if io == "map" else 0
    print(f"bound {bound >> 20} MiB: anonymous {anonymous / MIB:.1f}, mapped {mapped / MIB:.1f}, page cache {cached / MIB:.1f} MiB")
    assert report["store"]["bound_bytes"] <= bound and report["store"]["evictions"] > 0
    if io == "read":
        assert anonymous <= bound + slack
        assert mapped <= MIB and cached <= MIB
    else:
        assert report["store"]["home"] == "paged"
        assert anonymous <= least + slack
        assert mapped <= bound + readers and cached <= bound + readers


def test_huge_pages_keep_one_copy(layers):
    """hotset.host_pages=huge: all experts in anonymous memory, none in the page cache."""
    with open("/sys/kernel/mm/transparent_hugepage/enabled") as file:
        if "[never]" in file.read():
            pytest.skip("this system gives no huge pages")
    layers.data.read_bytes()  # the page cache holds the file
    cache = PageCache(layers.data)
    assert cache.resident() >= layers.total_bytes
    process = start(layers, host_pages="huge")
    end = time.monotonic() + 60
    while cache.resident() > MIB and time.monotonic() < end:
        time.sleep(0.05)
    now = rollup(process.pid)
    process.stdin.write("\n")
    process.stdin.close()
    report = finish(process)
    assert report["store"]["resident_bytes"] >= layers.total_bytes and report["store"]["evictions"] == 0
    assert cache.resident() <= MIB
    assert now["Anonymous"] >= layers.total_bytes
    assert now["AnonHugePages"] >= 0.9 * layers.total_bytes


def swapped_out(vmstat):
    return next(line for line in vmstat.splitlines() if line.startswith("pswpout"))


# ---- control groups ----------------------------------------------------------------------------------------------------


def parents_of_groups(version):
    """Folders that a new group could be made in: the root of the hierarchy, and the group of this process and those above it."""
    mounts = [line.split() for line in pathlib.Path("/proc/self/mounts").read_text().splitlines()]
    kind = "cgroup2" if version == 2 else "cgroup"
    roots = [pathlib.Path(m[1]) for m in mounts if m[2] == kind and (version == 2 or "memory" in m[3].split(","))]
    own = [line.rstrip("\n").split(":", 2) for line in open("/proc/self/cgroup")]
    paths = [path for _, controllers, path in own if (controllers == "" if version == 2 else "memory" in controllers.split(","))]
    folders = []
    for root in roots:
        folders.append(root)
        for path in paths:
            inside = root / path.lstrip("/")
            folders += [folder for folder in (inside, *inside.parents) if folder.is_relative_to(root) and folder not in folders]
    return folders


def memory_group(version, limit):
    """A new group with a limit: its folder. Skips, with all reasons, where none can be made."""
    reasons = []
    for parent in parents_of_groups(version):
        folder = parent / f"hotset-test-{os.getpid()}"
        try:
            if version == 2:
                if "memory" not in (parent / "cgroup.controllers").read_text().split():
                    reasons.append(f"{parent} has no memory controller")
                    continue
                if "memory" not in (parent / "cgroup.subtree_control").read_text().split():
                    (parent / "cgroup.subtree_control").write_text("+memory")
            folder.mkdir()
            try:
                (folder / ("memory.max" if version == 2 else "memory.limit_in_bytes")).write_text(str(limit))
                if (folder / "memory.swap.max").exists():
                    (folder / "memory.swap.max").write_text("0")
            except OSError:
                folder.rmdir()
                raise
            return folder
        except OSError as error:
            reasons.append(str(error))
    pytest.skip(f"no control group of version {version} with a memory limit can be made: {'; '.join(reasons) or 'none is mounted'}")


def remove_group(folder):
    """A group is busy until the last process in it has been taken apart."""
    for _ in range(50):
        try:
            return folder.rmdir()
        except OSError:
            time.sleep(0.1)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("bounded", [False, True])
def test_file_three_times_the_group(layers, version, bounded):
    """Decoding inside a group whose limit is a third of the file; with host_expert_bytes, and with what is found to be available."""
    limit = layers.total_bytes // 3
    idle = start(layers, seconds=0, host_expert_bytes=0, allow_file_backing=1)
    needed = rollup(idle.pid)["Anonymous"]
    idle.stdin.write("\n")
    idle.stdin.close()
    least = finish(idle)["store"]["bound_bytes"]  # of `needed`: the smallest bound that works
    if needed > limit * 0.8:
        pytest.skip(f"the interpreter alone takes {needed >> 20} MiB")
    folder = memory_group(version, limit)
    swap = pathlib.Path("/proc/vmstat").read_text()
    try:
        options = {"host_expert_bytes": least + (limit - needed) // 2} if bounded else {}
        process = start(layers, group=[folder / "cgroup.procs"], seconds=2.0, allow_file_backing=1, **options)
        process.stdin.write("\n")
        process.stdin.close()
        report = finish(process)
    finally:
        remove_group(folder)
    assert report["finite"] and report["store"]["evictions"] > 0 and report["store"]["bound_bytes"] < limit
    assert report["loaded"] < 5
    assert swapped_out(swap) == swapped_out(pathlib.Path("/proc/vmstat").read_text())


OPEN = """
import json, os, sys
wanted = json.loads(sys.argv[1])
sys.path[:0] = wanted["paths"]
import hotset
from moe_files import options

open(wanted["group"], "w").write(str(os.getpid()))
for entries in wanted["options"]:
    lines = []
    chosen = options(**entries)
    chosen.log_severity_level = 2
    chosen.set_log(lambda level, text: lines.append(text))
    try:
        with hotset.InferenceSession(wanted["model"], chosen) as session:
            print(json.dumps([session.plan()["expert_store"]["home"], lines]), flush=True)
    except hotset.BudgetTooSmall as error:
        print(json.dumps(["refused", [str(error)]]), flush=True)
"""


@pytest.mark.parametrize("version", [1, 2])
def test_auto_in_a_small_group(layers, version):
    """host_expert_bytes=auto where memory is short: refused when it was asked for, mapped with a warning when nothing was."""
    folder = memory_group(version, layers.total_bytes // 2)
    wanted = {
        "paths": [os.path.dirname(moe_files.__file__)], "group": os.fspath(folder / "cgroup.procs"), "model": os.fspath(layers.path),
        "options": [{}, {"host_expert_bytes": "auto"}, {"allow_file_backing": 0}, {"host_expert_bytes": "auto", "allow_file_backing": 1}],
    }  # fmt: skip
    try:
        done = subprocess.run([sys.executable, "-c", OPEN, json.dumps(wanted)], stdout=subprocess.PIPE, text=True, check=True)
    finally:
        remove_group(folder)
    seen = [json.loads(line) for line in done.stdout.splitlines()]
    assert [home for home, _ in seen] == ["mapped", "refused", "refused", "cached"]
    assert len(seen[0][1]) == 1 and "allow_file_backing=1 keeps those in memory" in seen[0][1][0]
    for _, (text,) in seen[1:3]:
        assert "OFFLOAD_HOST_MEMORY" in text and "auto and" in text and str(layers.total_bytes) in text and "\n" not in text
