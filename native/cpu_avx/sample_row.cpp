// SPDX-License-Identifier: Apache-2.0
// Choice of the passes over logits.
#include "cpu_avx/sample_row.h"

#include "cpu_avx/cpu_features.h"

namespace hotset::cpu {

const SampleKernels& sample_kernels() {
#if defined(__x86_64__) || defined(_M_X64)
  if (cpu_features().avx512) return sample_kernels_avx512();
  if (cpu_features().avx2) return sample_kernels_avx2();
#endif
  return sample_kernels_scalar();
}

}  // namespace hotset::cpu
