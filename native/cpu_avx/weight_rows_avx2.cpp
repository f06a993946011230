// SPDX-License-Identifier: Apache-2.0
// Conversions of weight rows for AVX2.
#include <immintrin.h>
#include <stdint.h>

#include "cpu_avx/weight_rows_isa.h"

namespace hotset::cpu {
namespace {

inline __m256i load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

// 24 bytes, 64 codes a step: each half of a 32-bit lane gets the two bytes with its two pairs of codes, 6 bits each, a pair ends up
// in each byte.
void widen_3_to_4(const uint8_t* src, int64_t count, uint8_t* dst) {
  const __m256i spread = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 1, 2, 3, 4, 4, 5, 6, 7, 7, 8, 9, 10, 10, 11));
  const __m256i align = _mm256_set1_epi32(0x00010010);  // the first pairs begin 4 bits lower
  const __m256i middle = _mm256_set1_epi8(0x44);
  int64_t i = 0;
  // 28 bytes are read for 24.
  for (; i + 80 <= count; i += 64, src += 24, dst += 32) {
    const __m256i bytes = _mm256_set_m128i(_mm_loadu_si128(reinterpret_cast<const __m128i*>(src + 12)),
                                           _mm_loadu_si128(reinterpret_cast<const __m128i*>(src)));
    const __m256i fields = _mm256_mullo_epi16(_mm256_shuffle_epi8(bytes, spread), align);  // pairs at bits 4 and 10
    const __m256i low = _mm256_and_si256(_mm256_srli_epi16(fields, 4), _mm256_set1_epi16(0x003f));
    const __m256i pairs = _mm256_or_si256(low, _mm256_and_si256(_mm256_srli_epi16(fields, 2), _mm256_set1_epi16(0x3f00)));
    const __m256i even = _mm256_and_si256(pairs, _mm256_set1_epi8(0x07)), odd = _mm256_and_si256(pairs, _mm256_set1_epi8(0x38));
    const __m256i codes = _mm256_add_epi8(_mm256_add_epi8(even, _mm256_add_epi8(odd, odd)), middle);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst), codes);
  }
  widen_3_to_4_scalar(src, count - i, dst);
}

// 16 rows of 16 bytes in each 128-bit lane: r[i] byte j becomes r[j] byte i.
inline void transpose16(__m256i r[16]) {
#pragma GCC unroll 4
  for (int round = 0; round < 4; ++round) {
    __m256i t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      t[2 * i] = _mm256_unpacklo_epi8(r[i], r[i + 8]);
      t[2 * i + 1] = _mm256_unpackhi_epi8(r[i], r[i + 8]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) r[i] = t[i];
  }
}

// Tiles of 32 k and 64 columns: byte j of a pair of rows joined is a byte of column 2 j, and of column 2 j + 1.
void transpose_nibbles(const uint8_t* src, ptrdiff_t src_stride, int64_t columns, int64_t k, uint8_t* dst, ptrdiff_t dst_stride) {
  const __m256i low = _mm256_set1_epi8(15);
  const int64_t full_columns = columns & ~int64_t{63}, full_k = k & ~int64_t{31};
  for (int64_t p = 0; p < full_k; p += 32) {
    for (int64_t c = 0; c < full_columns; c += 64) {
      const uint8_t* const tile = src + p * src_stride + c / 2;
      for (int odd = 0; odd < 2; ++odd) {
        __m256i r[16];
        for (int i = 0; i < 16; ++i) {
          const __m256i first = load(tile + 2 * i * src_stride), second = load(tile + (2 * i + 1) * src_stride);
          r[i] = odd ? _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(first, 4), low), _mm256_andnot_si256(low, second))
                     : _mm256_or_si256(_mm256_and_si256(first, low), _mm256_andnot_si256(low, _mm256_slli_epi16(second, 4)));
        }
        transpose16(r);
        for (int i = 0; i < 16; ++i) {
          uint8_t* const row = dst + (c + 2 * i + odd) * dst_stride + p / 2;
          _mm_storeu_si128(reinterpret_cast<__m128i*>(row), _mm256_castsi256_si128(r[i]));
          _mm_storeu_si128(reinterpret_cast<__m128i*>(row + 32 * dst_stride), _mm256_extracti128_si256(r[i], 1));
        }
      }
    }
  }
  if (full_columns < columns)
    transpose_nibbles_scalar(src + full_columns / 2, src_stride, columns - full_columns, k, dst + full_columns * dst_stride, dst_stride);
  if (full_k < k) transpose_nibbles_scalar(src + full_k * src_stride, src_stride, full_columns, k - full_k, dst + full_k / 2, dst_stride);
}

}  // namespace

void weight_rows_avx2(WeightRows* rows) { *rows = {"avx2", widen_3_to_4, transpose_nibbles}; }

}  // namespace hotset::cpu
