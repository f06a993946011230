// SPDX-License-Identifier: Apache-2.0
// Products of few rows with SM80 prepacked 4- and 8-bit codes for AVX-512 VNNI: the parts of a chunk are loaded from its tiles and brought
// into the order of raw codes in registers (7 operations for 64 bytes of 4-bit codes, one of 8-bit ones), then as in
// quant_gemm_avx512vnni.h. 2-bit codes would take 8 for half of the bytes: converting some rows first is as fast.
#include "cpu_avx/quant_gemm_avx512vnni.h"
#include "cpu_avx/sm80_avx512.h"

namespace hotset::cpu {
namespace {

using namespace avx512;

struct Sm80Codes {
  static constexpr bool kTiled = true;
  template <int BITS>
  static constexpr int64_t kStep = 128 * (8 / BITS);
  template <int BITS>
  static inline __attribute__((always_inline)) const uint8_t* row(const QuantMatrix& w, int64_t n) {
    constexpr int64_t kColumns = 16 / BITS;
    return w.codes + n / kColumns * kColumns * w.row_bytes + n % kColumns * (8 * BITS);
  }
  template <int BITS, bool PARTIAL>
  static inline __attribute__((always_inline)) __m512i load(const uint8_t* p, int64_t) {
    // Two tiles of 4-bit codes, of which a partial chunk has one; 8-bit codes have no partial chunks.
    const __m512i x = PARTIAL ? _mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i*)p)) : sm80_avx512::load_column<BITS>(p);
    return sm80_avx512::raw<BITS>(x);
  }
};

}  // namespace

const QuantGemmPacked kQuantI8Sm80Avx512Vnni[2] = {multiply_packed<Sm80Codes, 4, 1>, multiply_packed<Sm80Codes, 8, 1>};
const QuantGemmPacked kQuantF32Sm80Avx512Vnni[2] = {multiply_packed<Sm80Codes, 4, 4>, multiply_packed<Sm80Codes, 8, 4>};

}  // namespace hotset::cpu
