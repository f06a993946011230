// SPDX-License-Identifier: Apache-2.0
// Choice of the elementwise loops.
#include "cpu_avx/elementwise.h"

#include "cpu_avx/cpu_features.h"
#include "cpu_avx/elementwise_isa.h"

namespace hotset::cpu {

const ElementwiseKernels* elementwise_kernels() {
#if defined(__x86_64__) || defined(_M_X64)
  if (cpu_features().avx512) return &kElementwiseAvx512;
  if (cpu_features().avx2) return &kElementwiseAvx2;
#endif
  return nullptr;
}

const char* elementwise_isa() {
  const ElementwiseKernels* const kernels = elementwise_kernels();
  if (!kernels) return cpu_level_name(CpuLevel::kScalar);
#if defined(__x86_64__) || defined(_M_X64)
  if (kernels == &kElementwiseAvx512) return cpu_level_name(CpuLevel::kAvx512);
#endif
  return cpu_level_name(CpuLevel::kAvx2);
}

}  // namespace hotset::cpu
