// SPDX-License-Identifier: Apache-2.0
// What the two AVX2 families of quantised GEMM share: scales and zero points of a row, tails, and the transpose of 8 rows.
// Everything is static: each file keeps its own copy, compiled with its own flags.
#pragma once
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "cpu_avx/quant_gemm_isa.h"

#define HOTSET_INLINE static inline __attribute__((always_inline))

namespace hotset::cpu {
namespace avx2 {

HOTSET_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
HOTSET_INLINE int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }
// Bytes from row to row: an odd number of cache lines, so that the same place of several rows never falls into one cache set.
HOTSET_INLINE int64_t odd_lines(int64_t bytes) { return round_up(bytes, 64) | 64; }
HOTSET_INLINE __m256i lanes() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
// Mask of the first n lanes.
HOTSET_INLINE __m256i first8(int64_t n) { return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)smaller(n, 8)), lanes()); }

// 32 bytes of which `left` exist; the others read as zero.
HOTSET_INLINE __m256i load_codes(const uint8_t* p, int64_t left) {
  if (left >= 32) return _mm256_loadu_si256((const __m256i*)p);
  uint8_t bytes[32] = {0};
  memcpy(bytes, p, (size_t)left);
  return _mm256_loadu_si256((const __m256i*)bytes);
}

// log2 of the block; one block a row reads as a block past any k.
HOTSET_INLINE int block_shift(const QuantMatrix& w) { return w.block >= w.k ? 40 : __builtin_ctzll((uint64_t)w.block); }

// The blocks that up to 8 consecutive runs of (1 << run_shift) codes from code k0 on belong to: `count` blocks from `first`, and for
// each run the index of its block among them. Runs never cross a block.
struct Blocks {
  int64_t first;
  int count;
  __m256i index;
};

HOTSET_INLINE Blocks blocks_at(int64_t k0, int64_t k, int run_shift, int shift) {
  Blocks b;
  const int64_t end = smaller(k, k0 + ((int64_t)8 << run_shift));
  b.first = k0 >> shift;
  const int64_t last = (end - 1) >> shift;
  b.count = (int)(last - b.first + 1);
  // Runs past k take the last block: their activations are zero.
  const __m256i code = _mm256_add_epi32(_mm256_slli_epi32(lanes(), run_shift), _mm256_set1_epi32((int)(k0 - (b.first << shift))));
  const __m256i index = _mm256_srl_epi32(code, _mm_cvtsi32_si128(shift > 31 ? 31 : shift));
  b.index = _mm256_min_epi32(index, _mm256_set1_epi32(b.count - 1));
  return b;
}

// Scale of each run of `b` in row n.
HOTSET_INLINE __m256 scales_of(const QuantMatrix& w, int64_t n, const Blocks& b) {
  const int64_t at = n * w.scale_stride + b.first;
  __m256 s;
  if (w.scale_type == 1) {
    const char* p = (const char*)w.scales + 4 * at;
    if (b.count == 1) {
      float one;
      memcpy(&one, p, 4);
      return _mm256_set1_ps(one);
    }
    s = _mm256_maskload_ps((const float*)p, first8(b.count));
  } else {
    const char* p = (const char*)w.scales + 2 * at;
    char copy[16] = {0};
    if (b.count < 8) {
      memcpy(copy, p, (size_t)b.count * 2);
      p = copy;
    }
    const __m128i half = _mm_loadu_si128((const __m128i*)p);
    s = w.scale_type == 10 ? _mm256_cvtph_ps(half) : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  return _mm256_permutevar8x32_ps(s, b.index);
}

// Zero point of each run of `b` in row n; the matrix has zero points.
template <int BITS>
HOTSET_INLINE __m256i zeros_of(const QuantMatrix& w, int64_t n, const Blocks& b) {
  if (w.zero_stride == 0) return _mm256_set1_epi32((w.zero_points[n * BITS / 8] >> (n * BITS % 8)) & ((1 << BITS) - 1));
  // At most 8 codes, and either from the start of a byte or all in one byte.
  const uint8_t* p = w.zero_points + n * w.zero_stride + b.first * BITS / 8;
  const int bit = (int)(b.first * BITS % 8);
  uint64_t codes = 0;
  memcpy(&codes, p, (size_t)((bit + b.count * BITS + 7) / 8));
  codes >>= bit;
  if (BITS == 8) return _mm256_permutevar8x32_epi32(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)codes)), b.index);
  const __m256i position = _mm256_slli_epi32(b.index, BITS == 4 ? 2 : 1);
  return _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32((int)codes), position), _mm256_set1_epi32((1 << BITS) - 1));
}

