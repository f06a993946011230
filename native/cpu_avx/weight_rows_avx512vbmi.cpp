// SPDX-License-Identifier: Apache-2.0
// Conversions of weight rows for AVX-512 VBMI.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // gcc bug 105593: its own intrinsics
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#include <stdint.h>

#include "cpu_avx/weight_rows_isa.h"

namespace hotset::cpu {
namespace {

// 48 bytes, 128 codes a step: vpermb gives each 64-bit lane 6 bytes, vpmultishiftqb brings a pair of codes (6 bits) to each byte, and
// vpermb looks up what they become; it reads the low 6 bits of an index only.
void widen_3_to_4(const uint8_t* src, int64_t count, uint8_t* dst) {
  alignas(64) uint8_t spread_bytes[64], table_bytes[64];
  for (int i = 0; i < 64; ++i) {
    spread_bytes[i] = static_cast<uint8_t>(i / 8 * 6 + (i % 8 < 6 ? i % 8 : 5));
    table_bytes[i] = static_cast<uint8_t>((i % 8 + 4) | (i / 8 + 4) << 4);
  }
  const __m512i spread = _mm512_load_si512(spread_bytes), table = _mm512_load_si512(table_bytes);
  const __m512i shifts = _mm512_set1_epi64(0x2a241e18120c0600);  // 6 i
  int64_t i = 0;
  for (; i + 128 <= count; i += 128, src += 48, dst += 64) {
    _mm_prefetch((const char*)src + 8192, _MM_HINT_T0);
    const __m512i bytes = _mm512_permutexvar_epi8(spread, _mm512_maskz_loadu_epi8(0xffffffffffff, src));
    _mm512_storeu_si512(dst, _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(shifts, bytes), table));
  }
  if (i == count) return;
  const int64_t left = count - i;
  const __mmask64 source = (static_cast<__mmask64>(1) << ((left * 3 + 7) / 8)) - 1, all = ~static_cast<__mmask64>(0);
  const __mmask64 result = all >> (64 - (left + 1) / 2);
  const __m512i bytes = _mm512_permutexvar_epi8(spread, _mm512_maskz_loadu_epi8(source, src));
  const __m512i codes = _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(shifts, bytes), table);
  _mm512_mask_storeu_epi8(dst, result, codes);
  if (left % 2) dst[left / 2] &= 15;
}

}  // namespace

void weight_rows_avx512vbmi(WeightRows* rows) {
  rows->name = "avx512vnni";  // the tier that VBMI is an extra of
  rows->widen_3_to_4 = widen_3_to_4;
}

}  // namespace hotset::cpu
