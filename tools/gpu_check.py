# SPDX-License-Identifier: Apache-2.0
"""What tools/gpu_check.sh does once hotset is installed: runs everything that concerns a GPU, prints a table, writes gpu_check.json.

usage: gpu_check.py PROGRAMS OUT PARTS
  PROGRAMS  folder with cuda-check_* programs; PARTS  of checks, pytest, sanitizer, bench
"""

import json
import pathlib
import platform
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[1]
SKIPPED, TIME_LIMIT = 77, 124
SECONDS = {"checks": 300, "sanitizer": 240, "bench": 300, "pytest": 1200}
# Few and small cases for the checkers, which slow kernels down a hundred times: seed and number of cases, or a part of the checks.
SMALL = {"check_moe": ["3", "--only", "zeros"], "check_upload": ["3"], "check_moe_wgmma": ["3"]}
SMALL_DEFAULT = ["3", "10"]
TOOLS = {"memcheck": ["--tool", "memcheck"], "racecheck": ["--tool", "racecheck"]}


class Steps:
    """Runs commands one after the other and keeps what came out."""

    def __init__(self, out: pathlib.Path):
        self.out, self.rows = out, []

    def run(self, part: str, name: str, command: list) -> dict:
        begin = time.monotonic()
        log = self.out / f"{part}_{name}.txt".replace(" ", "_")
        with open(log, "w") as file:
            try:
                done = subprocess.run([str(c) for c in command], stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, timeout=SECONDS[part])
                status = done.returncode
            except subprocess.TimeoutExpired:
                status = TIME_LIMIT
        lines = log.read_text(errors="replace").strip().splitlines()
        row = {
            "part": part,
            "name": name,
            "status": status,
            "seconds": round(time.monotonic() - begin, 1),
            "last": lines[-1] if lines else "",
        }
        self.rows.append(row)
        print(f"{part:<9}  {name:<32}  {outcome(status):<7}  {row['seconds']:7.1f} s  {row['last'][:100]}", flush=True)
        return row


def outcome(status: int) -> str:
    return {0: "ok", SKIPPED: "skipped", TIME_LIMIT: "time"}.get(status, f"FAIL {status}")


def machine() -> dict:
    import hotset

    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm", "--format=csv,noheader"]
    smi = subprocess.run(query, capture_output=True, text=True).stdout.strip() if shutil.which("nvidia-smi") else ""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
    return {
        "hotset": hotset.__version__,
        "commit": commit,
        "host": platform.platform(),
        "nvidia_smi": smi,
        "doctor": hotset.doctor()["cuda"],
    }


def pytest_counts(path: pathlib.Path) -> dict:
    suite = ElementTree.parse(path).getroot().find("testsuite") if path.exists() else None
    return {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")} if suite is not None else {}


def main() -> int:
    programs, out, parts = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3].split(",")
    report = machine()
    print(json.dumps(report["doctor"], indent=2))
    if not report["doctor"]["devices"]:
        print(f"nothing to check: {report['doctor']['note']}")
        return SKIPPED
    checks = sorted(programs.glob("cuda-check_*"))
    if not checks and parts != ["pytest"]:
        print(f"no cuda-check_* in {programs}: build with -Dtests=true, or give --programs")
        return 2
    names = {program: program.name.removeprefix("cuda-") for program in checks}
    steps = Steps(out)
    if "checks" in parts:
        for program in [*checks, *programs.glob("cuda-test_self_test")]:
            steps.run("checks", program.name.removeprefix("cuda-"), [program])
    if "pytest" in parts:
        xml = out / "pytest.xml"
        # No build of native tests: the programs have been run.
        steps.run(
            "pytest", "gpu", [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "--junitxml", xml, "tests"]
        )
        report["pytest"] = pytest_counts(xml)
    sanitizer = shutil.which("compute-sanitizer")
    if "sanitizer" in parts and sanitizer:
        for tool, arguments in TOOLS.items():
            for program in checks:
                small = SMALL.get(names[program], SMALL_DEFAULT)
                steps.run("sanitizer", f"{tool} {names[program]}", [sanitizer, *arguments, "--error-exitcode", "9", program, *small])
    if "bench" in parts:
        for program in checks:
            row = steps.run("bench", names[program], [program, "--bench"])
            row["lines"] = (out / f"bench_{names[program]}.txt").read_text(errors="replace").splitlines()
    report["steps"] = steps.rows
    (out / "gpu_check.json").write_text(json.dumps(report, indent=2) + "\n")
    failed = [row for row in steps.rows if row["status"] not in (0, SKIPPED)]
    print(
        f"\n{len(steps.rows)} steps, {len(failed)} not right"
        + "".join(f"\n  {r['part']} {r['name']}: {outcome(r['status'])}" for r in failed)
    )
    return 1 if failed else 0


sys.exit(main())
