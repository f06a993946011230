// SPDX-License-Identifier: Apache-2.0
// Conversions of weight rows for NEON.
#include <arm_neon.h>
#include <stdint.h>

#include "cpu_avx/weight_rows_isa.h"

namespace hotset::cpu {
namespace {

// 12 bytes, 32 codes a step: each 16-bit lane gets the two bytes around a pair of codes (6 bits) and shifts it down.
void widen_3_to_4(const uint8_t* src, int64_t count, uint8_t* dst) {
  const uint8_t first_bytes[16] = {0, 1, 0, 1, 1, 2, 2, 3, 3, 4, 3, 4, 4, 5, 5, 6},
                last_bytes[16] = {6, 7, 6, 7, 7, 8, 8, 9, 9, 10, 9, 10, 10, 11, 11, 11};
  const int16_t shifts[8] = {0, -6, -4, -2, 0, -6, -4, -2};
  const uint8x16_t first = vld1q_u8(first_bytes), last = vld1q_u8(last_bytes);
  const int16x8_t shift = vld1q_s16(shifts);
  int64_t i = 0;
  for (; i + 43 <= count; i += 32, src += 12, dst += 16) {  // 16 bytes are read for 12
    const uint8x16_t bytes = vld1q_u8(src);
    const uint16x8_t a = vshlq_u16(vreinterpretq_u16_u8(vqtbl1q_u8(bytes, first)), shift);
    const uint16x8_t b = vshlq_u16(vreinterpretq_u16_u8(vqtbl1q_u8(bytes, last)), shift);
    const uint8x16_t pairs = vuzp1q_u8(vreinterpretq_u8_u16(a), vreinterpretq_u8_u16(b));
    const uint8x16_t low = vandq_u8(pairs, vdupq_n_u8(7)), high = vandq_u8(vshlq_n_u8(pairs, 1), vdupq_n_u8(0x70));
    vst1q_u8(dst, vaddq_u8(vorrq_u8(low, high), vdupq_n_u8(0x44)));
  }
  widen_3_to_4_scalar(src, count - i, dst);
}

// 16 rows of 16 bytes: r[i] byte j becomes r[j] byte i.
inline void transpose_bytes(uint8x16_t r[16]) {
  for (int round = 0; round < 4; ++round) {
    uint8x16_t t[16];
    for (int i = 0; i < 8; ++i) {
      t[2 * i] = vzip1q_u8(r[i], r[i + 8]);
      t[2 * i + 1] = vzip2q_u8(r[i], r[i + 8]);
    }
    for (int i = 0; i < 16; ++i) r[i] = t[i];
  }
}

// 32 columns of 32 k at a time: two k become bytes of the even and of the odd columns, which are then transposed.
void transpose_nibbles(const uint8_t* src, ptrdiff_t src_stride, int64_t columns, int64_t k, uint8_t* dst, ptrdiff_t dst_stride) {
  const int64_t whole_k = k / 32 * 32, whole_columns = columns / 32 * 32;
  for (int64_t c = 0; c < whole_columns; c += 32) {
    for (int64_t p = 0; p < whole_k; p += 32) {
      uint8x16_t even[16], odd[16];
      for (int i = 0; i < 16; ++i) {
        const uint8_t* const at = src + (p + 2 * i) * src_stride + c / 2;
        const uint8x16_t a = vld1q_u8(at), b = vld1q_u8(at + src_stride);
        even[i] = vsliq_n_u8(a, b, 4);
        odd[i] = vsriq_n_u8(b, a, 4);
      }
      transpose_bytes(even);
      transpose_bytes(odd);
      for (int i = 0; i < 16; ++i) {
        vst1q_u8(dst + (c + 2 * i) * dst_stride + p / 2, even[i]);
        vst1q_u8(dst + (c + 2 * i + 1) * dst_stride + p / 2, odd[i]);
      }
    }
  }
  if (whole_k < k)
    transpose_nibbles_scalar(src + whole_k * src_stride, src_stride, whole_columns, k - whole_k, dst + whole_k / 2, dst_stride);
  if (whole_columns < columns)
    transpose_nibbles_scalar(src + whole_columns / 2, src_stride, columns - whole_columns, k, dst + whole_columns * dst_stride, dst_stride);
}

}  // namespace

void weight_rows_neon(WeightRows* rows) { *rows = {"neon", widen_3_to_4, transpose_nibbles}; }

}  // namespace hotset::cpu
