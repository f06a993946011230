// SPDX-License-Identifier: Apache-2.0
// The gated unit, one function an instruction set.
#pragma once
#include "cpu_avx/swiglu.h"

namespace hotset::cpu {

void swiglu_scalar(const Swiglu& unit, const float* gate, const float* value, int64_t n, float* out);
void swiglu_avx2(const Swiglu& unit, const float* gate, const float* value, int64_t n, float* out);
void swiglu_avx512(const Swiglu& unit, const float* gate, const float* value, int64_t n, float* out);
void swiglu_neon(const Swiglu& unit, const float* gate, const float* value, int64_t n, float* out);

}  // namespace hotset::cpu
