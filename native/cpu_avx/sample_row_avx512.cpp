// SPDX-License-Identifier: Apache-2.0
// Passes over logits with AVX-512.
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "cpu_avx/sample_row.h"

namespace hotset::cpu {
namespace {
#include "cpu_avx/sample_row_body.h"
}  // namespace

const SampleKernels& sample_kernels_avx512() { return kSampleKernels; }

}  // namespace hotset::cpu
