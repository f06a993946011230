#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Check a wheel on a machine with an NVIDIA GPU: install it in a fresh venv, say what the machine is, run the GPU tests.
#
# usage: tools/gpu_check.sh WHEEL [WHEELHOUSE]
#   WHEELHOUSE  folder of wheels to install dependencies from, for a machine without network
#   OUT         folder for gpu_check.json (machine, result) and gpu_tests.xml; default: gpu-check
set -euo pipefail
wheel=$(realpath "$1")
wheelhouse=${2:+$(realpath "$2")}
out=$(mkdir -p "${OUT:-gpu-check}" && realpath "${OUT:-gpu-check}")
cd "$(dirname "$0")/.."

venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
python3 -m venv --system-site-packages "$venv"  # what the machine has need not be carried
. "$venv/bin/activate"
# shellcheck disable=SC2086
pip install -q ${wheelhouse:+--no-index --find-links "$wheelhouse"} "$wheel" hypothesis pytest pytest-timeout

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv 2>/dev/null || echo "no nvidia-smi"
python -m hotset doctor

status=0
python -m pytest -m gpu --junitxml "$out/gpu_tests.xml" || status=$?
GPU_TESTS_STATUS=$status python - "$out" <<'PYTHON'
import json, os, pathlib, platform, sys
import xml.etree.ElementTree as ET
from hotset._native import ffi, lib, take_json

out = pathlib.Path(sys.argv[1])
text = ffi.new("char **")
doctor = take_json(text) if lib.hotset_doctor(text) == 0 else None
suite = ET.parse(out / "gpu_tests.xml").getroot().find("testsuite")
report = {
    "hotset": ffi.string(lib.hotset_version()).decode(),
    "host": platform.platform(),
    "note": ffi.string(lib.hotset_device_note()).decode(),
    "doctor": doctor,
    "pytest_status": int(os.environ["GPU_TESTS_STATUS"]),
    "tests": {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")},
}
(out / "gpu_check.json").write_text(json.dumps(report, indent=2) + "\n")
print(report["note"], report["tests"])
PYTHON
exit "$status"
