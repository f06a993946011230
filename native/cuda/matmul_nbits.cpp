// SPDX-License-Identifier: Apache-2.0
// Choice and launch of the MatMulNBits kernels.
#include "cuda/matmul_nbits.h"

#include <algorithm>

#include "cuda/matmul.h"
#include "cuda/moe_wgmma.h"

namespace hotset::cuda {
namespace {

constexpr int kMostWarps = 8, kStages = 3;   // of matmul_nbits_gemv.cuh
constexpr int kWgmmaRows = 32;               // more rows go through wgmma
constexpr int kGemvRows = 64;                // more rows are decoded once and multiplied as a dense matrix
constexpr int64_t kDecodedBytes = 64 << 20;  // of the rows that are decoded at a time

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int unit_codes(const NBitsParams& p) { return 128 / p.bits; }
int parts(const NBitsParams& p) { return p.a_type == 1 ? 3 : 1; }
int element_bytes(int type) { return type == 1 ? 4 : 2; }
const char* suffix(int type) { return type == 1 ? "f32" : type == 10 ? "f16" : "bf16"; }
bool aligned(const void* p, size_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

// Shared bytes of the GEMV for `rows` rows of A a block.
constexpr int64_t kRingBytes = 16 * (144 + 48 + 12);
int gemv_stages(const NBitsParams& p) { return static_cast<int>(ceil_div(p.k, 8 * unit_codes(p))); }
int gemv_tiles(const NBitsParams& p, int rows) { return static_cast<int>(ceil_div(rows * parts(p), 8)); }
int64_t gemv_shared(const NBitsParams& p, int rows, int warps) {
  const int64_t activations = int64_t{gemv_stages(p)} * 8 * unit_codes(p) * 2 * rows * parts(p);
  return activations + warps * kStages * kRingBytes + 2 * warps * gemv_tiles(p, rows) * 128 * 4;
}
// The most rows that a block can take, 0 when not even one fits.
int gemv_rows(const Gpu& gpu, const NBitsParams& p) {
  int rows = std::min<int>(p.m, p.a_type == 1 ? 8 : 16);
  while (rows > 0 && gemv_shared(p, rows, kMostWarps) > gpu.limits().shared_bytes_per_block) --rows;
  return rows;
}

// See NBitsParams::scale_copy.
int scale_copy(const NBitsParams& p) {
  const int64_t size = element_bytes(p.a_type), of_stage = std::max<int64_t>(1, 8 * unit_codes(p) >> p.block_shift) * size;
  const int64_t places = p.blocks * size | of_stage | static_cast<int64_t>(reinterpret_cast<uintptr_t>(p.scales));
  return places % 16 == 0 ? 16 : places % 8 == 0 ? 8 : places % 4 == 0 ? 4 : 0;
}

bool gemv_fits(const NBitsParams& p) {
  return (!p.zeros || p.zero_type == 2) && p.scale_type == p.a_type && (1 << p.block_shift) >= unit_codes(p) && aligned(p.codes, 16) &&
         aligned(p.scales, 4) && aligned(p.zeros, 4) && p.k > 0;
}

Status launch_any(Gpu& gpu, Stream stream, const NBitsParams& p) {
  HOTSET_ASSIGN(const Function function, gpu.function("matmul_nbits", format_text("hotset_nbits_any_%s", suffix(p.a_type)).c_str()));
  const unsigned rows = static_cast<unsigned>(ceil_div(p.m, 4));
  HOTSET_FAIL_IF(rows > 65535, unsupported, "%d rows are too many for one launch", p.m);
  return launch_with(
      gpu, stream, {.function = function, .grid_x = static_cast<unsigned>(ceil_div(p.n, 8)), .grid_y = rows, .block = 256, .overlap = true},
      p);
}

struct GemvShape {
  int warps, split_shift;
  int64_t blocks;
};
// Warps of a block, and warps that share a tile: what makes the longest chain of stages of a warp shortest. A grid of which two fit
// on the device begins to read codes under the kernel before it. Fewer warps a tile among equals.
GemvShape choose_shape(const Gpu& gpu, const NBitsParams& p) {
  constexpr int64_t kThreads = 512, kReserved = 1024;  // of a multiprocessor at 128 registers a thread; shared bytes of the system a block
  const int64_t tiles = ceil_div(p.n, 16), shared_bytes = gpu.limits().shared_bytes_per_block + kReserved;
  GemvShape best = {};
  int64_t least = INT64_MAX;
  for (const int warps : {8, 4}) {
    const int64_t resident = std::clamp<int64_t>(shared_bytes / (gemv_shared(p, p.rows, warps) + kReserved), 1, kThreads / (32 * warps));
    const int64_t slots = resident * gpu.limits().multiprocessors;
    for (int shift = 0; (1 << shift) <= warps; ++shift) {
      const int64_t wanted = ceil_div(tiles, warps >> shift), blocks = std::min(wanted, slots);
      const int64_t chain = 2 * ceil_div(wanted, blocks) * ceil_div(gemv_stages(p), 1 << shift) + (2 * blocks > slots ? 1 : 0);
      if (chain < least) best = {warps, shift, blocks}, least = chain;
    }
  }
  return best;
}

Status launch_gemv(Gpu& gpu, Stream stream, NBitsParams p) {
  const int most = gemv_rows(gpu, p);
  HOTSET_FAIL_IF(most == 0, unsupported, "K %d is too large for the shared memory of %s", p.k, gpu.info().name.c_str());
  const int groups = static_cast<int>(ceil_div(p.m, most));
  p.rows = static_cast<int>(ceil_div(p.m, groups));
  const GemvShape shape = choose_shape(gpu, p);
  p.split_shift = shape.split_shift;
  p.stages = gemv_stages(p);
  p.scale_copy = scale_copy(p);
  const std::string file = format_text("matmul_nbits_gemv_b%d", p.bits);
  const std::string name = format_text("hotset_nbits_gemv_%s_b%d_t%d", suffix(p.a_type), p.bits, gemv_tiles(p, p.rows));
  HOTSET_ASSIGN(const Function function, gpu.function(file.c_str(), name.c_str(), gpu.limits().shared_bytes_per_block));
  return launch_with(gpu, stream,
                     {.function = function,
                      .grid_x = static_cast<unsigned>(shape.blocks),
                      .grid_y = static_cast<unsigned>(groups),
                      .block = static_cast<unsigned>(shape.warps * 32),
                      .shared_bytes = static_cast<unsigned>(gemv_shared(p, p.rows, shape.warps)),
                      .overlap = true},
                     p);
}

int64_t decoded_rows(const NBitsParams& p) {
  const int64_t row = int64_t{p.k} * element_bytes(p.a_type);
  return std::clamp<int64_t>(kDecodedBytes / row / 128 * 128, 128, ceil_div(p.n, 128) * 128);
}

Status launch_gemm(Gpu& gpu, Stream stream, const NBitsParams& p, void* workspace) {
  HOTSET_ASSIGN(const Function function, gpu.function("matmul_nbits", format_text("hotset_nbits_rows_%s", suffix(p.a_type)).c_str()));
  const int64_t step = decoded_rows(p);
  for (int64_t n0 = 0; n0 < p.n; n0 += step) {
    NBitsParams rows = p;
    rows.y = workspace;
    rows.n0 = static_cast<int32_t>(n0);
    rows.n_rows = static_cast<int32_t>(std::min(step, p.n - n0));
    HOTSET_TRY(launch_with(gpu, stream, {.function = function, .grid_x = static_cast<unsigned>(rows.n_rows), .block = 256, .overlap = true},
                           rows));
    MatMulCall call;
    call.type = static_cast<DType>(p.a_type);
    call.a = p.a;
    call.b = workspace;
    call.c = static_cast<char*>(p.y) + n0 * element_bytes(p.a_type);
    call.m = p.m;
    call.n = rows.n_rows;
    call.k = p.k;
    call.ldc = p.n;
    call.trans_b = true;
    if (p.bias) {
      call.bias = static_cast<const char*>(p.bias) + n0 * element_bytes(p.bias_type);
      call.bias_type = static_cast<DType>(p.bias_type);
    }
    HOTSET_TRY(launch_matmul(gpu, stream, call));
  }
  return {};
}

// One matrix as a group of one expert: raw int4 rows without padding.
bool wgmma_fits(const Gpu& gpu, const NBitsParams& p) {
  return p.bits == 4 && !p.prepacked && p.a_type != 1 && p.scale_type == p.a_type && (!p.zeros || p.zero_type == 2) &&
         (!p.bias || (p.bias_type == p.a_type && aligned(p.bias, 16))) && p.row_bytes * 2 == p.k && aligned(p.y, 16) &&
         aligned(p.codes, 16) && moe_wgmma_takes(gpu.limits(), static_cast<DType>(p.a_type), p.k, p.n, int64_t{1} << p.block_shift, 1);
}

// workspace | 3 addresses | 2 offsets | m rows | A in chunk order
struct WgmmaPlaces {
  size_t offsets = 4 * sizeof(uint64_t), rows = 64, x, bytes;
  explicit WgmmaPlaces(const NBitsParams& p)
      : x((rows + static_cast<size_t>(p.m) * sizeof(int32_t) + 255) / 256 * 256),
        bytes(x + static_cast<size_t>(p.m * chunk_columns(p.k)) * 2) {}
};

Status launch_wgmma(Gpu& gpu, Stream stream, const NBitsParams& p, void* workspace) {
  const WgmmaPlaces places(p);
  char* const base = static_cast<char*>(workspace);
  NBitsGroupParams group = {};
  group.addresses = reinterpret_cast<uint64_t*>(base);
  group.offsets = reinterpret_cast<int32_t*>(base + places.offsets);
  group.rows = reinterpret_cast<int32_t*>(base + places.rows);
  group.codes = reinterpret_cast<uint64_t>(p.codes);
  group.scales = reinterpret_cast<uint64_t>(p.scales);
  group.zeros = reinterpret_cast<uint64_t>(p.zeros);
  group.m = p.m;
  HOTSET_ASSIGN(const Function function, gpu.function("matmul_nbits", "hotset_nbits_group"));
  HOTSET_TRY(launch_with(
      gpu, stream, {.function = function, .grid_x = static_cast<unsigned>(ceil_div(p.m, 256)), .block = 256, .overlap = true}, group));
  HOTSET_TRY(moe_gather_chunks(gpu, stream, p.a, group.rows, p.m, p.k, base + places.x));
  MoeWgmmaParams product = {};
  product.offsets = group.offsets;
  product.weights = group.addresses;
  product.scales = group.addresses + 1;
  product.zeros = p.zeros ? group.addresses + 2 : nullptr;
  product.out = p.y;
  product.experts = 1;
  product.n = product.out_columns = p.n;
  product.k = p.k;
  product.blocks = p.blocks;
  product.block_shift = p.block_shift;
  product.row_step = 1;
  const Current current(gpu);  // for the tensor map
  HOTSET_TRY(moe_wgmma(gpu, stream, static_cast<DType>(p.a_type), false, product, base + places.x, p.m));
  if (!p.bias) return {};
  HOTSET_ASSIGN(const Function add, gpu.function("matmul_nbits", format_text("hotset_nbits_bias_%s", suffix(p.a_type)).c_str()));
  return launch_with(gpu, stream, {.function = add, .grid_x = static_cast<unsigned>(p.m), .block = 256, .overlap = true}, p);
}

}  // namespace

NBitsForm nbits_form(const Gpu& gpu, const NBitsParams& p) {
  if (p.k == 0) return NBitsForm::any;
  if (p.m > kWgmmaRows && wgmma_fits(gpu, p)) return NBitsForm::wgmma;
  if (p.m > kGemvRows) return NBitsForm::gemm;
  return gemv_fits(p) && gemv_rows(gpu, p) > 0 ? NBitsForm::gemv : p.m > 16 ? NBitsForm::gemm : NBitsForm::any;
}

NBitsParams nbits_anywhere(NBitsParams p, bool with_zeros, bool with_bias) {
  const void* const aligned_place = reinterpret_cast<const void*>(uintptr_t{256});
  p.codes = nullptr;
  p.a = p.scales = nullptr;
  p.y = nullptr;
  p.zeros = with_zeros ? aligned_place : nullptr;
  p.bias = with_bias ? aligned_place : nullptr;
  return p;
}

const char* nbits_form_name(NBitsForm form) {
  static const char* const names[] = {"any", "gemv", "gemm", "wgmma"};
  return names[static_cast<int>(form)];
}

size_t nbits_workspace(NBitsForm form, const NBitsParams& p) {
  switch (form) {
    case NBitsForm::any:
    case NBitsForm::gemv:
      return 0;
    case NBitsForm::gemm:
      return static_cast<size_t>(decoded_rows(p)) * static_cast<size_t>(p.k) * static_cast<size_t>(element_bytes(p.a_type));
    case NBitsForm::wgmma:
      return WgmmaPlaces(p).bytes;
  }
  return 0;
}
size_t nbits_workspace(const Gpu& gpu, const NBitsParams& p) { return nbits_workspace(nbits_form(gpu, p), p); }

Status launch_nbits_as(NBitsForm form, Gpu& gpu, Stream stream, const NBitsParams& p, void* workspace) {
  if (p.m == 0 || p.n == 0) return {};
  switch (form) {
    case NBitsForm::any:
      return launch_any(gpu, stream, p);
    case NBitsForm::gemv:
      HOTSET_FAIL_IF(!gemv_fits(p), unsupported, "the form of the weights has no fast kernel");
      return launch_gemv(gpu, stream, p);
    case NBitsForm::gemm:
      return launch_gemm(gpu, stream, p, workspace);
    case NBitsForm::wgmma:
      HOTSET_FAIL_IF(!wgmma_fits(gpu, p), unsupported, "the form of the weights has no wgmma kernel");
      return launch_wgmma(gpu, stream, p, workspace);
  }
  return {};
}

Status launch_nbits(Gpu& gpu, Stream stream, const NBitsParams& p, void* workspace) {
  const NBitsForm form = nbits_form(gpu, p), planned = nbits_form(gpu, nbits_anywhere(p, p.zeros, p.bias));
  return launch_nbits_as(form == planned || nbits_workspace(form, p) == 0 ? form : NBitsForm::any, gpu, stream, p, workspace);
}

}  // namespace hotset::cuda
