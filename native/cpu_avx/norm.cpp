// SPDX-License-Identifier: Apache-2.0
// Choice of the normalisation kernel.
#include "cpu_avx/norm.h"

#include "cpu_avx/cpu_features.h"
#include "cpu_avx/norm_isa.h"

namespace hotset::cpu {

void norm_rows(const NormRows& rows, int64_t r0, int64_t r1, float* temp) {
#if defined(__x86_64__) || defined(_M_X64)
  const CpuFeatures& cpu = cpu_features();
  if (cpu.avx512) return norm_rows_avx512(rows, r0, r1, temp);
  if (cpu.avx2) return norm_rows_avx2(rows, r0, r1, temp);
#endif
  norm_rows_scalar(rows, r0, r1, temp);
}

}  // namespace hotset::cpu
