// SPDX-License-Identifier: Apache-2.0
// Raw rows out of the SM80 prepacked layout with AVX2: four words of a column, in a 128-bit lane, are 16 bytes of its row.
#include <immintrin.h>
#include <stdint.h>

#include "cpu_avx/sm80_rows_isa.h"

namespace hotset::cpu {
namespace {

inline __m256i load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline void store(uint8_t* p, __m256i v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }

// Word u holds the codes 2 u + 8 s in its low half and 2 u + 1 + 8 s in its high half, s = 0 ... 3. Byte 4 s + u of the row is
// the pair: nibble s of both halves.
inline __m256i pairs_of_4(__m256i x) {
  const __m256i low_bytes = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 0, 4, 8, 12, 1, 5, 9, 13, 1, 5, 9, 13));
  const __m256i high_bytes = _mm256_broadcastsi128_si256(_mm_setr_epi8(2, 6, 10, 14, 2, 6, 10, 14, 3, 7, 11, 15, 3, 7, 11, 15));
  const __m256i low = _mm256_set1_epi8(0x0f), high = _mm256_set1_epi8(static_cast<char>(0xf0));
  const __m256i even_k = _mm256_shuffle_epi8(x, low_bytes), odd_k = _mm256_shuffle_epi8(x, high_bytes);
  const __m256i even_s = _mm256_or_si256(_mm256_and_si256(even_k, low), _mm256_and_si256(_mm256_slli_epi16(odd_k, 4), high));
  const __m256i odd_s = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(even_k, 4), low), _mm256_and_si256(odd_k, high));
  return _mm256_blend_epi32(even_s, odd_s, 0xaa);
}

// Exchanges in each dword the bits under mask with those `SHIFT` above them.
template <int SHIFT>
inline __m256i exchange(__m256i x, int mask) {
  const __m256i t = _mm256_and_si256(_mm256_xor_si256(x, _mm256_srli_epi32(x, SHIFT)), _mm256_set1_epi32(mask));
  return _mm256_xor_si256(x, _mm256_xor_si256(t, _mm256_slli_epi32(t, SHIFT)));
}

// Word u, half i, slots a: code 8 a + 2 u + i. Dword 2 b + c of a lane gets the bytes (u, i) = (2 b + j / 2, j mod 2), which hold the slots
// 4 c + s; transposing these 4 x 4 fields makes byte s the byte 2 (4 c + s) + b of the row.
inline __m256i raw_2(__m256i x) {
  const __m256i gather = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
  const __m256i spread = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
  x = exchange<6>(_mm256_shuffle_epi8(x, gather), 0x00cc00cc);
  return _mm256_shuffle_epi8(exchange<12>(x, 0x0000f0f0), spread);
}

}  // namespace

void sm80_rows_2_avx2(const uint8_t* packed, int64_t k, int64_t n0, int64_t n1, uint8_t* raw, int64_t row_bytes) {
  for (int64_t n = n0; n < n1; n += 8, raw += 8 * row_bytes) {
    const uint8_t* tile = packed + n * (k / 4);
    int64_t t = 0;
    for (; t + 2 <= k / 64; t += 2, tile += 256) {
      for (int c = 0; c < 8; ++c) {
        const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(tile + 16 * c));
        const __m128i second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(tile + 128 + 16 * c));
        store(raw + c * row_bytes + t * 16, raw_2(_mm256_set_m128i(second, first)));
      }
    }
    for (int c = 0; c < 8 && t < k / 64; ++c) {
      const __m128i last = _mm_loadu_si128(reinterpret_cast<const __m128i*>(tile + 16 * c));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(raw + c * row_bytes + t * 16),
                       _mm256_castsi256_si128(raw_2(_mm256_castsi128_si256(last))));
    }
  }
}

void sm80_rows_4_avx2(const uint8_t* packed, int64_t k, int64_t n0, int64_t n1, uint8_t* raw, int64_t row_bytes) {
  for (int64_t n = n0; n < n1; n += 4, packed += 2 * k, raw += 4 * row_bytes) {
    const uint8_t* tile = packed + n0 * (k / 2);
    for (int64_t t = 0; t < k / 64; ++t, tile += 128)
      for (int c = 0; c < 4; ++c) store(raw + c * row_bytes + t * 32, pairs_of_4(load(tile + c * 32)));
  }
}

void sm80_rows_8_avx2(const uint8_t* packed, int64_t k, int64_t n0, int64_t n1, uint8_t* raw, int64_t row_bytes) {
  // Bytes 0 and 2 of word u are the codes 2 u and 2 u + 1, bytes 1 and 3 the codes 8 later.
  const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
  for (int64_t n = n0; n < n1; n += 2, packed += 2 * k, raw += 2 * row_bytes) {
    const uint8_t* tile = packed + n0 * k;
    for (int64_t t = 0; t < k / 64; ++t, tile += 128) {
      for (int c = 0; c < 2; ++c) {
        uint8_t* const row = raw + c * row_bytes + t * 64;
        store(row, _mm256_shuffle_epi8(load(tile + c * 64), order));
        store(row + 32, _mm256_shuffle_epi8(load(tile + c * 64 + 32), order));
      }
    }
  }
}

}  // namespace hotset::cpu
