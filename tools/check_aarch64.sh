#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds for 64-bit ARM and runs the native kernel checks under qemu: with every tier, under each ceiling of HOTSET_CPU, and on CPUs that
# lack dot products (cortex-a57) or matrix products (cortex-a76). Fails on a wrong result, a tier that did not take hold, or an
# instruction above the tier of its object.
# usage: tools/check_aarch64.sh [BUILD]     default build-aarch64
# Needs Debian's g++-aarch64-linux-gnu and qemu-user. CC_WRAPPER=ccache caches; JOBS=1 limits the compiler processes.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build-aarch64}
python=${PYTHON:-python3}
if [ -f "$build/build.ninja" ]; then
  "$python" -m mesonbuild.mesonmain setup --reconfigure "$build" >/dev/null
else
  CC="${CC_WRAPPER:-} aarch64-linux-gnu-gcc" CXX="${CC_WRAPPER:-} aarch64-linux-gnu-g++" "$python" -m mesonbuild.mesonmain setup "$build" \
    --cross-file tools/aarch64-linux-gnu.ini -Dtests=true -Dcuda=disabled -Dbuildtype=release
fi
checks=(attention elementwise float_gemm minifloat_gemm norm quant_gemm sm80_rows swiglu weight_formats weight_rows)
programs=(tests/cpu_avx-test_cpu_features tests/session-test_sampler "${checks[@]/#/tests/kernels-check_}")
ninja -C "$build" ${JOBS:+-j "$JOBS"} native/libhotset.so.1 "${programs[@]}"

run() { # CPU TIER PROGRAM ARGUMENTS...
  HOTSET_CPU=$2 qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu "$1" "$build/$3" "${@:4}"
}

for program in "${programs[@]}"; do
  run max "" "$program" >/dev/null || { echo "$program fails" >&2; exit 1; }
done

# The ceilings: which tiers a check found is its last line.
expect() { # CPU TIER LAST-TIER ABSENT
  local found
  found=$(run "$1" "$2" tests/kernels-check_quant_gemm 7 60 | tail -1)
  if [[ $found != *"$3]"* || (-n $4 && $found == *"$4]"*) ]]; then
    echo "-cpu $1, HOTSET_CPU='$2': expected $3 and no ${4:-more}: $found" >&2
    exit 1
  fi
}
expect max scalar "i8 scalar" "f32 neon"
expect max neon "i8 neon" "i8 neondot"
expect max neondot "i8 neondot" "i8 neoni8mm"
expect max neoni8mm "i8 neoni8mm" ""
expect cortex-a57 "" "i8 neon" "i8 neondot"
expect cortex-a76 "" "i8 neondot" "i8 neoni8mm"

# Instructions of a tier only in its own objects; no weak symbols anywhere.
holds() { # ARCHIVE PATTERN
  aarch64-linux-gnu-objdump -d --no-show-raw-insn "$build/native/cpu_avx/libkernels_$1.a" 2>/dev/null | grep -cE "$2" || true
}
dot='\b[su]dot[[:space:]]' matrix='\b(s|u|us)mmla[[:space:]]'
for isa in baseline neon; do [ "$(holds $isa "$dot|$matrix")" = 0 ] || { echo "libkernels_$isa.a holds sdot or smmla" >&2; exit 1; }; done
[ "$(holds neondot "$matrix")" = 0 ] || { echo "libkernels_neondot.a holds smmla" >&2; exit 1; }
[ "$(holds neondot "$dot")" != 0 ] && [ "$(holds neoni8mm "$matrix")" != 0 ] || { echo "a tier without its instructions" >&2; exit 1; }
for isa in neon neondot neoni8mm; do
  if aarch64-linux-gnu-nm "$build/native/cpu_avx/libkernels_$isa.a" | grep -E ' [WVwvu] '; then
    echo "libkernels_$isa.a holds weak symbols" >&2
    exit 1
  fi
done
echo "64-bit ARM: ok"
