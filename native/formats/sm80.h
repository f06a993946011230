// SPDX-License-Identifier: Apache-2.0
// The SM80 prepacked layout of 2-, 4- and 8-bit codes (the tiled stream that tensor-core kernels read) and its way back to raw rows.
//
// e = 32 / bits codes a 32-bit word, c = 16 / bits columns n interleaved. A tile is 64 codes along k of c columns: 128 bytes, column
// after column, v = 64 / e words each. Word u, slot s (slot 0 = low bits) of tile t holds, with P = 4 * e and h = e / 2,
//   k = 64 t + P (u / 4) + 2 (u mod 4) + 8 (s mod h) + s / h
// and tile t of columns n ... n + c - 1 starts at word n * k_total / e + t * c * v, where c divides n.
#pragma once
#include <cstdint>

namespace hotset::formats {

// Whether a matrix of n rows (output features) of k codes has this layout.
constexpr bool sm80_fits(int64_t n, int64_t k, int bits) {
  return (bits == 2 || bits == 4 || bits == 8) && k % 64 == 0 && n % (16 / bits) == 0;
}

// Rows [n0, n1) of the matrix `packed` (n x k codes, any alignment) as raw rows: row r of the range at raw + (r - n0) * row_bytes,
// codes low bits first along k, k * bits / 8 bytes each. n0 and n1 may be any rows of a matrix that sm80_fits.
void sm80_to_raw(const uint8_t* packed, int bits, int64_t n, int64_t k, int64_t n0, int64_t n1, uint8_t* raw, int64_t row_bytes);

}  // namespace hotset::formats
