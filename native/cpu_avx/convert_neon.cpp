// SPDX-License-Identifier: Apache-2.0
// Conversions with NEON.
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#include "cpu_avx/convert_isa.h"

namespace hotset::cpu {
namespace {
#include "cpu_avx/vector_neon.h"

#include "cpu_avx/convert_body.h"
}  // namespace

void convert_kernels_neon(ConvertKernels* k) { fill(k); }

}  // namespace hotset::cpu
