// SPDX-License-Identifier: Apache-2.0
// What the two AVX-512 families of quantised GEMM share: scales and zero points of a row, and the transpose of 16 rows.
// Everything is static: each file keeps its own copy, compiled with its own flags.
#pragma once
// gcc 12 takes the undefined operands inside its own intrinsics for mistakes (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
#include <stdint.h>
#include <string.h>

#include "cpu_avx/quant_gemm_isa.h"
#include "cpu_avx/transpose_avx512.h"

#define HOTSET_INLINE static inline __attribute__((always_inline))

namespace hotset::cpu {
namespace avx512 {

HOTSET_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
HOTSET_INLINE int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }
// Bytes from row to row: an odd number of cache lines, so that the same place of several rows never falls into one cache set.
HOTSET_INLINE int64_t odd_lines(int64_t bytes) { return round_up(bytes, 64) | 64; }
HOTSET_INLINE __mmask16 first16(int64_t n) { return n >= 16 ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1); }
HOTSET_INLINE __mmask64 first64(int64_t n) { return n >= 64 ? ~(__mmask64)0 : n <= 0 ? 0 : ((__mmask64)1 << n) - 1; }

// log2 of the block; one block a row reads as a block past any k.
HOTSET_INLINE int block_shift(const QuantMatrix& w) { return w.block >= w.k ? 40 : __builtin_ctzll((uint64_t)w.block); }

// The blocks that up to 16 consecutive runs of (1 << run_shift) codes from code k0 on belong to: `count` blocks from `first`, and
// for each run the index of its block among them. Runs never cross a block.
struct Blocks {
  int64_t first;
  int count;
  __m512i index;
};

HOTSET_INLINE Blocks blocks_at(int64_t k0, int64_t k, int run_shift, int shift) {
  Blocks b;
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const int64_t end = smaller(k, k0 + ((int64_t)16 << run_shift));
  b.first = k0 >> shift;
  const int64_t last = (end - 1) >> shift;
  b.count = (int)(last - b.first + 1);
  // Runs past k take the last block: their activations are zero.
  const __m512i code = _mm512_add_epi32(_mm512_slli_epi32(lane, (unsigned)run_shift), _mm512_set1_epi32((int)(k0 - (b.first << shift))));
  const __m512i index = _mm512_srl_epi32(code, _mm_cvtsi32_si128(shift > 31 ? 31 : shift));
  b.index = _mm512_min_epi32(index, _mm512_set1_epi32(b.count - 1));
  return b;
}

