// SPDX-License-Identifier: Apache-2.0
// Few rows of x by block-quantised W with vpdpbusd, lanes along K: for int8 activations and, four times as wide, for exact ones.
// Everything is static: each file keeps its own copy.
//
// vpdpbusd: 16 lanes, each adds four products of an unsigned byte (code) and a signed byte (activation). Codes stay unsigned:
// sum (q * (code - middle)) = sum (q * code) - middle * sum (q), middle = 2^(BITS-1), and a lane's sum starts from the second term.
//
// A block of 32 activations is a scale d and integers q, x = q * d. They have DIGITS digits in base 256, each a signed byte:
//   1: int8 activations (quantize_i8)
//   4: exact activations (quantize_i32); integer sums of all digits are joined before they become a float
// A chunk is 64 bytes of a row of W: plane p of it, (bytes >> BITS * p) & mask, holds the codes of k = k0 + i * PLANES + p. Prepared
// activations have that order, so a code is never moved between lanes.
#pragma once
#include "cpu_avx/quant_gemm_avx512.h"
#include "cpu_avx/quantize_avx512.h"

namespace hotset::cpu {
namespace avx512 {

constexpr int64_t kFewRows = 8;    // most rows of x that this method takes, four at a time
constexpr int64_t kFewRowsN = 64;  // columns between the first and the second four

// ---- prepared rows ------------------------------------------------------------------------------------------------------------------

// One row: a line for the caller, then for each chunk of W 64 bytes per plane and digit, from the last digit to the first, and what the
// sums of lanes start from; then d of each group.
template <int BITS, int DIGITS>
struct FewRows {
  static constexpr int64_t kChunk = 512 / BITS;  // codes
  static constexpr int kPlanes = 8 / BITS;
  static constexpr int64_t kStart = 64 * kPlanes * DIGITS;
  static constexpr int64_t kChunkBytes = kStart + (DIGITS == 1 ? 64 : 128);

  int64_t chunks, groups;  // groups is padded to 16
  char* base;

