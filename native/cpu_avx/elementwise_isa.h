// SPDX-License-Identifier: Apache-2.0
// One table of elementwise loops an instruction set.
#pragma once
#include "cpu_avx/elementwise.h"

namespace hotset::cpu {

extern const ElementwiseKernels kElementwiseAvx2, kElementwiseAvx512, kElementwiseNeon;

}  // namespace hotset::cpu
