// SPDX-License-Identifier: Apache-2.0
// Launches of unary.cu.
#include "cuda/unary.h"

namespace hotset::cuda {

Status launch_unary(Gpu& gpu, Stream stream, const UnaryParams& p) {
  constexpr int64_t kThreads = 256, kPerBlock = 4 * kThreads;  // kPerThread of unary.cu
  if (p.n == 0) return {};
  const char* const name = p.x_type == 1    ? "hotset_unary_f32"
                           : p.x_type == 6  ? "hotset_unary_i32"
                           : p.x_type == 7  ? "hotset_unary_i64"
                           : p.x_type == 10 ? "hotset_unary_f16"
                                            : "hotset_unary_bf16";
  HOTSET_ASSIGN(const Function function, gpu.function("unary", name));
  const int64_t blocks = (p.n + kPerBlock - 1) / kPerBlock;
  HOTSET_FAIL_IF(blocks > INT32_MAX, unsupported, "%lld elements are too many for one launch", static_cast<long long>(p.n));
  return launch_with(gpu, stream, {.function = function, .grid_x = static_cast<unsigned>(blocks), .block = kThreads, .overlap = true}, p);
}

}  // namespace hotset::cuda
