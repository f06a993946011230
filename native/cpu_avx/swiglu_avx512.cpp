// SPDX-License-Identifier: Apache-2.0
// The gated unit with AVX-512.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // gcc bug 105593: its own intrinsics
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "cpu_avx/swiglu_isa.h"

namespace hotset::cpu {
namespace {
#include "cpu_avx/vector_avx512.h"

inline V lower(V a, V b) { return _mm512_min_ps(a, b); }
inline V higher(V a, V b) { return _mm512_max_ps(a, b); }
inline V divide(V a, V b) { return _mm512_div_ps(a, b); }
inline V round(V v) { return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline V scale(V p, V n) { return _mm512_scalef_ps(p, n); }
inline void split(const float* p, V* even, V* odd) {
  const V a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + kLanes);
  const __m512i evens = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  *even = _mm512_permutex2var_ps(a, evens, b);
  *odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(evens, _mm512_set1_epi32(1)), b);
}
#include "cpu_avx/swiglu_body.h"
}  // namespace

void swiglu_avx512(const Swiglu& unit, const float* gate, const float* value, int64_t n, float* out) { run(unit, gate, value, n, out); }

}  // namespace hotset::cpu
