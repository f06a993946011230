// SPDX-License-Identifier: Apache-2.0
// Activations in groups of 32 as integers with a scale, for all AVX-512 kernels. Everything is static: each file keeps its own copy,
// compiled with its own flags.
#pragma once
#include "cpu_avx/quant_gemm_avx512.h"

namespace hotset::cpu {
namespace avx512 {

struct Group {
  __m512 x[2];
  __m512i q[2];
};

// Up to 32 floats; zeros past `left`.
HOTSET_INLINE Group load_group(const float* x, int64_t left) {
  Group g;
  g.x[0] = _mm512_maskz_loadu_ps(first16(left), x);
  g.x[1] = _mm512_maskz_loadu_ps(first16(left - 16), x + 16);
  return g;
}

// The bits of max |x|: they order like the numbers, and NaN comes last.
HOTSET_INLINE uint32_t largest_bits(const Group& g) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  return (uint32_t)_mm512_reduce_max_epi32(
      _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(g.x[0]), magnitude), _mm512_and_si512(_mm512_castps_si512(g.x[1]), magnitude)));
}

HOTSET_INLINE float float_of_bits(uint32_t bits) {
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

// q = rne(x * 127 / max|x|); the result is d = max|x| / 127. Not finite: d is NaN or infinity.
HOTSET_INLINE float quantize_i8(Group* g) {
  const float largest = float_of_bits(largest_bits(*g));
  const __m512 scale = _mm512_set1_ps(largest < 0x1p-100f ? 0.0f : 127.0f / largest);
  for (int h = 0; h < 2; ++h) {
    const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(g->x[h], scale));
    g->q[h] = _mm512_max_epi32(_mm512_min_epi32(q, _mm512_set1_epi32(127)), _mm512_set1_epi32(-128));
  }
  return largest / 127.0f;
}

// Half h of the integers of quantize_i8 as bytes, and their sum.
HOTSET_INLINE __m128i bytes_of(const Group& g, int h) { return _mm512_cvtepi32_epi8(g.q[h]); }
HOTSET_INLINE int32_t sum_of(const Group& g, int h) { return _mm512_reduce_add_epi32(g.q[h]); }

// q = rne(x / d) with d the power of two for which max|q| is in (0x3fbfbfbf, 0x7f7f7f7f], the largest number with four signed digits in
// base 256. |x - q d| <= d / 2 < max|x| * 2^-31 / 0.996: over a group at most 2^-25.9 of the sum of |x|, a quarter of what rounding each
// x to float32 may do, and nothing at all where |x| >= max|x| / 64. False when a group is not finite or so large or small that a scale
// times d might leave the range of float32.
HOTSET_INLINE bool quantize_i32(Group* g, float* d) {
  const uint32_t largest = largest_bits(*g);
  constexpr uint32_t kOne = 127;
  if (largest == 0) {
    g->q[0] = g->q[1] = _mm512_setzero_si512();
    *d = 0;
    return true;
  }
  if (largest < (kOne - 64) << 23 || largest >= (kOne + 64) << 23) return false;
  // Mantissas above that of 0x7f7f7f7f count as the next power of two.
  const uint32_t exponent = (largest + (0x800000 - 0x7efeff)) >> 23;
  const __m512 scale = _mm512_set1_ps(float_of_bits((2 * kOne + 30 - exponent) << 23));
  for (int h = 0; h < 2; ++h) g->q[h] = _mm512_cvtps_epi32(_mm512_mul_ps(g->x[h], scale));
  *d = float_of_bits((exponent - 30) << 23);
  return true;
}

}  // namespace avx512
}  // namespace hotset::cpu