  static inline __attribute__((always_inline)) FewRows make(const void* prepared, int64_t k) {
    return {(k + kChunk - 1) / kChunk, round_up((k + 31) / 32, 16), (char*)prepared};
  }
  inline __attribute__((always_inline)) int64_t stride() const { return odd_lines(64 + chunks * kChunkBytes + 4 * groups); }
  inline __attribute__((always_inline)) char* row(int64_t i) const { return base + i * stride(); }
  inline __attribute__((always_inline)) char* codes(int64_t i) const { return row(i) + 64; }
  inline __attribute__((always_inline)) float* d(int64_t i) const { return (float*)(codes(i) + chunks * kChunkBytes); }
};

// Sums of the 32 / BITS consecutive lanes of (a, b) that meet the codes of one dword of W: BITS of them.
template <int BITS>
HOTSET_INLINE __m512i sums_of_dwords(__m512i a, __m512i b) {
  const __m512i odd = _mm512_unpackhi_epi32(a, b), even = _mm512_unpacklo_epi32(a, b);
  __m512i sum = _mm512_add_epi32(even, odd);  // a a b b ...: a02 b02 a13 b13 of each 128 bits
  sum = _mm512_add_epi32(sum, _mm512_shuffle_epi32(sum, (_MM_PERM_ENUM)0x4e));
  if (BITS <= 4) sum = _mm512_add_epi32(sum, _mm512_shuffle_i32x4(sum, sum, 0xb1));
  if (BITS == 2) sum = _mm512_add_epi32(sum, _mm512_shuffle_i32x4(sum, sum, 0x4e));
  const __m512i order = BITS == 8   ? _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 0, 0, 0, 0, 0, 0, 0)
                        : BITS == 4 ? _mm512_setr_epi32(0, 8, 1, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
                                    : _mm512_setr_epi32(0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  return _mm512_permutexvar_epi32(order, sum);
}

// What the lanes of a group start from: -middle * sum of q. Of four digits that is high * 2^24 + low.
template <int BITS, int DIGITS>
HOTSET_INLINE void store_start(char* start, __m512i a, __m512i b) {
  constexpr __mmask16 kLanes = (1 << BITS) - 1;
  const __m512i zero = _mm512_setzero_si512();
  if (DIGITS == 1) {
    const __m512i sum = _mm512_slli_epi32(sums_of_dwords<BITS>(a, b), BITS - 1);
    _mm512_mask_storeu_epi32(start, kLanes, _mm512_sub_epi32(zero, sum));
    return;
  }
  // q = upper * 2^16 + lower, and 16 times 2^16 is far from the end of a lane.
  const __m512i upper = sums_of_dwords<BITS>(_mm512_srai_epi32(a, 16), _mm512_srai_epi32(b, 16));
  const __m512i half = _mm512_set1_epi32(0xffff);
  const __m512i lower = sums_of_dwords<BITS>(_mm512_and_si512(a, half), _mm512_and_si512(b, half));
  const __m512i up = _mm512_sub_epi32(zero, _mm512_slli_epi32(upper, BITS - 1));
  const __m512i rest = _mm512_slli_epi32(_mm512_and_si512(up, _mm512_set1_epi32(255)), 16);
  _mm512_mask_storeu_epi32(start, kLanes, _mm512_srai_epi32(up, 8));
  _mm512_mask_storeu_epi32(start + 64, kLanes, _mm512_sub_epi32(rest, _mm512_slli_epi32(lower, BITS - 1)));
}

// Stores 16 dwords that belong to one plane (two planes of 2-bit codes), digit by digit: digit j at place + 64 * (DIGITS - 1 - j).
template <int BITS, int DIGITS>
HOTSET_INLINE void store_digits(char* place, __m512i q) {
  constexpr int kNextPlane = 64 * DIGITS;
  __m128i digits[DIGITS];
  if (DIGITS == 1) {
    digits[0] = _mm512_cvtepi32_epi8(q);
  } else {
    // Signed digits: those of q + 0x80808080 in base 256, less 128 each.
    const __m512i bias = _mm512_set1_epi8((char)0x80);
    q = _mm512_xor_si512(_mm512_add_epi32(q, bias), bias);
    const __m512i by_digit = _mm512_broadcast_i32x4(_mm_setr_epi8(3, 7, 11, 15, 2, 6, 10, 14, 1, 5, 9, 13, 0, 4, 8, 12));
    const __m512i join = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    q = _mm512_permutexvar_epi32(join, _mm512_shuffle_epi8(q, by_digit));
    digits[0] = _mm512_castsi512_si128(q);
    digits[DIGITS > 1 ? 1 : 0] = _mm512_extracti32x4_epi32(q, 1);
    digits[DIGITS > 1 ? 2 : 0] = _mm512_extracti32x4_epi32(q, 2);
    digits[DIGITS > 1 ? 3 : 0] = _mm512_extracti32x4_epi32(q, 3);
  }
  for (int j = 0; j < DIGITS; ++j, place += 64) {
    if (BITS == 2) {
      _mm_storel_epi64((__m128i*)place, digits[j]);
      _mm_storeh_pd((double*)(place + kNextPlane), _mm_castsi128_pd(digits[j]));
    } else {
      _mm_storeu_si128((__m128i*)place, digits[j]);
    }
  }
}

// The 32 integers q of group g of a row.
template <int BITS, int DIGITS>
HOTSET_INLINE void store_group(char* codes, int64_t g, __m512i a, __m512i b) {
  using Rows = FewRows<BITS, DIGITS>;
  char* chunk = codes + g / (16 / BITS) * Rows::kChunkBytes;
  const int64_t at = g % (16 / BITS);
  store_start<BITS, DIGITS>(chunk + Rows::kStart + 4 * BITS * at, a, b);
  if (BITS == 8) {
    store_digits<BITS, DIGITS>(chunk + 32 * at, a);
    store_digits<BITS, DIGITS>(chunk + 32 * at + 16, b);
    return;
  }
  // Planes of 16 codes, or pairs of planes of 8.
  const __m512i first = BITS == 4 ? _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)
                                  : _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(BITS == 4 ? 1 : 2));
  char* place = chunk + (BITS == 4 ? 16 : 8) * at;
  store_digits<BITS, DIGITS>(place, _mm512_permutex2var_epi32(a, first, b));
  store_digits<BITS, DIGITS>(place + 64 * DIGITS * (BITS == 4 ? 1 : 2), _mm512_permutex2var_epi32(a, second, b));
}

// Row i of `rows`; false when x has no such form (exact activations only), and what was written then has no meaning.
template <int BITS, int DIGITS>
static bool prepare_few(const FewRows<BITS, DIGITS>& rows, const float* x, int64_t k, int64_t i) {
  char* codes = rows.codes(i);
  float* d = rows.d(i);
  const int64_t groups = rows.chunks * (16 / BITS);
  for (int64_t g = groups; g < rows.groups; ++g) d[g] = 0;
  for (int64_t g = 0; g < groups; ++g) {
    float scale;
    Group group = load_group(x + g * 32, k - g * 32);
    if (DIGITS == 1)
      scale = quantize_i8(&group);
    else if (!quantize_i32(&group, &scale))
      return false;
    store_group<BITS, DIGITS>(codes, g, group.q[0], group.q[1]);
    d[g] = scale;
  }
  return true;
}

// ---- products -----------------------------------------------------------------------------------------------------------------------

// Plane p of 64 bytes of codes.
template <int BITS>
HOTSET_INLINE __m512i plane(__m512i bytes, int p) {
  if (BITS == 8) return bytes;
  if (p > 0) bytes = _mm512_srli_epi32(bytes, (unsigned)(BITS * p));
  return _mm512_and_si512(bytes, _mm512_set1_epi8((1 << BITS) - 1));
}

// Adds the products of one plane and digit of x to the sums of R rows of W.
template <int R, int PLANES>
HOTSET_INLINE void add_products(const __m512i planes[R][PLANES], int p, const char* x, __m512i sum[R]) {
  const __m512i digits = _mm512_load_si512(x);
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) sum[r] = _mm512_dpbusd_epi32(sum[r], planes[r][p], digits);
}

