// SPDX-License-Identifier: Apache-2.0
// Choice of the elementwise loops.
#include "cpu_avx/elementwise.h"

#include "cpu_avx/cpu_features.h"
#include "cpu_avx/elementwise_isa.h"

namespace hotset::cpu {
namespace {

constexpr Tiered<const ElementwiseKernels*> kTiers[] = {
    {CpuLevel::kScalar, nullptr},
#if defined(__x86_64__)
    {CpuLevel::kAvx2, &kElementwiseAvx2},
    {CpuLevel::kAvx512, &kElementwiseAvx512},
#elif defined(__aarch64__)
    {CpuLevel::kNeon, &kElementwiseNeon},
#endif
};

}  // namespace

const ElementwiseKernels* elementwise_kernels() { return best_of(kTiers).kernel; }

const char* elementwise_isa() { return cpu_level_name(best_of(kTiers).level); }

}  // namespace hotset::cpu
