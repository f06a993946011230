// SPDX-License-Identifier: Apache-2.0
// Elementwise loops with AVX2 and FMA.
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "cpu_avx/elementwise_isa.h"

namespace hotset::cpu {
namespace {
#include "cpu_avx/vector_avx2.h"

inline V lower(V a, V b) { return _mm256_min_ps(a, b); }
inline V higher(V a, V b) { return _mm256_max_ps(a, b); }
inline V divide(V a, V b) { return _mm256_div_ps(a, b); }
inline V root(V v) { return _mm256_sqrt_ps(v); }
inline V round(V v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// In two halves, each a normal power of two.
inline V scale(V p, V n) {
  const __m256i i = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(i, 1), rest = _mm256_sub_epi32(i, half), bias = _mm256_set1_epi32(127);
  const V a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const V b = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(p, a), b);
}
inline V magnitude(V v) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v); }
inline V with_sign(V a, V s) { return _mm256_or_ps(a, _mm256_and_ps(s, _mm256_set1_ps(-0.0f))); }
inline V below(V a, V b, V yes, V no) { return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ)); }
template <int D>
inline float first_element(const void* p) { return _mm256_cvtss_f32(load_first_as<D>(p, 0, 1)); }
#include "cpu_avx/elementwise_body.h"
}  // namespace

extern const ElementwiseKernels kElementwiseAvx2 = kTable;

}  // namespace hotset::cpu
