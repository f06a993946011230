// SPDX-License-Identifier: Apache-2.0
// Parameters of the normalisation kernels, for host and device code.
#pragma once
#include <cstdint>

namespace hotset::cuda {

// For every row: s = x (+ skip (+ bias)); sum = s rounded; y = (s - mean) / sqrt(variance + epsilon) * gamma (+ beta), where mean
// is 0 and variance the mean square without `center`. All arithmetic is float32 on the unrounded s, rounded once.
struct NormParams {
  const void* x;
  const void* skip;   // or null; row r is row r % skip_rows
  const void* bias;   // one row or null
  const void* gamma;  // one row
  const void* beta;   // one row or null
  void* y;
  void* sum;       // or null
  float* mean;     // a value a row, or null
  float* inverse;  // 1 / sqrt(variance + epsilon), a value a row, or null
  std::int64_t rows, width, skip_rows;
  float epsilon;
  std::int32_t center;
  std::int32_t ready;  // 1: gamma and beta do not come from the kernel before this one (constants)
  std::int32_t type, skip_type, bias_type, gamma_type, beta_type;  // ONNX element types; y and sum have that of x
};

}  // namespace hotset::cuda