// Scale of each run of `b` in row n.
HOTSET_INLINE __m512 scales_of(const QuantMatrix& w, int64_t n, const Blocks& b) {
  const int64_t at = n * w.scale_stride + b.first;
  const __mmask16 mask = first16(b.count);
  __m512 s;
  if (w.scale_type == 1) {
    const char* p = (const char*)w.scales + 4 * at;
    if (b.count == 1) {
      float one;
      memcpy(&one, p, 4);
      return _mm512_set1_ps(one);
    }
    s = _mm512_maskz_loadu_ps(mask, p);
  } else {
    const __m256i half = _mm256_maskz_loadu_epi16(mask, (const char*)w.scales + 2 * at);
    s = w.scale_type == 10 ? _mm512_cvtph_ps(half) : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  return _mm512_permutexvar_ps(b.index, s);
}

// Zero point of each run of `b` in row n; the matrix has zero points.
template <int BITS>
HOTSET_INLINE __m512i zeros_of(const QuantMatrix& w, int64_t n, const Blocks& b) {
  if (w.zero_stride == 0) return _mm512_set1_epi32((w.zero_points[n * BITS / 8] >> (n * BITS % 8)) & ((1 << BITS) - 1));
  const uint8_t* p = w.zero_points + n * w.zero_stride + b.first * BITS / 8;
  if (BITS == 8) {
    const __m128i bytes = _mm_maskz_loadu_epi8(first16(b.count), p);
    return _mm512_permutexvar_epi32(b.index, _mm512_cvtepu8_epi32(bytes));
  }
  // At most 16 codes, and either from the start of a byte or all in one byte.
  const int bit = (int)(b.first * BITS % 8);
  uint64_t codes = (uint64_t)_mm_cvtsi128_si64(_mm_maskz_loadu_epi8(first16((bit + b.count * BITS + 7) / 8), p)) >> bit;
  const __m512i position = BITS == 4 ? _mm512_slli_epi32(b.index, 2) : _mm512_slli_epi32(b.index, 1);
  const __m512i low = _mm512_srlv_epi32(_mm512_set1_epi32((int)codes), position);
  const __m512i high = _mm512_srlv_epi32(_mm512_set1_epi32((int)(codes >> 32)), _mm512_sub_epi32(position, _mm512_set1_epi32(32)));
  // srlv gives zero for counts of 32 and more, and a negative count is a large one.
  return _mm512_and_si512(_mm512_or_si512(low, high), _mm512_set1_epi32((1 << BITS) - 1));
}

// A product with few rows reads W once; R rows of W at a time share the loads of x. Short rows come side by side. Long ones come from R
// equal parts of the range of columns: long streams that the hardware reads ahead, where rows side by side start new ones with every
// page. The hardware stops at the end of a page, so every line is also asked for some bytes before its use, in the end those of the
// range that comes next: without that every range begins with a wait.
constexpr int64_t kShortRow = 512;  // bytes
constexpr int64_t kAhead = 8192;    // bytes of codes of all streams together

template <int R>
struct Streams {
  int64_t n0, n1, size, step, apart;  // row r of step j is n0 + step * j + apart * r
  struct Bytes {                      // of codes or scales
    const char *base, *next;
    int64_t row, ahead;
  } codes, scales;

  static inline __attribute__((always_inline)) Streams make(const QuantMatrix& w, int64_t n0, int64_t n1, bool side_by_side = false) {
    const int64_t size = (n1 - n0 + R - 1) / R;
    Streams s = {n0, n1, size, R, 1, {}, {}};
    if (w.row_bytes > kShortRow && !side_by_side) s.step = 1, s.apart = size;
    const int64_t ahead = s.apart == 1 ? kAhead : kAhead / R;
    s.codes = {(const char*)w.codes, (const char*)w.next_codes, w.row_bytes, ahead};
    const int64_t scale_row = w.scale_stride * (w.scale_type == 1 ? 4 : 2),
                  scale_ahead = ahead * scale_row / (w.row_bytes > 0 ? w.row_bytes : 1);
    s.scales = {(const char*)w.scales, (const char*)w.next_scales, scale_row, scale_ahead < scale_row ? scale_row : scale_ahead};
    return s;
  }
  // Rows past the end repeat the last one.
  inline __attribute__((always_inline)) int64_t row(int64_t j, int r) const { return smaller(n0 + step * j + apart * r, n1 - 1); }
  // What to ask for while row r of step j is read.
  inline __attribute__((always_inline)) const char* after(const Bytes& b, int64_t j, int r) const {
    const int64_t n = row(j, r), end = apart == 1 ? n1 : smaller(n1, n0 + apart * (r + 1));
    const char* at = b.base + n * b.row;
    const int64_t left = (end - n) * b.row;
    if (b.ahead < left) return at + b.ahead;
    return b.next ? b.next + (apart == 1 ? 0 : apart * r * b.row) + (b.ahead - left) : at;
  }
  inline __attribute__((always_inline)) void prefetch_scales(int64_t j) const {
    const int streams = apart == 1 ? 1 : R;
    for (int r = 0; r < streams; ++r) {
      const char* p = after(scales, j, r);
      for (int64_t at = 0; at < scales.row * (R / streams); at += 64) _mm_prefetch(p + at, _MM_HINT_T0);
    }
  }
  // Stores the sums of step j.
  inline __attribute__((always_inline)) void store(int64_t j, __m128 sums, const float* bias, float* y) const {
    const int64_t n = n0 + step * j;
    if (apart == 1) {
      const __mmask8 mask = (__mmask8)first16(smaller(R, n1 - n));
      if (bias) sums = _mm_add_ps(sums, _mm_maskz_loadu_ps(mask, bias + n));
      _mm_mask_storeu_ps(y + n, mask, sums);
      return;
    }
    float values[4];
    _mm_storeu_ps(values, sums);
    for (int r = 0; r < R; ++r)
      if (n + apart * r < n1) y[n + apart * r] = bias ? values[r] + bias[n + apart * r] : values[r];
  }
};

// The bytes of a panel that will be unpacked next: rows of W from n on, `codes` codes of each from k0 on. They lie far apart, so the
// hardware does not read them ahead; tiles of the present panel ask for them little by little.
struct PanelAhead {
  const uint8_t* codes;
  const char* scales;
  int64_t row_bytes, scale_row_bytes, code_lines, lines, line, rows;

  static inline __attribute__((always_inline)) PanelAhead make(const QuantMatrix& w, int64_t n, int64_t n1, int64_t k0, int64_t panel_k,
                                                               int64_t panel_n, int shift) {
    const int64_t k = smaller(panel_k, w.k - k0), size = w.scale_type == 1 ? 4 : 2;
    PanelAhead p;
    p.row_bytes = w.row_bytes;
    p.scale_row_bytes = w.scale_stride * size;
    p.codes = w.codes + n * w.row_bytes + k0 * w.bits / 8;
    p.scales = (const char*)w.scales + n * p.scale_row_bytes + (k0 >> shift) * size;
    p.code_lines = (k * w.bits / 8 + 63) / 64;
    p.lines = p.code_lines + ((((k - 1) >> shift) + 1) * size + 63) / 64;
    p.line = 0;
    p.rows = smaller(panel_n, n1 - n);
    return p;
  }
  // What follows the panel at (n, k0), along a row of panels or down a column of them; after the last one, what is multiplied next.
  static inline __attribute__((always_inline)) PanelAhead after(const QuantMatrix& w, int64_t n, int64_t n0, int64_t n1, int64_t k0,
                                                                int64_t panel_n, int64_t panel_k, bool along_k, int shift) {
    if (along_k) {
      k0 += panel_k;
      if (k0 >= w.k) n += panel_n, k0 = 0;
    } else {
      n += panel_n;
      if (n >= n1) n = n0, k0 += panel_k;
    }
    if (n < n1 && k0 < w.k) return make(w, n, n1, k0, panel_k, panel_n, shift);
    PanelAhead p = make(w, 0, w.next_codes ? panel_n : 0, 0, panel_k, panel_n, shift);
    p.codes = w.next_codes;
    p.scales = (const char*)w.next_scales;
    return p;
  }
  // Asks for up to `count` lines more. Many at once would keep the loads of a tile waiting.
  inline __attribute__((always_inline)) void advance(int64_t count) {
    for (; count > 0 && rows > 0; --count) {
      _mm_prefetch(line < code_lines ? (const char*)codes + 64 * line : scales + 64 * (line - code_lines), _MM_HINT_T0);
      if (++line < lines) continue;
      line = 0;
      --rows;
      codes += row_bytes;
      scales += scale_row_bytes;
    }
  }
};

// The sums of the lanes of four vectors.
HOTSET_INLINE __m128 sum4(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512d abd = _mm512_castps_pd(ab), cdd = _mm512_castps_pd(cd);
  const __m512 all = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(abd, cdd)), _mm512_castpd_ps(_mm512_unpackhi_pd(abd, cdd)));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// What a tile of a panel adds its sums to: 32 columns from y on.
struct Store {
  const float* bias;  // null: none
  float* y;
  int64_t ldy;
  __mmask16 mask[2];
  bool first, last;  // panel of the row
};

HOTSET_INLINE void prefetch_y(const Store& out, int64_t row) {
  __builtin_prefetch(out.y + row * out.ldy, 1);
  __builtin_prefetch(out.y + row * out.ldy + 16, 1);
}

HOTSET_INLINE void store_sum(const Store& out, int64_t row, int half, __m512 sum) {
  float* p = out.y + row * out.ldy + 16 * half;
  if (!out.first) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(out.mask[half], p));
  if (out.last && out.bias) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(out.mask[half], out.bias + 16 * half));
  _mm512_mask_storeu_ps(p, out.mask[half], sum);
}

}  // namespace avx512
}  // namespace hotset::cpu
