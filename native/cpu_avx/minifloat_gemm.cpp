// SPDX-License-Identifier: Apache-2.0
// Choice of the minifloat kernels, and the rounding of activations that they share.
#include "cpu_avx/minifloat_gemm.h"

#include <cmath>

#include "cpu_avx/cpu_features.h"
#include "cpu_avx/minifloat_gemm_isa.h"

namespace hotset::cpu {
namespace {

constexpr Tiered<const MinifloatGemm*> kExact[] = {
    {CpuLevel::kScalar, &kMinifloatF32Scalar},
#if defined(__x86_64__)
    {CpuLevel::kAvx2, &kMinifloatF32Avx2},
    {CpuLevel::kAvx512, &kMinifloatF32Avx512},
#elif defined(__aarch64__)
    {CpuLevel::kNeon, &kMinifloatF32Neon},
#endif
};
constexpr Tiered<const MinifloatGemm*> kInt8[] = {
    {CpuLevel::kScalar, &kMinifloatI8Scalar},
#if defined(__x86_64__)
    {CpuLevel::kAvx2, &kMinifloatI8Avx2},
    {CpuLevel::kAvx512Vnni, &kMinifloatI8Avx512Vnni},
#elif defined(__aarch64__)
    {CpuLevel::kNeon, &kMinifloatI8Neon},
    {CpuLevel::kNeonDot, &kMinifloatI8NeonDot},
#endif
};

}  // namespace

const MinifloatGemm* minifloat_gemm_at(bool int8_activations, int i) {
  const Tiered<const MinifloatGemm*>* tier = int8_activations ? tier_at(kInt8, i) : tier_at(kExact, i);
  return tier ? tier->kernel : nullptr;
}

const MinifloatGemm& minifloat_gemm(bool int8_activations) { return *(int8_activations ? best_of(kInt8) : best_of(kExact)).kernel; }

void round_to_int8(const float* x, int64_t k, float* out) {
  for (int64_t g = 0; g < k; g += 32) {
    const int64_t end = g + 32 < k ? g + 32 : k;
    float largest = 0;
    for (int64_t i = g; i < end; ++i) {
      const float size = std::fabs(x[i]);
      largest = size > largest || std::isnan(size) ? size : largest;
      if (std::isnan(largest)) break;
    }
    const float inverse = largest < 0x1p-100f ? 0.0f : 127.0f / largest, d = largest / 127.0f;
    for (int64_t i = g; i < end; ++i) out[i] = std::nearbyintf(x[i] * inverse) * d;
  }
}

}  // namespace hotset::cpu
