// SPDX-License-Identifier: Apache-2.0
// Choice of the minifloat kernels, and the rounding of activations that they share.
#include "cpu_avx/minifloat_gemm.h"

#include <cmath>

#include "cpu_avx/cpu_features.h"
#include "cpu_avx/minifloat_gemm_isa.h"

namespace hotset::cpu {

const MinifloatGemm* minifloat_gemm_at(bool int8_activations, int i) {
  const MinifloatGemm* list[4] = {int8_activations ? &kMinifloatI8Scalar : &kMinifloatF32Scalar};
  int count = 1;
#if defined(__x86_64__)
  const CpuFeatures& cpu = cpu_features();
  if (cpu.avx2) list[count++] = int8_activations ? &kMinifloatI8Avx2 : &kMinifloatF32Avx2;
  if (!int8_activations && cpu.avx512) list[count++] = &kMinifloatF32Avx512;
  if (int8_activations && cpu.avx512vnni) list[count++] = &kMinifloatI8Avx512Vnni;
#endif
  return i < count ? list[i] : nullptr;
}

const MinifloatGemm& minifloat_gemm(bool int8_activations) {
  const MinifloatGemm* best = minifloat_gemm_at(int8_activations, 0);
  for (int i = 1; const MinifloatGemm* next = minifloat_gemm_at(int8_activations, i); ++i) best = next;
  return *best;
}

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
