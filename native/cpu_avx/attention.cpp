// SPDX-License-Identifier: Apache-2.0
// Choice of the attention kernels.
#include "cpu_avx/attention.h"

#include "cpu_avx/cpu_features.h"

namespace hotset::cpu {
namespace {

AttentionKernels choose() {
  AttentionKernels k;
  attention_kernels_scalar(&k);
#if defined(__x86_64__) || defined(_M_X64)
  if (cpu_features().avx2) attention_kernels_avx2(&k);
  if (cpu_features().avx512) attention_kernels_avx512(&k);
#endif
  return k;
}

}  // namespace

const AttentionKernels& attention_kernels() {
  static const AttentionKernels k = choose();
  return k;
}

}  // namespace hotset::cpu
