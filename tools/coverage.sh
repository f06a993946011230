#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Which lines of native/ the tests reach: native programs, then pytest, then the table. Fails below 85 % of the lines.
# usage: tools/coverage.sh [pytest arguments]
# Needs gcc, `pip install '.[test]' gcovr`. JOBS=1 limits the compiler processes. HTML=FOLDER writes annotated sources too.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build-coverage
python=${PYTHON:-python3}
if [ -f "$build/build.ninja" ]; then
  "$python" -m mesonbuild.mesonmain setup --reconfigure "$build" >/dev/null
else
  "$python" -m mesonbuild.mesonmain setup "$build" -Dtests=true -Dcuda=enabled -Dkernels=empty -Doptimization=1 -Ddebug=true -Db_ndebug=true -Db_coverage=true
fi
"$python" -m mesonbuild.mesonmain compile -C "$build" ${JOBS:+-j "$JOBS"}
find "$build" -name '*.gcda' -delete
"$python" -m mesonbuild.mesonmain test -C "$build" --no-rebuild --print-errorlogs --num-processes "${JOBS:-2}" --timeout-multiplier 30

"$python" tools/gen_cdef.py include/hotset/hotset.h python/hotset/_cdef.h
export PYTHONPATH=$PWD/python HOTSET_LIBRARY=$PWD/$build/native/libhotset.so.1 HOTSET_TEST_BUILD=$PWD/$build
"$python" -m pytest -p no:cacheprovider --ignore tests/test_native.py --ignore tests/test_package.py \
  --ignore tests/python/test_hosts.py --deselect tests/python/test_cli.py::test_config \
  --deselect tests/api/test_symbols.py::test_isa_objects_hold_no_weak_symbols "$@"  # those look at an installed, optimised library

html=()
if [ -n "${HTML:-}" ]; then
  mkdir -p "$HTML"
  html=(--html-details "$HTML/index.html")
fi
# A line of a template counts once, reached if any instance is. Counters of threads that ran into each other are taken as they are.
"$python" -m gcovr --root . --object-directory "$build" --filter native/ --merge-mode-functions=merge-use-line-min --merge-lines \
  --exclude-throw-branches --gcov-ignore-parse-errors=all \
  --sort uncovered-percent --txt - --txt-summary --fail-under-line 85 "${html[@]}" "$build"
