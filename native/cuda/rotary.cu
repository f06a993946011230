// SPDX-License-Identifier: Apache-2.0
// Rotary embedding: a thread owns one pair of channels of one head, or copies channels behind the rotated ones.
#include "cuda/float_types.cuh"
#include "cuda/rotary_params.h"

namespace hotset::cuda::rotary {
namespace {

__device__ int stream_of(const RotaryParams& p, std::int64_t column) {
  if (p.layout == 0) return column < p.section[0] ? 0 : column < p.section[0] + p.section[1] ? 1 : 2;
  const int turn = static_cast<int>(column % 3);
  return turn > 0 && column < 3 * p.section[turn] ? turn : 0;
}

template <class T>
__device__ void rotate(const RotaryParams& p) {
  release_successor();
  wait_for_predecessor();
  const std::int64_t behind = p.channels - 2 * p.half, items = p.half + behind, rows = p.batch * p.length, total = rows * p.heads * items;
  for (std::int64_t e = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; e < total;
       e += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const std::int64_t item = e % items, head = e / items % p.heads, row = e / items / p.heads, b = row / p.length, s = row % p.length;
    const std::int64_t at = b * p.x_batch + s * p.x_row + head * p.x_head;
    const T* const x = static_cast<const T*>(p.x) + at;
    T* const y = static_cast<T*>(p.y) + at;
    if (item >= p.half) {
      y[item + p.half] = x[item + p.half];
      continue;
    }
    const std::int64_t position = p.positions == 0   ? row
                                  : p.positions == 1 ? p.ids[0] + s
                                  : p.positions == 2 ? p.ids[row]
                                                     : p.ids[stream_of(p, item) * rows + row];
    const bool inside = position >= 0 && position < p.table_rows;
    const float cos = inside ? to_float(static_cast<const T*>(p.cos)[position * p.half + item]) : NAN;
    const float sin = inside ? to_float(static_cast<const T*>(p.sin)[position * p.half + item]) : NAN;
    const std::int64_t i = p.interleaved ? 2 * item : item, j = p.interleaved ? i + 1 : item + p.half;
    const float u = to_float(x[i]), v = to_float(x[j]);
    y[i] = from_float<T>(u * cos - v * sin);
    y[j] = from_float<T>(v * cos + u * sin);
  }
}

}  // namespace
}  // namespace hotset::cuda::rotary

#define HOTSET_ROTARY(T, suffix)                                                                                 \
  extern "C" __global__ void __launch_bounds__(256) hotset_rotary_##suffix(const hotset::cuda::RotaryParams p) { \
    hotset::cuda::rotary::rotate<T>(p);                                                                          \
  }
HOTSET_ROTARY(hotset::cuda::Half, f16)
HOTSET_ROTARY(hotset::cuda::Bfloat, bf16)
HOTSET_ROTARY(float, f32)
