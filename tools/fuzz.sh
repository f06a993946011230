#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Coverage-guided runs of the fuzz targets (tests/fuzz) with address and undefined behaviour checks, all targets at the same time.
# usage: tools/fuzz.sh SECONDS [TARGET...]    grows build-fuzz/corpus/TARGET from tests/fuzz/corpus/TARGET, fails on the first finding
#        tools/fuzz.sh minimise [TARGET...]  writes what covers the most in FILES files (90) back to tests/fuzz/corpus/TARGET
# Needs clang 14 or newer and a Python environment with meson, ninja and nlohmann-json. JOBS=1 limits the compiler processes.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-}
case $what in
  minimise | [1-9]*) shift ;;
  *) sed -n 's/^#  *\(usage: \)\{0,1\}\(tools\)/\2/p' "$0" >&2; exit 2 ;;
esac
targets=("$@")
[ $# -gt 0 ] || targets=($(cd tests/fuzz && ls fuzz_*.cpp | sed 's/fuzz_\(.*\).cpp/\1/'))
build=build-fuzz
python=${PYTHON:-python3}
if [ ! -f "$build/build.ninja" ]; then
  CC=${CC:-clang} CXX=${CXX:-clang++} "$python" -m mesonbuild.mesonmain setup "$build" -Dtests=true -Dlibfuzzer=true -Dcuda=disabled \
    -Dbuildtype=debugoptimized -Db_sanitize=address,undefined -Db_lundef=false
fi
"$python" -m mesonbuild.mesonmain compile -C "$build" ${JOBS:+-j "$JOBS"} "${targets[@]/#/fuzz-fuzz_}"

export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
running=()
for target in "${targets[@]}"; do
  grown=$build/corpus/$target kept=tests/fuzz/corpus/$target program=$build/tests/fuzz-fuzz_$target
  mkdir -p "$grown" "$kept"
  if [ "$what" = minimise ]; then
    rm -rf "$build/merged" "$build/control"
    mkdir "$build/merged"
    "$program" -merge=1 -use_counters=0 -timeout=600 -rss_limit_mb=4096 -merge_control_file="$build/control" "$build/merged" "$kept" \
      "$grown" >"$build/$target.merge.log" 2>&1
    "$python" tests/fuzz/pick_corpus.py "$build/control" "$kept" "${FILES:-90}"
    continue
  fi
  cp "$kept"/* "$grown"/ 2>/dev/null || true
  # -timeout is wall time and generous: a machine that does other work is no finding.
  "$program" -max_total_time="$what" -max_len=8192 -timeout=600 -rss_limit_mb=4096 -print_final_stats=1 \
    -artifact_prefix="$build/finding-$target-" "$grown" >"$build/$target.log" 2>&1 &
  running+=($!)
done
failed=0
for i in "${!running[@]}"; do
  wait "${running[$i]}" || failed=1
  echo "== ${targets[$i]}"
  tail -n 12 "$build/${targets[$i]}.log"
done
exit $failed
