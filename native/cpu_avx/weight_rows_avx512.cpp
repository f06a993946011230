// SPDX-License-Identifier: Apache-2.0
// Conversions of weight rows for AVX-512.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // gcc bug 105593: its own intrinsics
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#include <stdint.h>

#include "cpu_avx/weight_rows_isa.h"

namespace hotset::cpu {
namespace {

inline __mmask64 first64(int64_t n) { return n >= 64 ? ~static_cast<__mmask64>(0) : n <= 0 ? 0 : (static_cast<__mmask64>(1) << n) - 1; }

// 16 rows of 16 bytes in each 128-bit lane: r[i] byte j becomes r[j] byte i.
inline void transpose16(__m512i r[16]) {
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

// A tile of 32 k and 128 columns, of which `rows` and `columns` exist.
inline void transpose_tile(const uint8_t* src, ptrdiff_t src_stride, int64_t columns, int64_t rows, uint8_t* dst, ptrdiff_t dst_stride) {
  const __m512i low = _mm512_set1_epi8(15), high = _mm512_set1_epi8(static_cast<char>(0xf0));
  const __mmask64 mask = first64(columns / 2);
  __m512i even[16], odd[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    const __m512i first = 2 * i < rows ? _mm512_maskz_loadu_epi8(mask, src + 2 * i * src_stride) : _mm512_setzero_si512();
    const __m512i second = 2 * i + 1 < rows ? _mm512_maskz_loadu_epi8(mask, src + (2 * i + 1) * src_stride) : _mm512_setzero_si512();
    // a & low | b & ~low
    even[i] = _mm512_ternarylogic_epi32(low, first, _mm512_slli_epi16(second, 4), 0xca);
    odd[i] = _mm512_ternarylogic_epi32(high, second, _mm512_srli_epi16(first, 4), 0xca);
  }
  transpose16(even);
  transpose16(odd);
  const __mmask16 bytes = rows >= 32 ? 0xffff : static_cast<__mmask16>((1u << ((rows + 1) / 2)) - 1);
  if (columns >= 128 && bytes == 0xffff) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      uint8_t* const row = dst + 2 * i * dst_stride;
      for (int parity = 0; parity < 2; ++parity) {
        const __m512i v = parity ? odd[i] : even[i];
        uint8_t* const at = row + parity * dst_stride;
        _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm512_castsi512_si128(v));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(at + 32 * dst_stride), _mm512_extracti32x4_epi32(v, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(at + 64 * dst_stride), _mm512_extracti32x4_epi32(v, 2));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(at + 96 * dst_stride), _mm512_extracti32x4_epi32(v, 3));
      }
    }
    return;
  }
  alignas(64) uint8_t lanes[64];
  for (int c = 0; c < columns; ++c) {
    _mm512_store_si512(lanes, c % 2 ? odd[c / 2 % 16] : even[c / 2 % 16]);
    _mm_mask_storeu_epi8(dst + c * dst_stride, bytes, _mm_load_si128(reinterpret_cast<const __m128i*>(lanes + 16 * (c / 32))));
  }
}

void transpose_nibbles(const uint8_t* src, ptrdiff_t src_stride, int64_t columns, int64_t k, uint8_t* dst, ptrdiff_t dst_stride) {
  for (int64_t p = 0; p < k; p += 32) {
    for (int64_t c = 0; c < columns; c += 128) {
      for (int64_t i = 64; i < 96; ++i) _mm_prefetch(reinterpret_cast<const char*>(src + (p + i) * src_stride + c / 2), _MM_HINT_T0);
      const int64_t width = columns - c < 128 ? columns - c : 128;
      transpose_tile(src + p * src_stride + c / 2, src_stride, width, k - p, dst + c * dst_stride + p / 2, dst_stride);
    }
  }
}

}  // namespace

void weight_rows_avx512(WeightRows* rows) {
  rows->name = "avx512";
  rows->transpose_nibbles = transpose_nibbles;
}

}  // namespace hotset::cpu
