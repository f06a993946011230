// SPDX-License-Identifier: Apache-2.0
// Tensors of attention operators as the device kernels take them.
#pragma once
#include <algorithm>
#include <cmath>

#include "cuda/attention.h"
#include "ops/attend.h"
#include "ops/device_kernel.h"

namespace hotset::ops {

inline cuda::DevicePtr device_address(const Tensor* t) { return t ? reinterpret_cast<cuda::DevicePtr>(t->data) : 0; }
inline int32_t as_int32(int64_t n) { return static_cast<int32_t>(std::min<int64_t>(n, 1 << 30)); }

// Rows of a dense [., rows, vectors * D] or [rows, vectors * D], vectors of `head_bytes` from number `first` on.
inline cuda::AttentionRows vectors_of(const Tensor& t, int64_t rows, int64_t first, int64_t head_bytes) {
  const int64_t row = t.shape[-1] * static_cast<int64_t>(dtype_bytes(t.dtype));
  return {device_address(&t) + static_cast<uint64_t>(first * head_bytes), rows * row, head_bytes, row};
}

// Rows of a dense [batch, heads, rows, width].
inline cuda::AttentionRows rows_of_heads(const Tensor* t) {
  if (!t) return {};
  const int64_t row = t->shape[3] * static_cast<int64_t>(dtype_bytes(t->dtype));
  return {device_address(t), t->shape[1] * t->shape[2] * row, t->shape[2] * row, row};
}

inline cuda::AttentionRows device_rows(const HeadRows& r) {
  const int64_t element = static_cast<int64_t>(dtype_bytes(r.dtype));
  return {reinterpret_cast<cuda::DevicePtr>(r.data), r.b * element, r.h * element, r.s * element};
}

inline float default_scale(float scale, int64_t d) {
  return scale != 0 ? scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(d)));
}

// Limits of grids and of shared memory.
inline Status check_device_sizes(const cuda::AttentionParams& p) {
  HOTSET_FAIL_IF(p.batch > 32767 || p.heads > 65535 || p.d > 1024 || p.dv > 1024, unsupported,
                 "%d batch entries, %d heads of %d and %d channels; the device kernel has at most 32767, 65535 and 1024", p.batch, p.heads,
                 p.d, p.dv);
  return {};
}

}  // namespace hotset::ops
