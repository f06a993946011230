// SPDX-License-Identifier: Apache-2.0
// Choice of the conversion kernels.
#include "cpu_avx/convert.h"

#include <cassert>
#include <cstring>

#include "cpu_avx/convert_isa.h"
#include "cpu_avx/cpu_features.h"

namespace hotset::cpu {
namespace {

struct Choice {
  ConvertKernels kernels;
  CpuLevel level = CpuLevel::kScalar;
};

Choice choose() {
  Choice c;
  convert_kernels_scalar(&c.kernels);
#if defined(__x86_64__) || defined(_M_X64)
  if (cpu_features().avx2) {
    convert_kernels_avx2(&c.kernels);
    c.level = CpuLevel::kAvx2;
  }
  if (cpu_features().avx512) {
    convert_kernels_avx512(&c.kernels);
    c.level = CpuLevel::kAvx512;
  }
#endif
  return c;
}

const Choice& choice() {
  static const Choice c = choose();
  return c;
}

}  // namespace

const char* convert_isa() { return cpu_level_name(choice().level); }

void to_f32(DType from, const void* src, float* dst, int64_t n) {
  switch (from) {
    case DType::f16: return choice().kernels.f16_to_f32(src, dst, n);
    case DType::bf16: return choice().kernels.bf16_to_f32(src, dst, n);
    default:
      assert(from == DType::f32);
      if (n > 0) std::memmove(dst, src, static_cast<size_t>(n) * sizeof(float));
  }
}

void from_f32(DType to, const float* src, void* dst, int64_t n) {
  switch (to) {
    case DType::f16: return choice().kernels.f32_to_f16(src, dst, n);
    case DType::bf16: return choice().kernels.f32_to_bf16(src, dst, n);
    default:
      assert(to == DType::f32);
      if (n > 0) std::memmove(dst, src, static_cast<size_t>(n) * sizeof(float));
  }
}

}  // namespace hotset::cpu
