// SPDX-License-Identifier: Apache-2.0
// Choice of the gated unit.
#include "cpu_avx/swiglu.h"

#include "cpu_avx/cpu_features.h"
#include "cpu_avx/swiglu_isa.h"

namespace hotset::cpu {

void swiglu(const Swiglu& unit, const float* gate, const float* value, int64_t n, float* out) {
#if defined(__x86_64__) || defined(_M_X64)
  const CpuFeatures& cpu = cpu_features();
  if (cpu.avx512) return swiglu_avx512(unit, gate, value, n, out);
  if (cpu.avx2) return swiglu_avx2(unit, gate, value, n, out);
#endif
  swiglu_scalar(unit, gate, value, n, out);
}

}  // namespace hotset::cpu
