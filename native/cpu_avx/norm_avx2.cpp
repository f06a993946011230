// SPDX-License-Identifier: Apache-2.0
// Normalisation of rows with AVX2.
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "cpu_avx/norm_isa.h"

namespace hotset::cpu {
namespace {
#include "cpu_avx/vector_avx2.h"
#include "cpu_avx/norm_body.h"
}  // namespace

void norm_rows_avx2(const NormRows& rows, int64_t r0, int64_t r1, float* temp) { rows_of_any(rows, r0, r1, temp); }

}  // namespace hotset::cpu
