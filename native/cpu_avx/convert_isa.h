// SPDX-License-Identifier: Apache-2.0
// Table of conversions that the instruction sets fill.
#pragma once
#include <stdint.h>

namespace hotset::cpu {

struct ConvertKernels {
  void (*f16_to_f32)(const void* src, float* dst, int64_t n);
  void (*bf16_to_f32)(const void* src, float* dst, int64_t n);
  void (*f32_to_f16)(const float* src, void* dst, int64_t n);
  void (*f32_to_bf16)(const float* src, void* dst, int64_t n);
};

void convert_kernels_scalar(ConvertKernels* k);
void convert_kernels_avx2(ConvertKernels* k);
void convert_kernels_avx512(ConvertKernels* k);
void convert_kernels_neon(ConvertKernels* k);

}  // namespace hotset::cpu
