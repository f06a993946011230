// SPDX-License-Identifier: Apache-2.0
// Choice of the passes over logits.
#include "cpu_avx/sample_row.h"

#include "cpu_avx/cpu_features.h"

namespace hotset::cpu {
namespace {

constexpr Tiered<const SampleKernels& (*)()> kTiers[] = {
    {CpuLevel::kScalar, sample_kernels_scalar},
#if defined(__x86_64__)
    {CpuLevel::kAvx2, sample_kernels_avx2},
    {CpuLevel::kAvx512, sample_kernels_avx512},
#elif defined(__aarch64__)
    {CpuLevel::kNeon, sample_kernels_neon},
#endif
};

}  // namespace

const SampleKernels& sample_kernels() { return best_of(kTiers).kernel(); }

const char* sample_isa() { return cpu_level_name(best_of(kTiers).level); }

}  // namespace hotset::cpu
