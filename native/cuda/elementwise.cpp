// SPDX-License-Identifier: Apache-2.0
// Launches of elementwise.cu.
#include "cuda/elementwise.h"

namespace hotset::cuda {
namespace {
constexpr unsigned kThreads = 256, kPerBlock = 4 * kThreads;  // elements; kPerThread of elementwise.cu
}

hotset::Result<Function> binary_function(Gpu& gpu, DType type) {
  switch (type) {
    case DType::f32:
      return gpu.function("elementwise", "hotset_binary_f32");
    case DType::f16:
      return gpu.function("elementwise", "hotset_binary_f16");
    case DType::bf16:
      return gpu.function("elementwise", "hotset_binary_bf16");
    default:
      return fail(Code::unsupported, "no elementwise device kernel for type %s", dtype_name(type));
  }
}

Status launch_binary(const Gpu& gpu, Stream stream, Function function, const BinaryParams& p) {
  if (p.n == 0) return {};
  const int64_t blocks = (p.n + kPerBlock - 1) / kPerBlock;
  HOTSET_FAIL_IF(blocks > INT32_MAX, unsupported, "%lld elements are too many for one launch", static_cast<long long>(p.n));
  return launch_with(gpu, stream, {.function = function, .grid_x = static_cast<unsigned>(blocks), .block = kThreads, .overlap = true}, p);
}

}  // namespace hotset::cuda
