// SPDX-License-Identifier: Apache-2.0
// Raw rows out of the SM80 prepacked layout, one function a width and level.
#pragma once
#include <stdint.h>

namespace hotset::cpu {

// Rows n0 and n1 are multiples of 16 / bits.
void sm80_rows_2_avx2(const uint8_t* packed, int64_t k, int64_t n0, int64_t n1, uint8_t* raw, int64_t row_bytes);
void sm80_rows_4_avx2(const uint8_t* packed, int64_t k, int64_t n0, int64_t n1, uint8_t* raw, int64_t row_bytes);
void sm80_rows_8_avx2(const uint8_t* packed, int64_t k, int64_t n0, int64_t n1, uint8_t* raw, int64_t row_bytes);
void sm80_rows_2_avx512(const uint8_t* packed, int64_t k, int64_t n0, int64_t n1, uint8_t* raw, int64_t row_bytes);
void sm80_rows_4_avx512(const uint8_t* packed, int64_t k, int64_t n0, int64_t n1, uint8_t* raw, int64_t row_bytes);
void sm80_rows_8_avx512(const uint8_t* packed, int64_t k, int64_t n0, int64_t n1, uint8_t* raw, int64_t row_bytes);
void sm80_rows_4_neon(const uint8_t* packed, int64_t k, int64_t n0, int64_t n1, uint8_t* raw, int64_t row_bytes);
void sm80_rows_8_neon(const uint8_t* packed, int64_t k, int64_t n0, int64_t n1, uint8_t* raw, int64_t row_bytes);

}  // namespace hotset::cpu
