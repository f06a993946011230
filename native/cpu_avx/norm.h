// SPDX-License-Identifier: Apache-2.0
// RMS and layer normalisation of rows, with the residual sum before it.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace hotset::cpu {

// For every row: s = x (+ skip (+ bias)); sum = s rounded; y = (s - mean) / sqrt(variance + epsilon) * gamma (+ beta), where
// mean is 0 and variance the mean square without `center`. All arithmetic is float32 on the unrounded s, rounded once.
// Everything has one type; nothing is aligned; y and sum overlap no input.
struct NormRows {
  int dtype = 1;  // ONNX element type: 1 float32, 10 float16, 16 bfloat16
  int64_t width = 0;
  float epsilon = 0;
  bool center = false;
  const void* x = nullptr;
  const void* skip = nullptr;   // null: none; row r is row r % skip_rows
  int64_t skip_rows = 1;
  const void* bias = nullptr;   // one row, only with skip
  const void* gamma = nullptr;  // one row
  const void* beta = nullptr;   // one row or null
  void* y = nullptr;
  void* sum = nullptr;          // or null
  float* mean = nullptr;        // a value a row, or null
  float* inverse = nullptr;     // 1 / sqrt(variance + epsilon), a value a row, or null
};

// Rows [r0, r1); `temp`: width floats of this thread.
void norm_rows(const NormRows& rows, int64_t r0, int64_t r1, float* temp);
const char* norm_isa();  // what norm_rows uses on this CPU

}  // namespace hotset::cpu
