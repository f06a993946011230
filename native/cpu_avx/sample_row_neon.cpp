// SPDX-License-Identifier: Apache-2.0
// Passes over logits with NEON.
#include <arm_neon.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "cpu_avx/sample_row.h"

namespace hotset::cpu {
namespace {
#include "cpu_avx/sample_row_body.h"
}  // namespace

const SampleKernels& sample_kernels_neon() { return kSampleKernels; }

}  // namespace hotset::cpu
