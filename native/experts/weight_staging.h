// SPDX-License-Identifier: Apache-2.0
// Rows of a weight matrix (columns of the product) out of forms that no kernel reads.
#pragma once
#include <cstdint>

#include "experts/weight_matrix.h"

namespace hotset::experts {

inline int64_t stream_bytes(int64_t codes, int bits) { return (codes * bits + 7) / 8; }

// Codes [first, first + count) of a stream as a stream of their own; 3-bit codes q become 4-bit codes q + 4.
void copy_codes(const uint8_t* src, int bits, int64_t first, int64_t count, uint8_t* dst);
// One 4-bit code a byte becomes two.
void pack_bytes_to_4(const uint8_t* src, int64_t count, uint8_t* dst);

// Rows of an fp4 or fp8 matrix as kernels take them. `codes` and the rest are those of the whole matrix.
cpu::MinifloatMatrix minifloats(const MatrixForm& form, const MatrixBytes& bytes);

}  // namespace hotset::experts
