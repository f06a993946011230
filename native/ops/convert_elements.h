// SPDX-License-Identifier: Apache-2.0
// Conversion between any two element types with the rules of the Cast operator.
#pragma once
#include <cstdint>

#include "base/dtype.h"

namespace hotset::ops {

// Types that convert_elements knows: all numbers, bool, the 8-bit floats, float4e2m1 and the 4-bit integers.
bool convertible(DType type);

// Converts elements [begin, begin + n) of `src` to the same positions of `dst`; `begin` is even for 4-bit types.
//   float -> integer   towards zero; 32 and 64 bits saturate and take NaN as 0, narrower ones keep the low bits
//   integer -> integer low bits; anything -> bool: not zero
//   float -> float     to nearest even; `saturate`: values beyond an 8-bit or 4-bit float become its largest, otherwise
//                      its infinity or NaN
void convert_elements(DType from, const void* src, DType to, void* dst, int64_t begin, int64_t n, bool saturate = true);

}  // namespace hotset::ops