// Sums of q * (code - middle) of the 32 / BITS codes of each lane, for R rows of W and one chunk of x.
template <int BITS, int DIGITS, int R>
HOTSET_INLINE void dot_chunk(const __m512i planes[R][8 / BITS], const char* x, __m512 dot[R]) {
  constexpr int kPlanes = 8 / BITS, kPlaneBytes = 64 * DIGITS;
  const char* start = x + FewRows<BITS, DIGITS>::kStart;
  __m512i high[R], low[R];
  const __m512i first = _mm512_load_si512(start);
  for (int r = 0; r < R; ++r) high[r] = first;
#pragma GCC unroll 4
  for (int p = 0; p < kPlanes; ++p) add_products<R>(planes, p, x + kPlaneBytes * p, high);
  if (DIGITS == 1) {
    for (int r = 0; r < R; ++r) dot[r] = _mm512_cvtepi32_ps(high[r]);
    return;
  }
  for (int r = 0; r < R; ++r) {
    high[r] = _mm512_slli_epi32(high[r], 8);
    low[r] = _mm512_setzero_si512();
  }
#pragma GCC unroll 4
  for (int p = 0; p < kPlanes; ++p) {
    add_products<R>(planes, p, x + kPlaneBytes * p + 64, high);
    add_products<R>(planes, p, x + kPlaneBytes * p + 128, low);
  }
  for (int r = 0; r < R; ++r) low[r] = _mm512_slli_epi32(low[r], 8);
#pragma GCC unroll 4
  for (int p = 0; p < kPlanes; ++p) add_products<R>(planes, p, x + kPlaneBytes * p + 192, low);
  const __m512i last = _mm512_load_si512(start + 64);
  for (int r = 0; r < R; ++r) {
    const __m512 rest = _mm512_cvtepi32_ps(_mm512_add_epi32(low[r], last));
    dot[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(high[r]), _mm512_set1_ps(65536), rest);
  }
}

// The sums that dot_chunk starts from, as floats.
template <int BITS, int DIGITS>
HOTSET_INLINE __m512 start_of_chunk(const char* x) {
  const char* start = x + FewRows<BITS, DIGITS>::kStart;
  const __m512 high = _mm512_cvtepi32_ps(_mm512_load_si512(start));
  return DIGITS == 1 ? high : _mm512_fmadd_ps(high, _mm512_set1_ps(0x1p24f), _mm512_cvtepi32_ps(_mm512_load_si512(start + 64)));
}

// How the file has the codes of a row; load() gives those of a chunk as 64 bytes of raw codes. Of a partial chunk `left` codes exist.
struct RawCodes {
  static constexpr bool kTiled = false;
  template <int BITS>
  static constexpr int64_t kStep = 64;  // bytes from chunk to chunk
  template <int BITS>
  static inline __attribute__((always_inline)) const uint8_t* row(const QuantMatrix& w, int64_t n) {
    return w.codes + n * w.row_bytes;
  }
  template <int BITS, bool PARTIAL>
  static inline __attribute__((always_inline)) __m512i load(const uint8_t* p, int64_t left) {
    return PARTIAL ? _mm512_maskz_loadu_epi8(first64((left * BITS + 7) / 8), p) : _mm512_loadu_si512(p);
  }
};

