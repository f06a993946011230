// SPDX-License-Identifier: Apache-2.0
// Choice of the float products.
#include "cpu_avx/float_gemm.h"

#include "cpu_avx/cpu_features.h"
#include "cpu_avx/float_gemm_isa.h"

namespace hotset::cpu {

namespace {

constexpr Tiered<const FloatGemm*> kTiers[] = {
    {CpuLevel::kScalar, &kFloatGemmScalar},
#if defined(__x86_64__)
    {CpuLevel::kAvx2, &kFloatGemmAvx2},
    {CpuLevel::kAvx512, &kFloatGemmAvx512},
#elif defined(__aarch64__)
    {CpuLevel::kNeon, &kFloatGemmNeon},
#endif
};

}  // namespace

const FloatGemm* float_gemm_at(int i) {
  int n = 0;
  for (const auto& tier : kTiers)
    if (cpu_features().has(tier.level) && n++ == i) return tier.kernel;
  return nullptr;
}

const FloatGemm& float_gemm() { return *best_of(kTiers).kernel; }

}  // namespace hotset::cpu
