// SPDX-License-Identifier: Apache-2.0
// What the AVX-512 files of products along N share. Everything is static.
//
// Columns go in groups of 128, 64 bytes of a row of codes, as eight vectors v of 16 lanes l; a kernel says which column (v, l) is.
// The matrix is walked a block of k at a time, all groups of the range inside, so that memory is read in long runs. Scratch:
//   sums   float [rows][group][v][16]
//   scales byte [64 blocks][group][v][16], transposed out of [n][blocks] when 64 blocks begin: a line of each column at least
#pragma once
#include "cpu_avx/minifloat_columns.h"
#include "cpu_avx/minifloat_gemm_avx512.h"

namespace hotset::cpu {
namespace columns512 {

using namespace minifloat512;

constexpr int64_t kGroup = 128, kBlocks = 64;
constexpr int64_t kRowsAhead = 32;  // rows of codes that are fetched before they are read

HOTSET_INLINE int64_t groups_of(int64_t n) { return (n + kGroup - 1) / kGroup; }
static size_t columns_scratch_bytes(int64_t m, int64_t n) { return (size_t)(groups_of(n) * kGroup * (4 * m + kBlocks)); }

// 16 rows of 16 bytes in each 128-bit lane: r[i] byte j becomes r[j] byte i.
HOTSET_INLINE void transpose_bytes(__m512i r[16]) {
#pragma GCC unroll 4
  for (int round = 0; round < 4; ++round) {
    __m512i t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      t[2 * i] = _mm512_unpacklo_epi8(r[i], r[i + 8]);
      t[2 * i + 1] = _mm512_unpackhi_epi8(r[i], r[i + 8]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) r[i] = t[i];
  }
}

// Scales of a group's columns from n on, in the order of memory: transposing jumps between them.
HOTSET_INLINE void fetch_scales(const MinifloatMatrix& w, int64_t first, int64_t count, int64_t n, int64_t n1) {
  const char* p = (const char*)w.scales + n * w.scale_stride + first;
  for (int64_t i = n; i < smaller(n + kGroup, n1); ++i, p += w.scale_stride) {
    _mm_prefetch(p, _MM_HINT_T0);
    _mm_prefetch(p + count - 1, _MM_HINT_T0);
  }
}

// Blocks [first, first + count) of columns [n0, n1), count <= 64.
template <int (*COLUMN)(int v, int l)>
HOTSET_INLINE void stage_scales(const MinifloatMatrix& w, int64_t first, int64_t count, int64_t n0, int64_t n1, uint8_t* out) {
  const int64_t groups = groups_of(n1 - n0);
  fetch_scales(w, first, count, n0, n1);
  for (int64_t g = 0; g < groups; ++g) {
    fetch_scales(w, first, count, n0 + (g + 1) * kGroup, n1);
    for (int v = 0; v < 8; ++v) {
      __m512i r[16];  // a lane holds 16 blocks
      for (int l = 0; l < 16; ++l) {
        const int64_t n = n0 + g * kGroup + COLUMN(v, l);
        r[l] = _mm512_maskz_loadu_epi8(first64(count), (const uint8_t*)w.scales + smaller(n, n1 - 1) * w.scale_stride + first);
      }
      transpose_bytes(r);
      for (int b = 0; b < count; ++b) {
        uint8_t* const to = out + (b * groups + g) * kGroup + 16 * v;
        switch (b / 16) {
          case 0:
            _mm_store_si128((__m128i*)to, _mm512_castsi512_si128(r[b % 16]));
            break;
          case 1:
            _mm_store_si128((__m128i*)to, _mm512_extracti32x4_epi32(r[b % 16], 1));
            break;
          case 2:
            _mm_store_si128((__m128i*)to, _mm512_extracti32x4_epi32(r[b % 16], 2));
            break;
          default:
            _mm_store_si128((__m128i*)to, _mm512_extracti32x4_epi32(r[b % 16], 3));
            break;
        }
      }
    }
  }
}

template <int TYPE>
HOTSET_INLINE __m512 floats_of_scales(const uint8_t* p) {
  const __m128i bytes = _mm_load_si128((const __m128i*)p);
  return TYPE == kE8m0 ? floats_of_e8m0(bytes) : floats_of_e4m3(bytes);
}

// y = sums * scale * factor + bias.
template <int (*COLUMN)(int v, int l)>
HOTSET_INLINE void store_columns(const float* sums, float scale, float factor, int64_t columns, const float* bias, float* y) {
  for (int64_t g = 0; g < groups_of(columns); ++g, sums += kGroup)
    for (int v = 0; v < 8; ++v)
      for (int l = 0; l < 16; ++l) {
        const int64_t n = g * kGroup + COLUMN(v, l);
        if (n < columns) y[n] = sums[16 * v + l] * scale * factor + (bias ? bias[n] : 0.0f);
      }
}

// ---- the walk over the matrix
// ------------------------------------------------------------------------------------------------------------ ROWS are the prepared rows
// as a kernel reads them, with
//   static ROWS make(const void* prepared, int64_t k)
//   static int column(int v, int l)      where lane l of vector v of a group lies in it
//   static constexpr float kFactor       of the sums
//   add_block<TYPE, MR>(codes, row_bytes, block, mask, m, k, scales, sums, sum_stride): one block of a group, which begins at k, by rows
//     [m, m + MR) of x, the sums of which are sum_stride apart

template <class ROWS, int TYPE>
static void multiply_as(const MinifloatMatrix& w, const void* prepared, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const float* bias,
                        float* y, int64_t ldy, void* scratch) {
  const int64_t columns = n1 - n0, groups = groups_of(columns), width = groups * kGroup;
  const ROWS rows = ROWS::make(prepared, w.k);
  float* const sums = (float*)scratch;
  uint8_t* const scales = (uint8_t*)(sums + (m1 - m0) * width);
  memset(sums, 0, (size_t)((m1 - m0) * width) * sizeof(float));
  const int64_t blocks = w.k / w.block;
  for (int64_t b = 0; b < blocks; ++b) {
    if (b % kBlocks == 0) stage_scales<ROWS::column>(w, b, smaller(kBlocks, blocks - b), n0, n1, scales);
    for (int64_t g = 0; g < groups; ++g) {
      const uint8_t* codes = w.codes + b * w.block * w.row_bytes + (n0 + g * kGroup) / 2;
      const uint8_t* scale = scales + (b % kBlocks * groups + g) * kGroup;
      const __mmask64 mask = first64((columns - g * kGroup) / 2);
      float* const to = sums + g * kGroup;
      int64_t m = m0;
      for (; m + 2 <= m1; m += 2)
        rows.template add_block<TYPE, 2>(codes, w.row_bytes, w.block, mask, m, b * w.block, scale, to + (m - m0) * width, width);
      if (m < m1) rows.template add_block<TYPE, 1>(codes, w.row_bytes, w.block, mask, m, b * w.block, scale, to + (m - m0) * width, width);
    }
  }
  for (int64_t m = m0; m < m1; ++m)
    store_columns<ROWS::column>(sums + (m - m0) * width, ROWS::kFactor, w.factor, columns, bias ? bias + n0 : nullptr, y + m * ldy + n0);
}

template <class ROWS>
static void multiply(const MinifloatMatrix& w, const void* prepared, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const float* bias,
                     float* y, int64_t ldy, void* scratch) {
  if (m0 >= m1 || n0 >= n1) return;
  if (w.scale_type == kE8m0)
    multiply_as<ROWS, kE8m0>(w, prepared, m0, m1, n0, n1, bias, y, ldy, scratch);
  else
    multiply_as<ROWS, kE4m3>(w, prepared, m0, m1, n0, n1, bias, y, ldy, scratch);
}

}  // namespace columns512
}  // namespace hotset::cpu
