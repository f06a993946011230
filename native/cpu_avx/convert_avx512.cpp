// SPDX-License-Identifier: Apache-2.0
// Conversions sixteen elements at a time; tails by mask.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // gcc bug 105593: its own intrinsics
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include "cpu_avx/convert_isa.h"

namespace hotset::cpu {

static inline __m512 from_f16(__m256i h) { return _mm512_cvtph_ps(h); }
static inline __m512 from_bf16(__m256i h) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16)); }
static inline __m256i to_f16(__m512 f) { return _mm512_cvtps_ph(f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline __m256i to_bf16(__m512 f) {
  const __m512i u = _mm512_castps_si512(f), high = _mm512_srli_epi32(u, 16);
  const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(f, f, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40)));
}
static inline __mmask16 first(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }

template <__m512 (*convert)(__m256i)>
static inline void widen(const void* src, float* dst, int64_t n) {
  const char* s = static_cast<const char*>(src);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) _mm512_storeu_ps(dst + i, convert(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(s + 2 * i))));
  if (i < n) {
    const __mmask16 m = first(n - i);
    _mm512_mask_storeu_ps(dst + i, m, convert(_mm256_maskz_loadu_epi16(m, s + 2 * i)));
  }
}

template <__m256i (*convert)(__m512)>
static inline void narrow(const float* src, void* dst, int64_t n) {
  char* d = static_cast<char*>(dst);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) _mm256_storeu_si256(reinterpret_cast<__m256i*>(d + 2 * i), convert(_mm512_loadu_ps(src + i)));
  if (i < n) {
    const __mmask16 m = first(n - i);
    _mm256_mask_storeu_epi16(d + 2 * i, m, convert(_mm512_maskz_loadu_ps(m, src + i)));
  }
}

static void widen_f16(const void* src, float* dst, int64_t n) { widen<from_f16>(src, dst, n); }
static void widen_bf16(const void* src, float* dst, int64_t n) { widen<from_bf16>(src, dst, n); }
static void narrow_f16(const float* src, void* dst, int64_t n) { narrow<to_f16>(src, dst, n); }
static void narrow_bf16(const float* src, void* dst, int64_t n) { narrow<to_bf16>(src, dst, n); }

void convert_kernels_avx512(ConvertKernels* k) {
  k->f16_to_f32 = widen_f16;
  k->bf16_to_f32 = widen_bf16;
  k->f32_to_f16 = narrow_f16;
  k->f32_to_bf16 = narrow_bf16;
}

}  // namespace hotset::cpu
