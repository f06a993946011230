// SPDX-License-Identifier: Apache-2.0
// Reference conversions, an element at a time.
#include <cstring>

#include "base/dtype.h"
#include "cpu_avx/convert_isa.h"

namespace hotset::cpu {
namespace {

template <float (*convert)(uint16_t)>
void widen(const void* src, float* dst, int64_t n) {
  const char* s = static_cast<const char*>(src);
  char* d = reinterpret_cast<char*>(dst);
  for (int64_t i = 0; i < n; ++i) {
    uint16_t bits;
    std::memcpy(&bits, s + 2 * i, 2);
    const float f = convert(bits);
    std::memcpy(d + 4 * i, &f, 4);
  }
}

template <uint16_t (*convert)(float)>
void narrow(const float* src, void* dst, int64_t n) {
  const char* s = reinterpret_cast<const char*>(src);
  char* d = static_cast<char*>(dst);
  for (int64_t i = 0; i < n; ++i) {
    float f;
    std::memcpy(&f, s + 4 * i, 4);
    const uint16_t bits = convert(f);
    std::memcpy(d + 2 * i, &bits, 2);
  }
}

}  // namespace

void convert_kernels_scalar(ConvertKernels* k) {
  k->f16_to_f32 = widen<f16_to_f32>;
  k->bf16_to_f32 = widen<bf16_to_f32>;
  k->f32_to_f16 = narrow<f32_to_f16>;
  k->f32_to_bf16 = narrow<f32_to_bf16>;
}

}  // namespace hotset::cpu
