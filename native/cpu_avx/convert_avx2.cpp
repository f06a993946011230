// SPDX-License-Identifier: Apache-2.0
// Conversions eight elements at a time; tails go through a small buffer, never past the end.
#include <immintrin.h>
#include <string.h>

#include "cpu_avx/convert_isa.h"

namespace hotset::cpu {

static inline __m256 from_f16(__m128i h) { return _mm256_cvtph_ps(h); }
static inline __m256 from_bf16(__m128i h) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)); }
static inline __m128i to_f16(__m256 f) { return _mm256_cvtps_ph(f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline __m128i to_bf16(__m256 f) {
  const __m256i u = _mm256_castps_si256(f), high = _mm256_srli_epi32(u, 16);
  const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(f, f, _CMP_UNORD_Q));
  const __m256i r = _mm256_blendv_epi8(rounded, _mm256_or_si256(high, _mm256_set1_epi32(0x40)), nan);
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08));
}

template <__m256 (*convert)(__m128i)>
static inline void widen(const void* src, float* dst, int64_t n) {
  const char* s = static_cast<const char*>(src);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(dst + i, convert(_mm_loadu_si128(reinterpret_cast<const __m128i*>(s + 2 * i))));
  if (i < n) {
    uint16_t in[8] = {};
    float out[8];
    memcpy(in, s + 2 * i, static_cast<size_t>(n - i) * 2);
    _mm256_storeu_ps(out, convert(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in))));
    memcpy(dst + i, out, static_cast<size_t>(n - i) * 4);
  }
}

template <__m128i (*convert)(__m256)>
static inline void narrow(const float* src, void* dst, int64_t n) {
  char* d = static_cast<char*>(dst);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) _mm_storeu_si128(reinterpret_cast<__m128i*>(d + 2 * i), convert(_mm256_loadu_ps(src + i)));
  if (i < n) {
    float in[8] = {};
    uint16_t out[8];
    memcpy(in, src + i, static_cast<size_t>(n - i) * 4);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), convert(_mm256_loadu_ps(in)));
    memcpy(d + 2 * i, out, static_cast<size_t>(n - i) * 2);
  }
}

static void widen_f16(const void* src, float* dst, int64_t n) { widen<from_f16>(src, dst, n); }
static void widen_bf16(const void* src, float* dst, int64_t n) { widen<from_bf16>(src, dst, n); }
static void narrow_f16(const float* src, void* dst, int64_t n) { narrow<to_f16>(src, dst, n); }
static void narrow_bf16(const float* src, void* dst, int64_t n) { narrow<to_bf16>(src, dst, n); }

void convert_kernels_avx2(ConvertKernels* k) {
  k->f16_to_f32 = widen_f16;
  k->bf16_to_f32 = widen_bf16;
  k->f32_to_f16 = narrow_f16;
  k->f32_to_bf16 = narrow_bf16;
}

}  // namespace hotset::cpu
