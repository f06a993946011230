// SPDX-License-Identifier: Apache-2.0
// Choice of the conversion kernels.
#include "cpu_avx/convert.h"

#include <cassert>
#include <cstring>

#include "cpu_avx/convert_isa.h"
#include "cpu_avx/cpu_features.h"

namespace hotset::cpu {
namespace {

constexpr Tiered<void (*)(ConvertKernels*)> kTiers[] = {HOTSET_USUAL_TIERS(convert_kernels)};

ConvertKernels choose() {
  ConvertKernels k;
  best_of(kTiers).kernel(&k);
  return k;
}

const ConvertKernels& kernels() {
  static const ConvertKernels k = choose();
  return k;
}

}  // namespace

const char* convert_isa() { return cpu_level_name(best_of(kTiers).level); }

void to_f32(DType from, const void* src, float* dst, int64_t n) {
  switch (from) {
    case DType::f16:
      return kernels().f16_to_f32(src, dst, n);
    case DType::bf16:
      return kernels().bf16_to_f32(src, dst, n);
    default:
      assert(from == DType::f32);
      if (n > 0) std::memmove(dst, src, static_cast<size_t>(n) * sizeof(float));
  }
}

void from_f32(DType to, const float* src, void* dst, int64_t n) {
  switch (to) {
    case DType::f16:
      return kernels().f32_to_f16(src, dst, n);
    case DType::bf16:
      return kernels().f32_to_bf16(src, dst, n);
    default:
      assert(to == DType::f32);
      if (n > 0) std::memmove(dst, src, static_cast<size_t>(n) * sizeof(float));
  }
}

}  // namespace hotset::cpu
