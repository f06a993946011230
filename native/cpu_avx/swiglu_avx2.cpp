// SPDX-License-Identifier: Apache-2.0
// The gated unit with AVX2 and FMA.
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "cpu_avx/swiglu_isa.h"

namespace hotset::cpu {
namespace {
#include "cpu_avx/vector_avx2.h"

inline V lower(V a, V b) { return _mm256_min_ps(a, b); }
inline V higher(V a, V b) { return _mm256_max_ps(a, b); }
inline V divide(V a, V b) { return _mm256_div_ps(a, b); }
inline V round(V v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline V scale(V p, V n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
inline void split(const float* p, V* even, V* odd) {
  const V a = _mm256_loadu_ps(p), b = _mm256_loadu_ps(p + kLanes);
  const __m256d evens = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88)), odds = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd));
  *even = _mm256_castpd_ps(_mm256_permute4x64_pd(evens, 0xd8));
  *odd = _mm256_castpd_ps(_mm256_permute4x64_pd(odds, 0xd8));
}
#include "cpu_avx/swiglu_body.h"
}  // namespace

void swiglu_avx2(const Swiglu& unit, const float* gate, const float* value, int64_t n, float* out) { run(unit, gate, value, n, out); }

}  // namespace hotset::cpu
