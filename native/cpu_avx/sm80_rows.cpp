// SPDX-License-Identifier: Apache-2.0
// Choice of the way out of the SM80 prepacked layout.
#include "cpu_avx/sm80_rows.h"

#include "cpu_avx/cpu_features.h"
#include "cpu_avx/sm80_rows_isa.h"
#include "formats/sm80.h"

namespace hotset::cpu {

Sm80Rows sm80_rows_at(int bits, int level) {
#if defined(__x86_64__)
  const CpuFeatures& cpu = cpu_features();
  const int width = bits == 2 ? 0 : bits == 4 ? 1 : 2;
  constexpr Sm80Rows kAvx2[] = {sm80_rows_2_avx2, sm80_rows_4_avx2, sm80_rows_8_avx2};
  constexpr Sm80Rows kAvx512[] = {sm80_rows_2_avx512, sm80_rows_4_avx512, sm80_rows_8_avx512};
  if (level == 0 && cpu.avx2) return kAvx2[width];
  if (level == 1 && cpu.avx512) return kAvx512[width];
#elif defined(__aarch64__)
  if (level == 0 && cpu_features().neon) return bits == 4 ? sm80_rows_4_neon : bits == 8 ? sm80_rows_8_neon : nullptr;
#else
  (void)bits, (void)level;
#endif
  return nullptr;
}

const char* sm80_rows_isa() {
#if defined(__x86_64__)
  const CpuLevel levels[] = {CpuLevel::kScalar, CpuLevel::kAvx2, CpuLevel::kAvx512};
#else
  const CpuLevel levels[] = {CpuLevel::kScalar, CpuLevel::kNeon};
#endif
  int n = 0;
  while (sm80_rows_at(4, n)) ++n;
  return cpu_level_name(levels[n]);
}

void sm80_rows(const uint8_t* packed, int bits, int64_t n, int64_t k, int64_t n0, int64_t n1, uint8_t* raw, int64_t row_bytes) {
  Sm80Rows best = nullptr;
  for (int level = 0; const Sm80Rows next = sm80_rows_at(bits, level); ++level) best = next;
  if (best && n0 % (16 / bits) == 0 && n1 % (16 / bits) == 0) return best(packed, k, n0, n1, raw, row_bytes);
  formats::sm80_to_raw(packed, bits, n, k, n0, n1, raw, row_bytes);
}

}  // namespace hotset::cpu
