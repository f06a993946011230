// SPDX-License-Identifier: Apache-2.0
// Choice of the normalisation kernel.
#include "cpu_avx/norm.h"

#include "cpu_avx/cpu_features.h"
#include "cpu_avx/norm_isa.h"

namespace hotset::cpu {

namespace {

struct Choice {
  void (*rows)(const NormRows& rows, int64_t r0, int64_t r1, float* temp) = norm_rows_scalar;
  CpuLevel level = CpuLevel::kScalar;
};

const Choice& choice() {
  static const Choice best = [] {
    Choice c;
#if defined(__x86_64__) || defined(_M_X64)
    const CpuFeatures& cpu = cpu_features();
    if (cpu.avx2) c = {norm_rows_avx2, CpuLevel::kAvx2};
    if (cpu.avx512) c = {norm_rows_avx512, CpuLevel::kAvx512};
#endif
    return c;
  }();
  return best;
}

}  // namespace

void norm_rows(const NormRows& rows, int64_t r0, int64_t r1, float* temp) { choice().rows(rows, r0, r1, temp); }

const char* norm_isa() { return cpu_level_name(choice().level); }

}  // namespace hotset::cpu
