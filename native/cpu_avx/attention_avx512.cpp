// SPDX-License-Identifier: Apache-2.0
// Attention with AVX-512: register tile of 6 rows x 64 columns, 24 of 32 registers; bound by its two FMA units.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // gcc bug 105593: its own intrinsics
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include "cpu_avx/attention.h"

namespace hotset::cpu {
namespace {

using V = __m512;
constexpr int kLanes = 16, kMr = 6, kNv = 4;
constexpr float kExpLowest = -87.33f;  // below, exp is taken as 0: a subnormal result costs 100 cycles

inline V vload(const float* p) { return _mm512_loadu_ps(p); }
inline void vstore(float* p, V v) { _mm512_storeu_ps(p, v); }
inline V vset(float x) { return _mm512_set1_ps(x); }
inline V vadd(V a, V b) { return _mm512_add_ps(a, b); }
inline V vsub(V a, V b) { return _mm512_sub_ps(a, b); }
inline V vmul(V a, V b) { return _mm512_mul_ps(a, b); }
inline V vdiv(V a, V b) { return _mm512_div_ps(a, b); }
inline V vfma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
inline V vmax(V a, V b) { return _mm512_max_ps(a, b); }  // b if either is NaN, as vmin
inline V vmin(V a, V b) { return _mm512_min_ps(a, b); }
inline V vround(V a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline V vldexp(V p, V n, V x) {
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(kExpLowest), _CMP_NLT_UQ), p, n);
}
inline float vfirst(V v) { return _mm512_cvtss_f32(v); }
inline float vsum(V v) { return _mm512_reduce_add_ps(v); }
inline float vmax_lanes(V v) { return _mm512_reduce_max_ps(v); }
// Lanes [lo, hi) of v, x elsewhere.
inline V vkeep(V v, int lo, int hi, float x) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __mmask16 m = _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(lo)) & _mm512_cmplt_epi32_mask(lane, _mm512_set1_epi32(hi));
  return _mm512_mask_blend_ps(m, _mm512_set1_ps(x), v);
}
// small where |x| < bound, else large.
inline V vselect_small(V x, float bound, V small, V large) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(bound), _CMP_LT_OQ), large, small);
}
inline __m256i bytes32(const unsigned char* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline __m128i bytes16(const unsigned char* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
inline V vload_f16(const unsigned char* p) { return _mm512_cvtph_ps(bytes32(p)); }
inline V vload_bf16(const unsigned char* p) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bytes32(p)), 16)); }
inline V vload_i8(const unsigned char* p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes16(p))); }
inline V vload_i4(const unsigned char* p) {
  const __m128i b = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)), mask = _mm_set1_epi8(15);
  const __m128i u = _mm_unpacklo_epi8(_mm_and_si128(b, mask), _mm_and_si128(_mm_srli_epi16(b, 4), mask));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_sub_epi8(u, _mm_set1_epi8(8))));
}
// As float16 bits the exponent is 8 too small, subnormals included.
inline V vload_f8(const unsigned char* p) {
  const __m256i u = _mm256_cvtepu8_epi16(bytes16(p)), magnitude = _mm256_and_si256(u, _mm256_set1_epi16(0x7f));
  const __m256i sign = _mm256_slli_epi16(_mm256_andnot_si256(_mm256_set1_epi16(0x7f), u), 8);
  const __m256i nan = _mm256_and_si256(_mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f)), _mm256_set1_epi16(0x7e00));
  const __m256i half = _mm256_or_si256(_mm256_or_si256(sign, _mm256_slli_epi16(magnitude, 7)), nan);
  return _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0f));
}
inline void vtranspose(V* v) {
  V t[16];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // 4x4 blocks inside 128-bit lanes
    const V a = _mm512_unpacklo_ps(v[4 * i], v[4 * i + 1]), b = _mm512_unpackhi_ps(v[4 * i], v[4 * i + 1]);
    const V c = _mm512_unpacklo_ps(v[4 * i + 2], v[4 * i + 3]), d = _mm512_unpackhi_ps(v[4 * i + 2], v[4 * i + 3]);
    t[4 * i] = _mm512_shuffle_ps(a, c, 0x44);
    t[4 * i + 1] = _mm512_shuffle_ps(a, c, 0xee);
    t[4 * i + 2] = _mm512_shuffle_ps(b, d, 0x44);
    t[4 * i + 3] = _mm512_shuffle_ps(b, d, 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // then the lanes
    const V a = _mm512_shuffle_f32x4(t[i], t[4 + i], 0x88), b = _mm512_shuffle_f32x4(t[i], t[4 + i], 0xdd);
    const V c = _mm512_shuffle_f32x4(t[8 + i], t[12 + i], 0x88), d = _mm512_shuffle_f32x4(t[8 + i], t[12 + i], 0xdd);
    v[i] = _mm512_shuffle_f32x4(a, c, 0x88);
    v[8 + i] = _mm512_shuffle_f32x4(a, c, 0xdd);
    v[4 + i] = _mm512_shuffle_f32x4(b, d, 0x88);
    v[12 + i] = _mm512_shuffle_f32x4(b, d, 0xdd);
  }
}
// Lane i: sum of the lanes of v[i].
inline V vsum_each(const V* v) {
  V t[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const V a = _mm512_add_ps(_mm512_unpacklo_ps(v[4 * i], v[4 * i + 1]), _mm512_unpackhi_ps(v[4 * i], v[4 * i + 1]));
    const V b = _mm512_add_ps(_mm512_unpacklo_ps(v[4 * i + 2], v[4 * i + 3]), _mm512_unpackhi_ps(v[4 * i + 2], v[4 * i + 3]));
    t[i] = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
  }
  const V a = _mm512_add_ps(_mm512_shuffle_f32x4(t[0], t[1], 0x88), _mm512_shuffle_f32x4(t[0], t[1], 0xdd));
  const V b = _mm512_add_ps(_mm512_shuffle_f32x4(t[2], t[3], 0x88), _mm512_shuffle_f32x4(t[2], t[3], 0xdd));
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}
inline void vstore_halves(float* low, float* high, V v) {
  _mm256_storeu_ps(low, _mm512_castps512_ps256(v));
  _mm256_storeu_ps(high, _mm512_extractf32x8_ps(v, 1));
}

#include "cpu_avx/attention_body.h"

}  // namespace

void attention_kernels_avx512(AttentionKernels* k) { *k = {attend, rotate, scale, quantize}; }

}  // namespace hotset::cpu
