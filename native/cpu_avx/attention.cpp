// SPDX-License-Identifier: Apache-2.0
// Choice of the attention kernels.
#include "cpu_avx/attention.h"

#include "cpu_avx/cpu_features.h"

namespace hotset::cpu {
namespace {

constexpr Tiered<void (*)(AttentionKernels*)> kTiers[] = {HOTSET_USUAL_TIERS(attention_kernels)};

AttentionKernels choose() {
  AttentionKernels k;
  best_of(kTiers).kernel(&k);
  return k;
}

}  // namespace

const AttentionKernels& attention_kernels() {
  static const AttentionKernels k = choose();
  return k;
}

const char* attention_isa() { return cpu_level_name(best_of(kTiers).level); }

}  // namespace hotset::cpu
