// SPDX-License-Identifier: Apache-2.0
// Choice of the normalisation kernel.
#include "cpu_avx/norm.h"

#include "cpu_avx/cpu_features.h"
#include "cpu_avx/norm_isa.h"

namespace hotset::cpu {
namespace {

using NormFunction = void (*)(const NormRows& rows, int64_t r0, int64_t r1, float* temp);
constexpr Tiered<NormFunction> kTiers[] = {
    {CpuLevel::kScalar, norm_rows_scalar},
#if defined(__x86_64__)
    {CpuLevel::kAvx2, norm_rows_avx2},
    {CpuLevel::kAvx512, norm_rows_avx512},
#elif defined(__aarch64__)
    {CpuLevel::kNeon, norm_rows_neon},
#endif
};

}  // namespace

void norm_rows(const NormRows& rows, int64_t r0, int64_t r1, float* temp) {
  static const NormFunction best = best_of(kTiers).kernel;
  best(rows, r0, r1, temp);
}

const char* norm_isa() { return cpu_level_name(best_of(kTiers).level); }

}  // namespace hotset::cpu
