// SPDX-License-Identifier: Apache-2.0
// Rows of float16 and bfloat16 to and from float32.
#pragma once
#include <cstdint>

#include "base/dtype.h"

namespace hotset::cpu {

// `from` and `to`: f32, f16 or bf16. No alignment is needed. Rounds to nearest, ties to even; overflow gives infinity, NaN
// stays NaN. Source and destination do not overlap, unless both are f32 and equal.
void to_f32(DType from, const void* src, float* dst, int64_t n);
void from_f32(DType to, const float* src, void* dst, int64_t n);
const char* convert_isa();  // what both use on this CPU

}  // namespace hotset::cpu
