// SPDX-License-Identifier: Apache-2.0
// Choice of the way out of the SM80 prepacked layout.
#include "cpu_avx/sm80_rows.h"

#include "cpu_avx/cpu_features.h"
#include "cpu_avx/sm80_rows_isa.h"
#include "formats/sm80.h"

namespace hotset::cpu {

namespace {

// By width. Null: formats/sm80.h.
#if defined(__x86_64__)
#define HOTSET_SM80_TIERS(bits) \
  {CpuLevel::kScalar, nullptr}, {CpuLevel::kAvx2, sm80_rows_##bits##_avx2}, { CpuLevel::kAvx512, sm80_rows_##bits##_avx512 }
constexpr Tiered<Sm80Rows> k2[] = {HOTSET_SM80_TIERS(2)}, k4[] = {HOTSET_SM80_TIERS(4)}, k8[] = {HOTSET_SM80_TIERS(8)};
#elif defined(__aarch64__)
constexpr Tiered<Sm80Rows> k2[] = {{CpuLevel::kScalar, nullptr}},
                           k4[] = {{CpuLevel::kScalar, nullptr}, {CpuLevel::kNeon, sm80_rows_4_neon}},
                           k8[] = {{CpuLevel::kScalar, nullptr}, {CpuLevel::kNeon, sm80_rows_8_neon}};
#else
constexpr Tiered<Sm80Rows> k2[] = {{CpuLevel::kScalar, nullptr}}, k4[] = {{CpuLevel::kScalar, nullptr}},
                           k8[] = {{CpuLevel::kScalar, nullptr}};
#endif

}  // namespace

Sm80Rows sm80_rows_at(int bits, int i) {
  const Tiered<Sm80Rows>* const tier = bits == 2 ? tier_at(k2, i + 1) : bits == 4 ? tier_at(k4, i + 1) : tier_at(k8, i + 1);
  return tier ? tier->kernel : nullptr;
}

const char* sm80_rows_isa() { return cpu_level_name(best_of(k4).level); }

void sm80_rows(const uint8_t* packed, int bits, int64_t n, int64_t k, int64_t n0, int64_t n1, uint8_t* raw, int64_t row_bytes) {
  const Sm80Rows best = (bits == 2 ? best_of(k2) : bits == 4 ? best_of(k4) : best_of(k8)).kernel;
  if (best && n0 % (16 / bits) == 0 && n1 % (16 / bits) == 0) return best(packed, k, n0, n1, raw, row_bytes);
  formats::sm80_to_raw(packed, bits, n, k, n0, n1, raw, row_bytes);
}

}  // namespace hotset::cpu
