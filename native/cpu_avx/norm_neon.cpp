// SPDX-License-Identifier: Apache-2.0
// Normalisation of rows with NEON.
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#include "cpu_avx/norm_isa.h"

namespace hotset::cpu {
namespace {
#include "cpu_avx/vector_neon.h"

#include "cpu_avx/norm_body.h"
}  // namespace

void norm_rows_neon(const NormRows& rows, int64_t r0, int64_t r1, float* temp) { rows_of_any(rows, r0, r1, temp); }

}  // namespace hotset::cpu
