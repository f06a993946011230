// SPDX-License-Identifier: Apache-2.0
// Choice of the minifloat kernels, and the rounding of activations that they share.
#include "cpu_avx/minifloat_gemm.h"

#include <cmath>
#include <iterator>

#include "cpu_avx/cpu_features.h"
#include "cpu_avx/minifloat_gemm_isa.h"

namespace hotset::cpu {
namespace {

constexpr Tiered<const MinifloatGemm*> kExact[] = {
    {CpuLevel::kScalar, &kMinifloatF32Scalar},
#if defined(__x86_64__)
    {CpuLevel::kAvx2, &kMinifloatF32Avx2},
    {CpuLevel::kAvx512, &kMinifloatF32Avx512},
#endif
};
constexpr Tiered<const MinifloatGemm*> kInt8[] = {
    {CpuLevel::kScalar, &kMinifloatI8Scalar},
#if defined(__x86_64__)
    {CpuLevel::kAvx2, &kMinifloatI8Avx2},
    {CpuLevel::kAvx512Vnni, &kMinifloatI8Avx512Vnni},
#endif
};
static_assert(std::size(kExact) == std::size(kInt8));

}  // namespace

const MinifloatGemm* minifloat_gemm_at(bool int8_activations, int i) {
  if (static_cast<size_t>(i) >= std::size(kExact)) return nullptr;
  const Tiered<const MinifloatGemm*>& tier = (int8_activations ? kInt8 : kExact)[i];
  return cpu_may_run(tier.level) ? tier.kernel : nullptr;
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
