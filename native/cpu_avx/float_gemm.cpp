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
    {CpuLevel::kAmx, &kFloatGemmAmx},
#elif defined(__aarch64__)
    {CpuLevel::kNeon, &kFloatGemmNeon},
#endif
};

bool usable(CpuLevel level) { return level != CpuLevel::kAmx || cpu_features().amx_bf16; }

}  // namespace

const FloatGemm* float_gemm_at(int i) {
  const auto* tier = tier_at(kTiers, i);
  return tier && usable(tier->level) ? tier->kernel : nullptr;  // AMX is the last
}

const FloatGemm& float_gemm() {
  static const FloatGemm* const best = [] {
    const FloatGemm* found = nullptr;
    for (int i = 0; const FloatGemm* next = float_gemm_at(i); ++i) found = next;
    return found;
  }();
  return *best;
}

}  // namespace hotset::cpu
