// SPDX-License-Identifier: Apache-2.0
// Launches of gather.cu.
#include "cuda/gather.h"

#include <algorithm>

namespace hotset::cuda {
namespace {
int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
}  // namespace

Status launch_gather(Gpu& gpu, Stream stream, const GatherParams& p) {
  const int64_t slices = p.outer * p.n;
  if (slices == 0 || p.slice_bytes == 0) return {};
  const uintptr_t places = reinterpret_cast<uintptr_t>(p.data) | reinterpret_cast<uintptr_t>(p.y) | static_cast<uintptr_t>(p.slice_bytes);
  const int unit = places % 16 == 0 ? 16 : places % 4 == 0 ? 4 : places % 2 == 0 ? 2 : 1;
  HOTSET_ASSIGN(const Function function, gpu.function("gather", format_text("hotset_gather_%d", unit).c_str()));
  const int64_t units = p.slice_bytes / unit;
  return launch_with(gpu, stream,
                     {.function = function,
                      .grid_x = static_cast<unsigned>(std::min<int64_t>(ceil_div(units, 256), 1024)),
                      .grid_y = static_cast<unsigned>(std::min<int64_t>(slices, 65535)),
                      .block = static_cast<unsigned>(std::clamp<int64_t>(ceil_div(units, 32) * 32, 32, 256)),
                      .overlap = true},
                     p);
}

Status launch_gather_quantized(Gpu& gpu, Stream stream, const GatherQuantizedParams& p) {
  const int64_t total = p.outer * p.n * p.inner;
  if (total == 0) return {};
  const char* const suffix = p.scale_type == 1 ? "f32" : p.scale_type == 10 ? "f16" : "bf16";
  HOTSET_ASSIGN(const Function function, gpu.function("gather", format_text("hotset_gather_quantized_%s", suffix).c_str()));
  const int64_t blocks = std::min<int64_t>(ceil_div(total, 256), int64_t{gpu.limits().multiprocessors} * 16);
  return launch_with(gpu, stream, {.function = function, .grid_x = static_cast<unsigned>(blocks), .block = 256, .overlap = true}, p);
}

}  // namespace hotset::cuda
