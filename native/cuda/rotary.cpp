// SPDX-License-Identifier: Apache-2.0
// Launches of rotary.cu.
#include "cuda/rotary.h"

#include <algorithm>

namespace hotset::cuda {

Status launch_rotary(Gpu& gpu, Stream stream, DType type, const RotaryParams& p) {
  const int64_t total = p.batch * p.length * p.heads * (p.channels - p.half);
  if (total == 0) return {};
  const char* const name = type == DType::f32 ? "hotset_rotary_f32" : type == DType::f16 ? "hotset_rotary_f16" : "hotset_rotary_bf16";
  HOTSET_ASSIGN(const Function function, gpu.function("rotary", name));
  const int64_t blocks = std::min<int64_t>((total + 255) / 256, int64_t{gpu.limits().multiprocessors} * 16);
  return launch_with(gpu, stream, {.function = function, .grid_x = static_cast<unsigned>(blocks), .block = 256, .overlap = true}, p);
}

}  // namespace hotset::cuda
