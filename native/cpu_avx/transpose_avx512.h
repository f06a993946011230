// SPDX-License-Identifier: Apache-2.0
// The transpose of 16 vectors of 16 dwords, for AVX-512. Include <immintrin.h> first; static, compiled with the flags of each file.
#pragma once

namespace hotset::cpu {
namespace avx512 {

// r[i][j] becomes r[j][i].
static inline __attribute__((always_inline)) void transpose16(__m512i r[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 4) {
    const __m512i a = _mm512_unpacklo_epi32(r[i], r[i + 1]), b = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    const __m512i c = _mm512_unpacklo_epi32(r[i + 2], r[i + 3]), d = _mm512_unpackhi_epi32(r[i + 2], r[i + 3]);
    t[i] = _mm512_unpacklo_epi64(a, c);
    t[i + 1] = _mm512_unpackhi_epi64(a, c);
    t[i + 2] = _mm512_unpacklo_epi64(b, d);
    t[i + 3] = _mm512_unpackhi_epi64(b, d);
  }
  // t[4g + c] holds, in 128-bit lane q, column 4q + c of rows 4g ... 4g + 3.
  for (int c = 0; c < 4; ++c) {
    const __m512i a = _mm512_shuffle_i32x4(t[c], t[4 + c], 0x88), b = _mm512_shuffle_i32x4(t[c], t[4 + c], 0xdd);
    const __m512i d = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0x88), e = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0xdd);
    r[c] = _mm512_shuffle_i32x4(a, d, 0x88);
    r[8 + c] = _mm512_shuffle_i32x4(a, d, 0xdd);
    r[4 + c] = _mm512_shuffle_i32x4(b, e, 0x88);
    r[12 + c] = _mm512_shuffle_i32x4(b, e, 0xdd);
  }
}

}  // namespace avx512
}  // namespace hotset::cpu
