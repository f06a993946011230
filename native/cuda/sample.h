// SPDX-License-Identifier: Apache-2.0
// The best logits of rows on a device: what a host needs to choose tokens, in place of whole rows.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "cuda/device.h"

namespace hotset::cuda {

struct SampleCall {
  DType type = DType::f32;  // of logits: float, float16, bfloat16
  const void* logits = nullptr;
  int64_t rows = 1, n = 0, row_stride = 0;  // rows of n logits, row_stride elements apart
  int k = 1;                                // candidates a row
  int32_t* ids = nullptr;                   // [rows, k] device or pinned: best first, the lower id first among equal logits, NaN
                                            // never; -1 where there is none
  float* values = nullptr;                  // [rows, k] or null: their logits
  void* workspace = nullptr;
};

// Whether k candidates of n logits can be found on the device.
bool sample_fits(const Gpu& gpu, int64_t n, int64_t k);
size_t sample_workspace(int64_t rows, int64_t n, int64_t k);
Status launch_sample(Gpu& gpu, Stream stream, const SampleCall& call);

}  // namespace hotset::cuda