// One chunk of R rows of W by MR rows of x; `index` spreads the scales of its groups over the lanes. offset: (zero - middle) / middle.
template <class CODES, int BITS, int DIGITS, int R, int MR, bool PARTIAL, bool ZEROS>
HOTSET_INLINE void few_rows_chunk(const uint8_t* const codes[R], const char* const after[R], int64_t at, int64_t left, const char* x,
                                  int64_t stride, __m512i index, const __m512 scale[R][MR], const __m512 offset[R], __m512 sum[R][MR]) {
  __m512i planes[R][8 / BITS];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    __m512i bytes = CODES::template load<BITS, PARTIAL>(codes[r] + at, left);
    __asm__("" : "+v"(bytes));  // one load; left alone, gcc puts one into every plane
    if (!PARTIAL) _mm_prefetch(after[r] + at, _MM_HINT_T0);
#pragma GCC unroll 4
    for (int p = 0; p < 8 / BITS; ++p) planes[r][p] = plane<BITS>(bytes, p);
  }
#pragma GCC unroll 4
  for (int m = 0; m < MR; ++m) {
    __m512 dot[R];
    dot_chunk<BITS, DIGITS, R>(planes, x + m * stride, dot);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      if (ZEROS) dot[r] = _mm512_fmadd_ps(_mm512_permutexvar_ps(index, offset[r]), start_of_chunk<BITS, DIGITS>(x + m * stride), dot[r]);
      sum[r][m] = _mm512_fmadd_ps(dot[r], _mm512_permutexvar_ps(index, scale[r][m]), sum[r][m]);
    }
  }
}

// Rows [i, i + MR) of x by columns [n0, n1).
template <class CODES, int BITS, int DIGITS, int R, int MR, bool ZEROS>
static void few_rows(const QuantMatrix& w, const FewRows<BITS, DIGITS>& rows, int64_t i, int64_t n0, int64_t n1, const float* bias,
                     float* y, int64_t ldy) {
  constexpr int64_t kChunkBytes = FewRows<BITS, DIGITS>::kChunkBytes, kChunk = 512 / BITS, kStep = CODES::template kStep<BITS>;
  const int shift = block_shift(w);
  const int64_t stride = rows.stride();
  const bool plain = shift == 5 && w.scale_type == 1;  // 16 float scales in a row, one a group
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __m512i index[BITS];
  for (int c = 0; c < BITS; ++c)
    index[c] = _mm512_add_epi32(_mm512_srli_epi32(lane, BITS == 8 ? 3 : BITS == 4 ? 2 : 1), _mm512_set1_epi32(16 / BITS * c));
  const auto streams = Streams<R>::make(w, n0, n1, CODES::kTiled);
  const int64_t tiles_ahead = R * BITS >= 16 && R * w.row_bytes <= 2 * kAhead ? R * w.row_bytes : kAhead / 2;
  for (int64_t j = 0; j < streams.size; ++j) {
    streams.prefetch_scales(j);
    __m512 sum[R][MR];
    int64_t row[R];
    const uint8_t* codes[R];
    const char* after[R];
    for (int r = 0; r < R; ++r) {
      row[r] = streams.row(j, r);
      codes[r] = CODES::template row<BITS>(w, row[r]);
      // Columns of a tile share its lines. Whole columns of tiles are followed by others that begin behind them.
      after[r] = CODES::kTiled ? (const char*)codes[r] + tiles_ahead + 128 * (r % (8 / BITS)) : streams.after(streams.codes, j, r);
      for (int m = 0; m < MR; ++m) sum[r][m] = _mm512_setzero_ps();
    }
    const char* x = rows.codes(i);
    for (int64_t k0 = 0; k0 < w.k; k0 += 512, x += BITS * kChunkBytes) {
      const bool full = w.k - k0 >= 512;
      const char* d = (const char*)(rows.d(i) + k0 / 32);
      Blocks blocks;
      if (!(plain && full) || ZEROS) blocks = blocks_at(k0, w.k, 5, shift);
      __m512 scale[R][MR], offset[R];
      for (int r = 0; r < R; ++r) {
        const __m512 s =
            plain && full ? _mm512_loadu_ps((const char*)w.scales + 4 * (row[r] * w.scale_stride + k0 / 32)) : scales_of(w, row[r], blocks);
        if (ZEROS) {
          const __m512 zero = _mm512_cvtepi32_ps(zeros_of<BITS>(w, row[r], blocks));
          offset[r] = _mm512_fmadd_ps(zero, _mm512_set1_ps(1.0f / (1 << (BITS - 1))), _mm512_set1_ps(-1));
        }
        for (int m = 0; m < MR; ++m) scale[r][m] = _mm512_mul_ps(s, _mm512_load_ps(d + m * stride));
      }
      if (full) {
#pragma GCC unroll 8
        for (int c = 0; c < BITS; ++c)
          few_rows_chunk<CODES, BITS, DIGITS, R, MR, false, ZEROS>(codes, after, kStep * c, kChunk, x + kChunkBytes * c, stride, index[c],
                                                                   scale, offset, sum);
        for (int r = 0; r < R; ++r) codes[r] += kStep * BITS, after[r] += kStep * BITS;
      } else {
        for (int c = 0; c < BITS; ++c) {
          const int64_t left = w.k - k0 - kChunk * c;
          if (left <= 0) break;
          if (left >= kChunk)
            few_rows_chunk<CODES, BITS, DIGITS, R, MR, false, ZEROS>(codes, after, kStep * c, kChunk, x + kChunkBytes * c, stride, index[c],
                                                                     scale, offset, sum);
          else
            few_rows_chunk<CODES, BITS, DIGITS, R, MR, true, ZEROS>(codes, after, kStep * c, left, x + kChunkBytes * c, stride, index[c],
                                                                    scale, offset, sum);
        }
      }
    }
    for (int m = 0; m < MR; ++m) {
      const __m128 sums = sum4(sum[0][m], sum[1][m], sum[R > 2 ? 2 : 0][m], sum[R > 2 ? 3 : 0][m]);
      streams.store(j, sums, bias, y + (i + m) * ldy);
    }
  }
}

