// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels that choose tokens from logits, for host and device code.
#pragma once
#include <cstdint>

namespace hotset::cuda {

// A logit and its place as one number that orders candidates: the larger logit first, the lower place first among equals, NaN is 0
// and never chosen. Bits 63 ... 32: the float32 with the order of unsigned numbers, -0 as +0; bits 31 ... 0: ~place.
struct SampleParams {
  const void* logits;         // [rows, n], rows row_stride elements apart
  std::uint64_t* candidates;  // workspace [rows, parts, k], best first; 0: none
  std::int32_t* ids;          // [rows, k]; -1 where there is no candidate
  float* values;              // [rows, k] or null
  std::int64_t row_stride;
  std::int32_t n, k, parts;  // a part is kSamplePart logits
  std::int32_t rows;
};

constexpr int kSamplePart = 4096;

}  // namespace hotset::cuda
