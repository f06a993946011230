// SPDX-License-Identifier: Apache-2.0
// Rows of weights out of forms that no kernel of a product reads, with the same result on every instruction set.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace hotset::cpu {

// Nothing is aligned; nothing is read or written past what `count`, `columns` and `k` say.
struct WeightRows {
  const char* name;
  // A stream of 3-bit codes q becomes one of 4-bit codes q + 4: the middle moves from 4 to 8 with them. The spare half byte is 0.
  void (*widen_3_to_4)(const uint8_t* src, int64_t count, uint8_t* dst);
  // Half bytes [k][columns], even columns low, become [columns][k], even k low. Row p of src is at src + p * src_stride, row c of dst
  // at dst + c * dst_stride. `columns` is even; with an odd k the last half byte of a row is 0.
  void (*transpose_nibbles)(const uint8_t* src, ptrdiff_t src_stride, int64_t columns, int64_t k, uint8_t* dst, ptrdiff_t dst_stride);
};

// The fastest of this CPU.
const WeightRows& weight_rows();
// All that this CPU can run, the reference first; null past the end.
const WeightRows* weight_rows_at(int i);

}  // namespace hotset::cpu
