// SPDX-License-Identifier: Apache-2.0
// Choice of the way out of the SM80 prepacked layout.
#include "cpu_avx/sm80_rows.h"

#include "cpu_avx/cpu_features.h"
#include "cpu_avx/sm80_rows_isa.h"
#include "formats/sm80.h"

namespace hotset::cpu {

void sm80_rows(const uint8_t* packed, int bits, int64_t n, int64_t k, int64_t n0, int64_t n1, uint8_t* raw, int64_t row_bytes) {
#if defined(__x86_64__) || defined(_M_X64)
  if (cpu_features().avx2 && n0 % (16 / bits) == 0 && n1 % (16 / bits) == 0) {
    if (bits == 4) return sm80_rows_4_avx2(packed, k, n0, n1, raw, row_bytes);
    if (bits == 8) return sm80_rows_8_avx2(packed, k, n0, n1, raw, row_bytes);
  }
#endif
  formats::sm80_to_raw(packed, bits, n, k, n0, n1, raw, row_bytes);
}

}  // namespace hotset::cpu
