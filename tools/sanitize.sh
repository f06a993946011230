#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The whole test suite under sanitizers: native programs first, then pytest with the sanitized library. Any finding fails it.
# usage: tools/sanitize.sh asan|tsan [pytest arguments]     asan: addresses, leaks (native programs) and undefined behaviour
# Needs gcc, and a Python environment with what `pip install '.[test]'` brings. JOBS=1 limits the compiler processes; `-n 2` among the
# pytest arguments takes two processes. On a machine that does other work a run takes hours; the time limits are long for that.
set -euo pipefail
cd "$(dirname "$0")/.."
kind=${1:-}
case $kind in
  asan) sanitizers=address,undefined ;;
  tsan) sanitizers=thread ;;
  *) sed -n 's/^# usage: //p' "$0" >&2; exit 2 ;;
esac
shift
build=build-$kind
options=(-Dtests=true -Dcuda=enabled -Dkernels=empty -Dbuildtype=debugoptimized "-Db_sanitize=$sanitizers" -Db_lundef=false)

# Kernels take no part in detect_stack_use_after_return (native/cpu_avx/meson.build): with it gcc 12 crashes in correct code. It gives
# a variable the alignment it happens to have on the real stack, then moves it to a frame of another phase. Seen in load_block of
# attention_avx512.cpp: "leaq 224(%rsp), %rbx" (32 modulo 64) or "call __asan_stack_malloc_4" (0 modulo 64) gives the frame, and
# "vmovdqa64 %zmm0, -576(%rax)" clears `unsigned char copy[64]` 32 bytes into it. The same in ten lines, where clang 14 is right:
#   // g++ -O1 -mavx512f -fsanitize=address f.cpp && ASAN_OPTIONS=detect_stack_use_after_return=1 ./a.out
#   struct S { float v[16] __attribute__((aligned(64))); };
#   __attribute__((noinline)) S make() { return {}; }
#   __attribute__((noinline)) void use(void* p) { asm volatile("" : : "r"(p) : "memory"); }
#   __attribute__((noinline)) void take(S s) { use(s.v); }
#   void f() { char a[64] = {}, b[64] = {}; use(b); use(a); take(make()); }
#   int main() { f(); }
export ASAN_OPTIONS=allocator_may_return_null=1:detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export TSAN_OPTIONS=exitcode=66:allocator_may_return_null=1
python=${PYTHON:-python3}
if [ -f "$build/build.ninja" ]; then
  "$python" -m mesonbuild.mesonmain setup --reconfigure "$build" >/dev/null
else
  "$python" -m mesonbuild.mesonmain setup "$build" "${options[@]}"
fi
"$python" -m mesonbuild.mesonmain compile -C "$build" ${JOBS:+-j "$JOBS"}
fixed=()  # gcc 12's libtsan knows the address layouts of older kernels only
[ "$kind" = asan ] || ! command -v setarch >/dev/null || fixed=(setarch "$(uname -m)" -R)
"${fixed[@]}" "$python" -m mesonbuild.mesonmain test -C "$build" --no-rebuild --print-errorlogs --num-processes "${JOBS:-2}" \
  --timeout-multiplier 30

"$python" tools/gen_cdef.py include/hotset/hotset.h python/hotset/_cdef.h
runtime=$(gcc -print-file-name="lib$kind.so")
if [ "$kind" = asan ]; then
  runtime="$runtime $(gcc -print-file-name=libubsan.so) $(g++ -print-file-name=libstdc++.so)"
  ASAN_OPTIONS+=:detect_leaks=0  # the interpreter keeps what it has
fi
# Races of the interpreter's other libraries (the oracle, OpenBLAS) are not ours: reports are kept and searched.
rm -f "$build"/tsan-report.*
[ "$kind" = asan ] || TSAN_OPTIONS="exitcode=0:allocator_may_return_null=1:log_path=$PWD/$build/tsan-report"
# Left out: the native programs (done above), and what asks for an installed package, speed or flat memory.
export PYTHONPATH=$PWD/python HOTSET_LIBRARY=$PWD/$build/native/libhotset.so.1 HOTSET_TEST_BUILD=$PWD/$build HOTSET_SANITIZED=$kind
"${fixed[@]}" env LD_PRELOAD="$runtime" "$python" -m pytest -p no:cacheprovider -p no:faulthandler --timeout 6000 --durations 25 \
  --ignore tests/test_native.py --ignore tests/test_package.py --deselect tests/python/test_cli.py::test_config -m "not sanitizer_unfit" "$@"
if grep -l libhotset "$build"/tsan-report.* 2>/dev/null; then
  echo "the thread sanitizer reported races in these files" >&2
  exit 66
fi