template <class CODES, int BITS, int DIGITS, int R, int MR>
static void few_rows_any(const QuantMatrix& w, const FewRows<BITS, DIGITS>& rows, int64_t i, int64_t n0, int64_t n1, const float* bias,
                         float* y, int64_t ldy) {
  if (w.zero_points)
    few_rows<CODES, BITS, DIGITS, R, MR, true>(w, rows, i, n0, n1, bias, y, ldy);
  else
    few_rows<CODES, BITS, DIGITS, R, MR, false>(w, rows, i, n0, n1, bias, y, ldy);
}

// Rows [m0, m1), up to four at a time, by columns [n0, n1). One row meets as few streams of W as its own loads allow: those of int8
// activations are few, digits are worth sharing among four.
template <class CODES, int BITS, int DIGITS>
static void multiply_few(const QuantMatrix& w, const FewRows<BITS, DIGITS>& rows, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                         const float* bias, float* y, int64_t ldy) {
  for (int64_t i = m0; i < m1;) {
    const int64_t left = m1 - i, tile = left <= 4 ? left : left < 8 ? (left + 1) / 2 : 4;
    if (tile == 1) few_rows_any<CODES, BITS, DIGITS, DIGITS == 1 && !CODES::kTiled ? 2 : 4, 1>(w, rows, i, n0, n1, bias, y, ldy);
    if (tile == 2) few_rows_any<CODES, BITS, DIGITS, 4, 2>(w, rows, i, n0, n1, bias, y, ldy);
    if (tile == 3) few_rows_any<CODES, BITS, DIGITS, 2, 3>(w, rows, i, n0, n1, bias, y, ldy);
    if (tile == 4) few_rows_any<CODES, BITS, DIGITS, 2, 4>(w, rows, i, n0, n1, bias, y, ldy);
    i += tile;
  }
}

// What a prepared row of exact activations is, at its beginning; floats lie in the form of the AVX-512 table.
enum Form : int32_t { kFixedPoint, kFloats };

// A QuantGemmPacked: false, and nothing done, when a row is not in fixed point.
template <class CODES, int BITS, int DIGITS>
static bool multiply_packed(const QuantMatrix& w, const void* prepared, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const float* bias,
                            float* y, int64_t ldy) {
  const auto rows = FewRows<BITS, DIGITS>::make(prepared, w.k);
  for (int64_t i = m0; DIGITS > 1 && i < m1; ++i)
    if (*(const Form*)rows.row(i) != kFixedPoint) return false;
  const int64_t n_step = m1 - m0 <= 4 ? n1 - n0 : kFewRowsN;  // as multiply() of raw codes
  for (int64_t n = n0; n < n1; n += n_step) multiply_few<CODES>(w, rows, m0, m1, n, smaller(n1, n + n_step), bias, y, ldy);
  return true;
}

}  // namespace avx512
}  // namespace hotset::cpu
