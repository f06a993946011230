// SPDX-License-Identifier: Apache-2.0
// Conversions with AVX2 and F16C.
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "cpu_avx/convert_isa.h"

namespace hotset::cpu {
namespace {
#include "cpu_avx/vector_avx2.h"
#include "cpu_avx/convert_body.h"
}  // namespace

void convert_kernels_avx2(ConvertKernels* k) { fill(k); }

}  // namespace hotset::cpu
