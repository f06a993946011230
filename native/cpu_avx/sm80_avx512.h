// SPDX-License-Identifier: Apache-2.0
// Codes of the SM80 prepacked layout (formats/sm80.h) in the order of raw rows, in registers. Everything is static.
#pragma once
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // gcc bug 105593: its own intrinsics
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#include <stdint.h>

namespace hotset::cpu {
namespace sm80_avx512 {

// Exchanges in each dword the bits under mask with those `SHIFT` above them.
template <int SHIFT>
static inline __m512i exchange(__m512i x, int mask) {
  const __m512i t = _mm512_ternarylogic_epi32(x, _mm512_srli_epi32(x, SHIFT), _mm512_set1_epi32(mask), 0x28);  // (x ^ y) & m
  return _mm512_ternarylogic_epi32(x, t, _mm512_slli_epi32(t, SHIFT), 0x96);
}

// Word u, half i, slots a: code 8 a + 2 u + i. Dword 2 b + c of a lane gets the bytes (u, i) = (2 b + j / 2, j mod 2), which hold the slots
// 4 c + s; transposing these 4 x 4 fields makes byte s the byte 2 (4 c + s) + b of the row.
static inline __m512i raw_2(__m512i x) {
  const __m512i gather = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
  const __m512i spread = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
  x = exchange<6>(_mm512_shuffle_epi8(x, gather), 0x00cc00cc);
  return _mm512_shuffle_epi8(exchange<12>(x, 0x0000f0f0), spread);
}

// As in sm80_rows_avx2.cpp.
static inline __m512i raw_4(__m512i x) {
  const __m512i low_bytes = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 0, 4, 8, 12, 1, 5, 9, 13, 1, 5, 9, 13));
  const __m512i high_bytes = _mm512_broadcast_i32x4(_mm_setr_epi8(2, 6, 10, 14, 2, 6, 10, 14, 3, 7, 11, 15, 3, 7, 11, 15));
  const __m512i low = _mm512_set1_epi8(15);
  const __m512i even_k = _mm512_shuffle_epi8(x, low_bytes), odd_k = _mm512_shuffle_epi8(x, high_bytes);
  // Bits of the low half byte from one, the others from the other.
  const __m512i even_s = _mm512_ternarylogic_epi32(low, even_k, _mm512_slli_epi16(odd_k, 4), 0xca);
  const __m512i odd_s = _mm512_ternarylogic_epi32(low, _mm512_srli_epi16(even_k, 4), odd_k, 0xca);
  return _mm512_mask_blend_epi32(0xaaaa, even_s, odd_s);
}

static inline __m512i raw_8(__m512i x) {
  return _mm512_shuffle_epi8(x, _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15)));
}

template <int BITS>
static inline __m512i raw(__m512i x) {
  return BITS == 2 ? raw_2(x) : BITS == 4 ? raw_4(x) : raw_8(x);
}

static inline __m128i load(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

// 64 bytes of a row: its parts in 4, 2 or 1 consecutive tiles of 128 bytes.
template <int BITS>
static inline __m512i load_column(const uint8_t* p) {
  if (BITS == 8) return _mm512_loadu_si512(p);
  if (BITS == 4) {
    const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_inserti64x4(_mm512_castsi256_si512(first), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 128)), 1);
  }
  __m512i x = _mm512_castsi128_si512(load(p));
  x = _mm512_inserti32x4(x, load(p + 128), 1);
  x = _mm512_inserti32x4(x, load(p + 256), 2);
  return _mm512_inserti32x4(x, load(p + 384), 3);
}

}  // namespace sm80_avx512
}  // namespace hotset::cpu
