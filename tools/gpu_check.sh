#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Check and measure hotset on a machine with an NVIDIA GPU; nothing but the driver is needed there.
#
# usage: tools/gpu_check.sh [--wheel FILE] [--wheelhouse FOLDER] [--programs FOLDER] [--only PARTS]
#   --wheel       is installed into a fresh virtual environment; without it the hotset that Python finds (PYTHONPATH) is checked
#   --wheelhouse  wheels of what is missing there (cffi, pytest, ...), for a machine without network
#   --programs    folder with the cuda-check_* programs of a build with -Dtests=true (default: build/tests)
#   --only        comma-separated of checks,pytest,sanitizer,bench (default: all)
#   OUT           folder for gpu_check.json and the output of every step; default: gpu-check
# The last lines are a table; the status is 0 when nothing has failed.
set -euo pipefail
wheel= wheelhouse= programs= only=checks,pytest,sanitizer,bench
while [ $# -gt 0 ]; do
  case $1 in
    --wheel) wheel=$(realpath "$2") ;;
    --wheelhouse) wheelhouse=$(realpath "$2") ;;
    --programs) programs=$(realpath "$2") ;;
    --only) only=$2 ;;
    *) sed -n '/^# usage/,/^set/p' "$0" | sed '$d' >&2; exit 2 ;;
  esac
  shift 2
done
out=$(mkdir -p "${OUT:-gpu-check}" && realpath "${OUT:-gpu-check}")
cd "$(dirname "$0")/.."
programs=${programs:-$PWD/build/tests}

python=python3
if [ -n "$wheel" ]; then
  venv=$(mktemp -d)
  trap 'rm -rf "$venv"' EXIT
  if python3 -m venv "$venv" 2>/dev/null; then
    outer=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    python=$venv/bin/python
    # What the machine has need not be carried.
    echo "$outer" >"$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/outer.pth"
    "$python" -m pip install -q ${wheelhouse:+--no-index --find-links "$wheelhouse"} "$wheel" hypothesis onnx pytest pytest-timeout
  else  # a machine without pip: wheels are folders in an archive
    for file in "$wheel" ${wheelhouse:+"$wheelhouse"/*.whl}; do python3 -m zipfile -e "$file" "$venv"; done
    export PYTHONPATH=$venv${PYTHONPATH:+:$PYTHONPATH}
  fi
fi
"$python" tools/gpu_check.py "$programs" "$out" "$only"
