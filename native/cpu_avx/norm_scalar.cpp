// SPDX-License-Identifier: Apache-2.0
// Reference normalisation of rows.
#include <cmath>
#include <cstring>

#include "base/dtype.h"
#include "cpu_avx/norm_isa.h"

namespace hotset::cpu {
namespace {

float get(int dtype, const void* base, int64_t i) {
  if (dtype == 1) {
    float f;
    std::memcpy(&f, static_cast<const char*>(base) + 4 * i, 4);
    return f;
  }
  uint16_t h;
  std::memcpy(&h, static_cast<const char*>(base) + 2 * i, 2);
  return dtype == 10 ? f16_to_f32(h) : bf16_to_f32(h);
}

void put(int dtype, void* base, int64_t i, float f) {
  if (dtype == 1) {
    std::memcpy(static_cast<char*>(base) + 4 * i, &f, 4);
    return;
  }
  const uint16_t h = dtype == 10 ? f32_to_f16(f) : f32_to_bf16(f);
  std::memcpy(static_cast<char*>(base) + 2 * i, &h, 2);
}

}  // namespace

void norm_rows_scalar(const NormRows& a, int64_t r0, int64_t r1, float* temp) {
  const int64_t n = a.width;
  const float size = static_cast<float>(n);
  for (int64_t r = r0; r < r1; ++r) {
    const int64_t row = r * n, skip_row = a.skip ? r % a.skip_rows * n : 0;
    float total = 0, squares = 0;
    for (int64_t i = 0; i < n; ++i) {
      float s = get(a.dtype, a.x, row + i);
      if (a.skip) s += get(a.dtype, a.skip, skip_row + i);
      if (a.bias) s += get(a.dtype, a.bias, i);
      if (a.sum) put(a.dtype, a.sum, row + i, s);
      temp[i] = s;
      total += s;
    }
    const float mean = a.center ? total / size : 0.0f;
    for (int64_t i = 0; i < n; ++i) squares += (temp[i] - mean) * (temp[i] - mean);
    const float inverse = 1.0f / std::sqrt(squares / size + a.epsilon);
    for (int64_t i = 0; i < n; ++i) {
      const float v = (temp[i] - mean) * inverse * get(a.dtype, a.gamma, i);
      put(a.dtype, a.y, row + i, a.beta ? v + get(a.dtype, a.beta, i) : v);
    }
    if (a.mean) a.mean[r] = mean;
    if (a.inverse) a.inverse[r] = inverse;
  }
}

}  // namespace hotset::cpu
