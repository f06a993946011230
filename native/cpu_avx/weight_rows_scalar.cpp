// SPDX-License-Identifier: Apache-2.0
// Reference conversions of weight rows.
#include <stdint.h>

#include "cpu_avx/weight_rows_isa.h"

namespace hotset::cpu {
namespace {

// Code i of a stream of 3-bit codes, which may cross the border of a byte.
int code_3_at(const uint8_t* stream, int64_t i) {
  const int64_t bit = 3 * i;
  const int shift = static_cast<int>(bit & 7);
  unsigned v = static_cast<unsigned>(stream[bit >> 3]) >> shift;
  if (shift > 5) v |= static_cast<unsigned>(stream[(bit >> 3) + 1]) << (8 - shift);
  return static_cast<int>(v & 7);
}

}  // namespace

void widen_3_to_4_scalar(const uint8_t* src, int64_t count, uint8_t* dst) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8, src += 3, dst += 4) {  // 8 codes are 3 bytes
    const uint32_t v = src[0] | static_cast<uint32_t>(src[1]) << 8 | static_cast<uint32_t>(src[2]) << 16;
    for (int b = 0; b < 4; ++b) {
      const uint32_t pair = v >> (6 * b);
      dst[b] = static_cast<uint8_t>(((pair & 7) | (pair & 0x38) << 1) + 0x44);
    }
  }
  for (int64_t left = count - i, j = 0; j < left; j += 2) {
    const int low = code_3_at(src, j) + 4, high = j + 1 < left ? code_3_at(src, j + 1) + 4 : 0;
    dst[j / 2] = static_cast<uint8_t>(low | high << 4);
  }
}

void transpose_nibbles_scalar(const uint8_t* src, ptrdiff_t src_stride, int64_t columns, int64_t k, uint8_t* dst, ptrdiff_t dst_stride) {
  for (int64_t p = 0; p < k; p += 2) {
    const uint8_t *const first = src + p * src_stride, *const second = first + src_stride;
    for (int64_t c = 0; c < columns; c += 2) {
      const unsigned a = first[c / 2], b = p + 1 < k ? second[c / 2] : 0u;
      dst[c * dst_stride + p / 2] = static_cast<uint8_t>((a & 15) | (b & 15) << 4);
      dst[(c + 1) * dst_stride + p / 2] = static_cast<uint8_t>(a >> 4 | (b & 0xf0));
    }
  }
}

void weight_rows_scalar(WeightRows* rows) { *rows = {"scalar", widen_3_to_4_scalar, transpose_nibbles_scalar}; }

}  // namespace hotset::cpu
