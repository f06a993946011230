// SPDX-License-Identifier: Apache-2.0
// Choice of the passes over logits.
#include "cpu_avx/sample_row.h"

#include "cpu_avx/cpu_features.h"

namespace hotset::cpu {
namespace {

constexpr Tiered<const SampleKernels& (*)()> kTiers[] = {HOTSET_USUAL_TIERS(sample_kernels)};

}  // namespace

const SampleKernels& sample_kernels() { return best_of(kTiers).kernel(); }

const char* sample_isa() { return cpu_level_name(best_of(kTiers).level); }

}  // namespace hotset::cpu
