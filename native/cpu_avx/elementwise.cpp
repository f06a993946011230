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

}  // namespace hotset::cpu
