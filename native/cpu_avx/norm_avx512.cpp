// SPDX-License-Identifier: Apache-2.0
// Normalisation of rows with AVX-512.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // gcc bug 105593: its own intrinsics
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "cpu_avx/norm_isa.h"

namespace hotset::cpu {
namespace {
#include "cpu_avx/vector_avx512.h"
#include "cpu_avx/norm_body.h"
}  // namespace

void norm_rows_avx512(const NormRows& rows, int64_t r0, int64_t r1, float* temp) { rows_of_any(rows, r0, r1, temp); }

}  // namespace hotset::cpu
