// SPDX-License-Identifier: Apache-2.0
// Choice of the attention kernels.
#include "cpu_avx/attention.h"

#include "cpu_avx/cpu_features.h"

namespace hotset::cpu {
namespace {

struct Choice {
  AttentionKernels kernels;
  CpuLevel level = CpuLevel::kScalar;
};

Choice choose() {
  Choice c;
  attention_kernels_scalar(&c.kernels);
#if defined(__x86_64__) || defined(_M_X64)
  if (cpu_features().avx2) {
    attention_kernels_avx2(&c.kernels);
    c.level = CpuLevel::kAvx2;
  }
  if (cpu_features().avx512) {
    attention_kernels_avx512(&c.kernels);
    c.level = CpuLevel::kAvx512;
  }
#endif
  return c;
}

const Choice& choice() {
  static const Choice c = choose();
  return c;
}

}  // namespace

const AttentionKernels& attention_kernels() { return choice().kernels; }
const char* attention_isa() { return cpu_level_name(choice().level); }

}  // namespace hotset::cpu
