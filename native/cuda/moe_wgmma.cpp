// SPDX-License-Identifier: Apache-2.0
// Launches of moe_wgmma.cu.
#include "cuda/moe_wgmma.h"

#include <bit>

namespace hotset::cuda {
namespace {

constexpr char kFatbin[] = "moe_wgmma";
constexpr unsigned kThreads = 384;
constexpr unsigned kSharedBytes = 4 * 49152 + 8192 + 4 * (kWgmmaMaxExperts + 1) + 1024 + 256;  // Shared of the kernel and its alignment

// Boxes of 64 columns and 32 rows of x, swizzled for wgmma.
Status encode(const Gpu& gpu, const void* x, int64_t rows, int64_t columns, TensorMap* map) {
  enum { kUint16 = 1, kNoInterleave = 0, kSwizzle128 = 3, kPromote256 = 3, kZeros = 0 };
  const uint64_t dims[2] = {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows)};
  const uint64_t strides[1] = {static_cast<uint64_t>(columns) * 2};
  const uint32_t box[2] = {64, 32}, step[2] = {1, 1};
  return gpu.check(driver().tensor_map_encode_tiled(map, kUint16, 2, const_cast<void*>(x), dims, strides, box, step, kNoInterleave,
                                                    kSwizzle128, kPromote256, kZeros),
                   "cuTensorMapEncodeTiled");
}

}  // namespace

bool moe_wgmma_takes(const Limits& limits, DType dtype, int64_t k, int64_t n, int64_t block, int64_t experts) {
  return limits.compute_capability == 90 && (dtype == DType::f16 || dtype == DType::bf16) && k > 0 && k % 32 == 0 && n > 0 && n % 8 == 0 &&
         experts <= kWgmmaMaxExperts &&
         (block >= k || (block >= 32 && std::has_single_bit(static_cast<uint64_t>(block)) && k % block == 0));
}

Status moe_gather_chunks(Gpu& gpu, Stream stream, const void* x, const int32_t* sorted_rows, int64_t rows, int64_t k, void* out) {
  if (rows == 0) return {};
  HOTSET_ASSIGN(const Function function, gpu.function(kFatbin, "hotset_moe_gather_chunks"));
  const MoeGatherParams p{x, sorted_rows, out, static_cast<int32_t>(rows), static_cast<int32_t>(k)};
  Launch how;
  how.function = function;
  how.grid_x = static_cast<unsigned>(rows);
  how.block = 128;
  how.overlap = true;
  return launch_with(gpu, stream, how, p);
}

Status moe_wgmma(Gpu& gpu, Stream stream, DType dtype, bool gated, const MoeWgmmaParams& parameters, const void* x, int64_t rows) {
  if (rows == 0) return {};
  const bool half = dtype == DType::f16;
  const char* const name = gated ? (half ? "hotset_moe_wgmma_gated_f16" : "hotset_moe_wgmma_gated_bf16")
                                 : (half ? "hotset_moe_wgmma_f16" : "hotset_moe_wgmma_bf16");
  Launch how;
  HOTSET_ASSIGN(how.function, gpu.function(kFatbin, name, kSharedBytes));
  how.grid_x = static_cast<unsigned>(gpu.limits().multiprocessors);
  how.block = kThreads;
  how.shared_bytes = kSharedBytes;
  how.overlap = true;
  TensorMap map;
  HOTSET_TRY(encode(gpu, x, rows, chunk_columns(parameters.k), &map));
  void* list[] = {const_cast<MoeWgmmaParams*>(&parameters), &map};
  return launch(gpu, stream, how, list);
}

}  // namespace hotset::cuda
