// SPDX-License-Identifier: Apache-2.0
// Raw rows out of the SM80 prepacked layout (formats/sm80.h) with vector instructions.
#pragma once
#include <stdint.h>

namespace hotset::cpu {

// As formats::sm80_to_raw, with the same result.
void sm80_rows(const uint8_t* packed, int bits, int64_t n, int64_t k, int64_t n0, int64_t n1, uint8_t* raw, int64_t row_bytes);

// Rows n0 and n1 are multiples of 16 / bits.
using Sm80Rows = void (*)(const uint8_t* packed, int64_t k, int64_t n0, int64_t n1, uint8_t* raw, int64_t row_bytes);
// What this CPU can run beside formats/sm80.h, the slowest first; null past the end.
Sm80Rows sm80_rows_at(int bits, int i);
const char* sm80_rows_isa();  // name of the tier that serves 4 bits

}  // namespace hotset::cpu
