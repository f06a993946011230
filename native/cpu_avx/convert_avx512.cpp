// SPDX-License-Identifier: Apache-2.0
// Conversions with AVX-512.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // gcc bug 105593: its own intrinsics
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "cpu_avx/convert_isa.h"

namespace hotset::cpu {
namespace {
#include "cpu_avx/vector_avx512.h"
#include "cpu_avx/convert_body.h"
}  // namespace

void convert_kernels_avx512(ConvertKernels* k) { fill(k); }

}  // namespace hotset::cpu