// A product with few rows reads W once, four rows at a time: too short for the hardware to see streams. The distance, in bytes, from
// a code to one that is read about 4 KiB later, at the same place of a later row.
HOTSET_INLINE int64_t prefetch_distance(const QuantMatrix& w) {
  const int64_t four_rows = 4 * w.row_bytes;
  return four_rows <= 0 || four_rows >= 4096 ? four_rows : round_up(4096, four_rows);
}

// Scales of the four rows that are read after those of rows n ... n + 3, or some rows later when rows are short.
HOTSET_INLINE void prefetch_scales(const QuantMatrix& w, int64_t n) {
  const int64_t size = w.scale_type == 1 ? 4 : 2, four_rows = 4 * w.scale_stride * size;
  const char* p = (const char*)w.scales + n * w.scale_stride * size + (four_rows < 1024 ? 1024 : four_rows);
  for (int64_t at = 0; at < four_rows; at += 64) _mm_prefetch(p + at, _MM_HINT_T0);
}

// r[i][j] becomes r[j][i].
HOTSET_INLINE void transpose8(__m256i r[8]) {
  __m256i t[8];
  for (int i = 0; i < 8; i += 4) {
    const __m256i a = _mm256_unpacklo_epi32(r[i], r[i + 1]), b = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    const __m256i c = _mm256_unpacklo_epi32(r[i + 2], r[i + 3]), d = _mm256_unpackhi_epi32(r[i + 2], r[i + 3]);
    t[i] = _mm256_unpacklo_epi64(a, c);
    t[i + 1] = _mm256_unpackhi_epi64(a, c);
    t[i + 2] = _mm256_unpacklo_epi64(b, d);
    t[i + 3] = _mm256_unpackhi_epi64(b, d);
  }
  for (int c = 0; c < 4; ++c) {
    r[c] = _mm256_permute2x128_si256(t[c], t[4 + c], 0x20);
    r[4 + c] = _mm256_permute2x128_si256(t[c], t[4 + c], 0x31);
  }
}

// The sums of the lanes of four vectors.
HOTSET_INLINE __m128 sum4(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 all = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  return _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
}

// First `count` (at most 4) of four floats, plus bias.
HOTSET_INLINE void store4(float* y, __m128 value, const float* bias, int64_t count) {
  const __m128i mask = _mm256_castsi256_si128(first8(count));
  if (bias) value = _mm_add_ps(value, _mm_maskload_ps(bias, mask));
  _mm_maskstore_ps(y, mask, value);
}

// What a tile of a panel adds its sums to: 16 columns from y on.
struct Store {
  const float* bias;  // null: none
  float* y;
  int64_t ldy;
  __m256i mask[2];
  bool first, last;  // panel of the row
};

HOTSET_INLINE void prefetch_y(const Store& out, int64_t row) { __builtin_prefetch(out.y + row * out.ldy, 1); }

HOTSET_INLINE void store_sum(const Store& out, int64_t row, int half, __m256 sum) {
  if (!out.first) sum = _mm256_add_ps(sum, _mm256_maskload_ps(out.y + row * out.ldy + 8 * half, out.mask[half]));
  if (out.last && out.bias) sum = _mm256_add_ps(sum, _mm256_maskload_ps(out.bias + 8 * half, out.mask[half]));
  _mm256_maskstore_ps(out.y + row * out.ldy + 8 * half, out.mask[half], sum);
}

}  // namespace avx2
}  // namespace hotset::cpu
