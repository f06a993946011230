// SPDX-License-Identifier: Apache-2.0
// What attention operators do to one query or key vector before it is used or stored.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cpu_avx/convert.h"

namespace hotset::ops {

inline constexpr int64_t kMaxHeadSize = 1024;

// float32 numbers to the nearest of a 16-bit type.
inline void round_to(DType type, float* x, int64_t n) {
  if (type == DType::f32) return;
  uint16_t t[64];
  for (int64_t i = 0; i < n; i += 64) {
    const int64_t m = std::min<int64_t>(64, n - i);
    cpu::from_f32(type, x + i, t, m);
    cpu::to_f32(type, t, x + i, m);
  }
}

// x * w / sqrt(mean(x^2) + epsilon). Sums in double, so that every CPU rounds the same value.
inline void rms_norm(float* x, const float* w, float epsilon, int64_t n) {
  double sum[4] = {};
  for (int64_t i = 0; i < n; ++i) sum[i & 3] += static_cast<double>(x[i]) * x[i];
  const double mean = ((sum[0] + sum[1]) + (sum[2] + sum[3])) / static_cast<double>(n);
  const float inverse = static_cast<float>(1.0 / std::sqrt(mean + static_cast<double>(epsilon)));
  for (int64_t i = 0; i < n; ++i) x[i] = x[i] * inverse * w[i];
}

}  // namespace hotset::ops
