// SPDX-License-Identifier: Apache-2.0
// Attention with AVX2 and FMA: register tile of 6 rows x 16 columns, 12 of 16 registers.
#include <immintrin.h>

#include "cpu_avx/attention.h"

namespace hotset::cpu {
namespace {

using V = __m256;
constexpr int kLanes = 8, kMr = 6, kNv = 2;
constexpr float kExpLowest = -87.33f;  // below, exp is taken as 0: 2^n must stay normal

inline V vload(const float* p) { return _mm256_loadu_ps(p); }
inline void vstore(float* p, V v) { _mm256_storeu_ps(p, v); }
inline V vset(float x) { return _mm256_set1_ps(x); }
inline V vadd(V a, V b) { return _mm256_add_ps(a, b); }
inline V vsub(V a, V b) { return _mm256_sub_ps(a, b); }
inline V vmul(V a, V b) { return _mm256_mul_ps(a, b); }
inline V vdiv(V a, V b) { return _mm256_div_ps(a, b); }
inline V vfma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
inline V vmax(V a, V b) { return _mm256_max_ps(a, b); }  // b if either is NaN, as vmin
inline V vmin(V a, V b) { return _mm256_min_ps(a, b); }
inline V vround(V a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline V vldexp(V p, V n, V x) {
  const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  const V zero = _mm256_cmp_ps(x, _mm256_set1_ps(kExpLowest), _CMP_LT_OQ);
  return _mm256_andnot_ps(zero, _mm256_mul_ps(p, _mm256_castsi256_ps(power)));
}
inline float vfirst(V v) { return _mm256_cvtss_f32(v); }
inline float vsum(V v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
inline float vmax_lanes(V v) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
// Lanes [lo, hi) of v, x elsewhere.
inline V vkeep(V v, int lo, int hi, float x) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i keep =
      _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(lo), lane), _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), lane));
  return _mm256_blendv_ps(_mm256_set1_ps(x), v, _mm256_castsi256_ps(keep));
}
// small where |x| < bound, else large.
inline V vselect_small(V x, float bound, V small, V large) {
  const V magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
  return _mm256_blendv_ps(large, small, _mm256_cmp_ps(magnitude, _mm256_set1_ps(bound), _CMP_LT_OQ));
}
inline __m128i bytes16(const unsigned char* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
inline __m128i bytes8(const unsigned char* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); }
inline V vload_f16(const unsigned char* p) { return _mm256_cvtph_ps(bytes16(p)); }
inline V vload_bf16(const unsigned char* p) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bytes16(p)), 16)); }
inline V vload_i8(const unsigned char* p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes8(p))); }
inline V vload_i4(const unsigned char* p) {
  int word;
  __builtin_memcpy(&word, p, 4);
  const __m128i b = _mm_cvtsi32_si128(word), mask = _mm_set1_epi8(15);
  const __m128i u = _mm_unpacklo_epi8(_mm_and_si128(b, mask), _mm_and_si128(_mm_srli_epi16(b, 4), mask));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_sub_epi8(u, _mm_set1_epi8(8))));
}
// As float16 bits the exponent is 8 too small, subnormals included.
inline V vload_f8(const unsigned char* p) {
  const __m128i u = _mm_cvtepu8_epi16(bytes8(p)), magnitude = _mm_and_si128(u, _mm_set1_epi16(0x7f));
  const __m128i sign = _mm_slli_epi16(_mm_andnot_si128(_mm_set1_epi16(0x7f), u), 8);
  const __m128i nan = _mm_and_si128(_mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f)), _mm_set1_epi16(0x7e00));
  return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(_mm_or_si128(sign, _mm_slli_epi16(magnitude, 7)), nan)), _mm256_set1_ps(256.0f));
}
inline void vtranspose(V* v) {
  V t[8];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {  // 4x4 blocks inside 128-bit lanes
    const V a = _mm256_unpacklo_ps(v[4 * i], v[4 * i + 1]), b = _mm256_unpackhi_ps(v[4 * i], v[4 * i + 1]);
    const V c = _mm256_unpacklo_ps(v[4 * i + 2], v[4 * i + 3]), d = _mm256_unpackhi_ps(v[4 * i + 2], v[4 * i + 3]);
    t[4 * i] = _mm256_shuffle_ps(a, c, 0x44);
    t[4 * i + 1] = _mm256_shuffle_ps(a, c, 0xee);
    t[4 * i + 2] = _mm256_shuffle_ps(b, d, 0x44);
    t[4 * i + 3] = _mm256_shuffle_ps(b, d, 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_permute2f128_ps(t[i], t[4 + i], 0x20);
    v[4 + i] = _mm256_permute2f128_ps(t[i], t[4 + i], 0x31);
  }
}
// Lane i: sum of the lanes of v[i].
inline V vsum_each(const V* v) {
  const V a = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
  const V b = _mm256_hadd_ps(_mm256_hadd_ps(v[4], v[5]), _mm256_hadd_ps(v[6], v[7]));
  return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}
inline void vstore_halves(float* low, float* high, V v) {
  _mm_storeu_ps(low, _mm256_castps256_ps128(v));
  _mm_storeu_ps(high, _mm256_extractf128_ps(v, 1));
}

#include "cpu_avx/attention_body.h"

}  // namespace

void attention_kernels_avx2(AttentionKernels* k) { *k = {attend, rotate, scale, quantize}; }

}  // namespace hotset::cpu
