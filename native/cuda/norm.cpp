// SPDX-License-Identifier: Apache-2.0
// Launches of norm.cu.
#include "cuda/norm.h"

#include <algorithm>

namespace hotset::cuda {

Status launch_norm(Gpu& gpu, Stream stream, const NormParams& p) {
  constexpr int kThreads = 512, kHeld = 4;  // of norm.cu
  if (p.rows == 0 || p.width == 0) return {};
  HOTSET_FAIL_IF(p.rows > INT32_MAX, unsupported, "%lld rows are too many for one launch", static_cast<long long>(p.rows));
  const int64_t size = p.type == 1 ? 4 : 8;  // elements of a vector
  bool vectors = p.width % size == 0 && p.width <= kThreads * kHeld * size;
  for (const void* data : {p.x, p.skip, p.bias, p.gamma, p.beta, static_cast<const void*>(p.y), static_cast<const void*>(p.sum)})
    vectors = vectors && reinterpret_cast<uintptr_t>(data) % 16 == 0;
  const std::pair<const void*, int32_t> others[] = {
      {p.skip, p.skip_type}, {p.bias, p.bias_type}, {p.gamma, p.gamma_type}, {p.beta, p.beta_type}};
  for (const auto& [data, type] : others) vectors = vectors && (!data || type == p.type);
  const char* const suffix = p.type == 1 ? "f32" : p.type == 10 ? "f16" : "bf16";
  HOTSET_ASSIGN(const Function function,
                gpu.function("norm", format_text(vectors ? "hotset_norm_%s" : "hotset_norm_any_%s", suffix).c_str()));
  // A vector a thread for few rows; for many all that a thread can hold, so that more rows are on their way.
  const int64_t pieces = vectors ? p.width / size : p.width, held = p.rows > 2 * gpu.limits().multiprocessors ? kHeld : 1;
  const int64_t wanted = (pieces + held - 1) / held + 31;
  const unsigned block = static_cast<unsigned>(std::clamp<int64_t>(wanted / 32 * 32, 32, kThreads));
  return launch_with(gpu, stream, {.function = function, .grid_x = static_cast<unsigned>(p.rows), .block = block, .overlap = true}, p);
}

}  // namespace hotset::cuda
