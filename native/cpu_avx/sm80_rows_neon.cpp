// SPDX-License-Identifier: Apache-2.0
// Raw rows out of the SM80 prepacked layout with NEON: four words of a column are 16 bytes of its row (see the AVX2 version).
#include <arm_neon.h>
#include <stdint.h>

#include "cpu_avx/sm80_rows_isa.h"

namespace hotset::cpu {
namespace {

// Word u holds the codes 2 u + 8 s in its low half and 2 u + 1 + 8 s in its high half, s = 0 ... 3. Byte 4 s + u of the row is
// the pair: nibble s of both halves.
inline uint8x16_t pairs_of_4(uint8x16_t x) {
  const uint8_t low_bytes[16] = {0, 4, 8, 12, 0, 4, 8, 12, 1, 5, 9, 13, 1, 5, 9, 13};
  const uint8_t high_bytes[16] = {2, 6, 10, 14, 2, 6, 10, 14, 3, 7, 11, 15, 3, 7, 11, 15};
  const uint8x16_t even_k = vqtbl1q_u8(x, vld1q_u8(low_bytes)), odd_k = vqtbl1q_u8(x, vld1q_u8(high_bytes));
  const uint8x16_t even_s = vsliq_n_u8(even_k, odd_k, 4), odd_s = vsriq_n_u8(odd_k, even_k, 4);
  return vbslq_u8(vreinterpretq_u8_u64(vdupq_n_u64(0xffffffffu)), even_s, odd_s);
}

}  // namespace

void sm80_rows_4_neon(const uint8_t* packed, int64_t k, int64_t n0, int64_t n1, uint8_t* raw, int64_t row_bytes) {
  for (int64_t n = n0; n < n1; n += 4, packed += 2 * k, raw += 4 * row_bytes) {
    const uint8_t* tile = packed + n0 * (k / 2);
    for (int64_t t = 0; t < k / 64; ++t, tile += 128)
      for (int c = 0; c < 4; ++c)
        for (int h = 0; h < 32; h += 16) vst1q_u8(raw + c * row_bytes + t * 32 + h, pairs_of_4(vld1q_u8(tile + c * 32 + h)));
  }
}

void sm80_rows_8_neon(const uint8_t* packed, int64_t k, int64_t n0, int64_t n1, uint8_t* raw, int64_t row_bytes) {
  // Bytes 0 and 2 of word u are the codes 2 u and 2 u + 1, bytes 1 and 3 the codes 8 later.
  for (int64_t n = n0; n < n1; n += 2, packed += 2 * k, raw += 2 * row_bytes) {
    const uint8_t* tile = packed + n0 * k;
    for (int64_t t = 0; t < k / 64; ++t, tile += 128) {
      for (int c = 0; c < 2; ++c) {
        for (int h = 0; h < 64; h += 16) {
          const uint8x16_t x = vld1q_u8(tile + c * 64 + h);
          vst1q_u8(raw + c * row_bytes + t * 64 + h, vcombine_u8(vget_low_u8(vuzp1q_u8(x, x)), vget_low_u8(vuzp2q_u8(x, x))));
        }
      }
    }
  }
}

}  // namespace hotset::cpu
