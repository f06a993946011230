// SPDX-License-Identifier: Apache-2.0
// What the AVX-512 files of minifloat products share: scales of a row and the walk over columns. Everything is static.
#pragma once
#include "cpu_avx/minifloat_gemm_isa.h"
#include "cpu_avx/quant_gemm_avx512.h"

namespace hotset::cpu {
namespace minifloat512 {

using namespace avx512;

constexpr int64_t kStretch = 256;  // codes whose scales fill a vector: 16 runs of 16
constexpr int64_t kTogether = 4;   // rows of W, and at most rows of x, in one pass

HOTSET_INLINE int shift_of(const MinifloatMatrix& w) { return w.block >= w.k ? 40 : __builtin_ctzll((uint64_t)w.block); }

// Floats of 16 E4M3 bytes; 0x7f and 0xff are NaN.
HOTSET_INLINE __m512 floats_of_e4m3(__m128i bytes) {
  const __m256i high = _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8);
  // Sign, exponent and mantissa at their places in a half, whose exponent counts 8 more.
  const __m256i half = _mm256_and_si256(_mm256_srai_epi16(high, 1), _mm256_set1_epi16((short)0xbf80));
  const __m512 value = _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0f));
  const __mmask16 nan = _mm_cmpeq_epi8_mask(_mm_and_si128(bytes, _mm_set1_epi8(0x7f)), _mm_set1_epi8(0x7f));
  return _mm512_mask_mov_ps(value, nan, _mm512_set1_ps(__builtin_nanf("")));
}

// Floats of 16 E8M0 bytes: 2^(byte - 127), 255 is NaN.
HOTSET_INLINE __m512 floats_of_e8m0(__m128i bytes) {
  const __m512i exponent = _mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 23);
  const __m512i bits = _mm512_max_epu32(exponent, _mm512_set1_epi32(0x00400000));  // byte 0 is 2^-127
  const __mmask16 nan = _mm_cmpeq_epi8_mask(bytes, _mm_set1_epi8(-1));
  return _mm512_mask_mov_ps(_mm512_castsi512_ps(bits), nan, _mm512_set1_ps(__builtin_nanf("")));
}

// Scale of each run of `b` in row n.
HOTSET_INLINE __m512 run_scales(const MinifloatMatrix& w, int64_t n, const Blocks& b) {
  const int64_t at = (w.scale_rows == 1 ? n : n / w.scale_rows) * w.scale_stride + b.first;
  const __mmask16 mask = first16(b.count);
  const char* const scales = (const char*)w.scales;
  __m512 s;
  if (w.scale_type == 24 || w.scale_type == 17) {
    const __m128i bytes = _mm_maskz_loadu_epi8(mask, scales + at);
    s = w.scale_type == 24 ? floats_of_e8m0(bytes) : floats_of_e4m3(bytes);
    return b.count == 16 ? s : _mm512_permutexvar_ps(b.index, s);
  }
  if (w.scale_type == 0) return _mm512_set1_ps(1);
  if (w.scale_type == 1) {
    s = _mm512_maskz_loadu_ps(mask, scales + 4 * at);
  } else {
    const __m256i half = _mm256_maskz_loadu_epi16(mask, scales + 2 * at);
    s = w.scale_type == 10 ? _mm512_cvtph_ps(half) : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  return _mm512_permutexvar_ps(b.index, s);
}

// Distance in bytes to what four rows later is read at the same place, or about 4 KiB when rows are short.
HOTSET_INLINE int64_t ahead_of(const MinifloatMatrix& w) {
  const int64_t four_rows = 4 * w.row_bytes;
  return four_rows <= 0 || four_rows >= 4096 ? four_rows : round_up(4096, four_rows);
}

// Scales of rows n + 4 ... n + 7.
HOTSET_INLINE void prefetch_run_scales(const MinifloatMatrix& w, int64_t n) {
  if (w.scale_type == 0 || w.scale_rows > 1) return;
  const int64_t size = w.scale_type == 1 ? 4 : w.scale_type == 10 || w.scale_type == 16 ? 2 : 1, four_rows = 4 * w.scale_stride * size;
  const char* p = (const char*)w.scales + n * w.scale_stride * size + (four_rows < 1024 ? 1024 : four_rows);
  for (int64_t at = 0; at < four_rows; at += 64) _mm_prefetch(p + at, _MM_HINT_T0);
}

}  // namespace minifloat512
}  // namespace hotset::cpu
