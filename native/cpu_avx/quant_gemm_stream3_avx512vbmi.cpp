// SPDX-License-Identifier: Apache-2.0
// Products of few rows with a stream of 3-bit codes for AVX-512 VNNI and VBMI: 48 bytes become 64 bytes of 4-bit codes q + 4 in registers
// (vpermb gives each 64-bit lane 6 bytes, vpmultishiftqb brings a pair of codes to each byte, vpermb looks up what they become), then
// as in quant_gemm_avx512vnni.h.
#include "cpu_avx/quant_gemm_avx512vnni.h"

namespace hotset::cpu {
namespace {

using namespace avx512;

struct Stream3Codes {
  static constexpr bool kTiled = false;
  template <int BITS>
  static constexpr int64_t kStep = 48;
  template <int BITS>
  static inline __attribute__((always_inline)) const uint8_t* row(const QuantMatrix& w, int64_t n) {
    return w.codes + n * w.row_bytes;
  }
  template <int BITS, bool PARTIAL>
  static inline __attribute__((always_inline)) __m512i load(const uint8_t* p, int64_t left) {
    const __m512i spread = _mm512_set_epi64(0x2f2f2f2e2d2c2b2a, 0x2929292827262524, 0x2323232221201f1e, 0x1d1d1d1c1b1a1918,
                                            0x1717171615141312, 0x111111100f0e0d0c, 0x0b0b0b0a09080706, 0x0505050403020100);
    const __m512i table =
        _mm512_set_epi64((long long)0xbbbab9b8b7b6b5b4, (long long)0xabaaa9a8a7a6a5a4, (long long)0x9b9a999897969594,
                         (long long)0x8b8a898887868584, 0x7b7a797877767574, 0x6b6a696867666564, 0x5b5a595857565554, 0x4b4a494847464544);
    const __m512i shifts = _mm512_set1_epi64(0x2a241e18120c0600);  // 6 i
    const __m512i bytes = _mm512_maskz_loadu_epi8(PARTIAL ? first64((3 * left + 7) / 8) : (__mmask64)0xffffffffffff, p);
    return _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(shifts, _mm512_permutexvar_epi8(spread, bytes)), table);
  }
};

}  // namespace

const QuantGemmPacked kQuantI8Stream3Avx512Vbmi = multiply_packed<Stream3Codes, 4, 1>;
const QuantGemmPacked kQuantF32Stream3Avx512Vbmi = multiply_packed<Stream3Codes, 4, 4>;

}  // namespace hotset::cpu
