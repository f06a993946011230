// SPDX-License-Identifier: Apache-2.0
// Rows of a weight matrix (columns of the product) out of forms that no kernel reads.
#pragma once
#include <cstdint>

#include "experts/weight_matrix.h"

namespace hotset::experts {

inline int64_t stream_bytes(int64_t codes, int bits) { return (codes * bits + 7) / 8; }

// 3-bit codes q become 4-bit codes q + 4: the middle moves from 4 to 8 with them.
void widen_3_to_4(const uint8_t* src, int64_t count, uint8_t* dst);
// Codes [first, first + count) of a stream as a stream of their own; 3-bit codes are widened as above.
void copy_codes(const uint8_t* src, int bits, int64_t first, int64_t count, uint8_t* dst);
// One 4-bit code a byte becomes two.
void pack_bytes_to_4(const uint8_t* src, int64_t count, uint8_t* dst);

// Rows [n0, n1) of an fp4 matrix as 8-bit codes [n][k], 128 + twice the value, and float32 scales [n][k / block] that undo the
// doubling. n0 is even.
void fp4_to_codes(const MatrixForm& form, const MatrixBytes& bytes, int64_t n0, int64_t n1, uint8_t* codes, float* scales);
// Rows [n0, n1) of an fp8 matrix as float32 [n][k], scales applied.
void fp8_to_floats(const MatrixForm& form, const MatrixBytes& bytes, int64_t n0, int64_t n1, float* out);

}  // namespace hotset::experts
