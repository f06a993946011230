// SPDX-License-Identifier: Apache-2.0
// What the AVX-512 files of minifloat products share: scales of a row and the walk over columns. Everything is static.
#pragma once
#include "cpu_avx/minifloat_gemm_isa.h"
#include "cpu_avx/quant_gemm_avx512.h"
#include "cpu_avx/quantize_avx512.h"

namespace hotset::cpu {
namespace minifloat512 {

using namespace avx512;

constexpr int64_t kStretch = 256;  // codes whose scales fill a vector: 16 runs of 16
constexpr int64_t kTogether = 4;   // rows of W, and at most rows of x, in one pass

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

// Kinds of scales that kernels are compiled for; the last two look at scale_type for each vector. Wide: blocks of 64 and more.
constexpr int kNoScales = 0, kE4m3 = 17, kE8m0 = 24, kAnyScales = -1, kAnyWide = -2;

// Where the scales of stretches lie: up to 16 from `first` on belong to a stretch, one a block.
struct Walk {
  int shift;          // log2 of the block; one block a row reads as a block past any k
  int64_t k, blocks;  // of a row
  __mmask16 whole;    // scales of a stretch inside the row

  inline __attribute__((always_inline)) int64_t first(int64_t k0) const { return k0 >> shift; }
  inline __attribute__((always_inline)) __mmask16 mask(int64_t k0) const {
    return k0 + kStretch <= k ? whole : (__mmask16)(whole & first16(blocks - first(k0)));
  }
  // Of the lanes whose codes have the numbers `code` in the stretch: which of its scales they take.
  inline __attribute__((always_inline)) __m512i index(__m512i code) const {
    return _mm512_srl_epi32(code, _mm_cvtsi32_si128(shift > 31 ? 31 : shift));
  }
};

HOTSET_INLINE Walk walk_of(const MinifloatMatrix& w) {
  Walk walk;
  walk.k = w.k;
  walk.shift = w.block >= w.k ? 40 : __builtin_ctzll((uint64_t)w.block);
  walk.blocks = w.block >= w.k ? 1 : (w.k + w.block - 1) >> walk.shift;
  walk.whole = first16(walk.shift >= 8 ? 1 : kStretch >> walk.shift);
  return walk;
}

// Scales of a stretch of row n, those of `mask` from `first` on.
template <int TYPE>
HOTSET_INLINE __m512 scales_at(const MinifloatMatrix& w, int64_t n, int64_t first, __mmask16 mask) {
  if (TYPE == kNoScales) return _mm512_set1_ps(1);
  const int64_t at = (TYPE > 0 || w.scale_rows == 1 ? n : n / w.scale_rows) * w.scale_stride + first;
  const char* const scales = (const char*)w.scales;
  if (TYPE == kE4m3) return floats_of_e4m3(_mm_maskz_loadu_epi8(mask, scales + at));
  if (TYPE == kE8m0) return floats_of_e8m0(_mm_maskz_loadu_epi8(mask, scales + at));
  switch (w.scale_type) {
    case 0:
      return _mm512_set1_ps(1);
    case 1:
      return _mm512_maskz_loadu_ps(mask, scales + 4 * at);
    case 10:
      return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, scales + 2 * at));
    case 16:
      return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, scales + 2 * at)), 16));
    case kE4m3:
      return floats_of_e4m3(_mm_maskz_loadu_epi8(mask, scales + at));
    default:
      return floats_of_e8m0(_mm_maskz_loadu_epi8(mask, scales + at));
  }
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
