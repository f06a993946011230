// SPDX-License-Identifier: Apache-2.0
// Choice and launches of the kernels of a mixture-of-experts layer.
#include "cuda/moe.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>

#include "cuda/moe_wgmma.h"

namespace hotset::cuda {
namespace {

constexpr uint32_t kFirstWarps = 4, kSecondWarps = 16;  // of a block of the decode kernels
constexpr uint32_t kFewTokens = 16;                     // one block routes them
constexpr uint32_t kMostTokens = 128;                   // of the kernels for few rows
constexpr uint32_t kTileRows = 128, kTilePanels = 8;    // of the grouped product
constexpr uint32_t kOwnShared = 1024;                   // bytes of shared memory that kernels may have beside the dynamic
constexpr uint32_t kMostExperts = 1024;                 // 32 a lane of the router

constexpr uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }
constexpr size_t round_up_256(size_t n) { return (n + 255) & ~size_t{255}; }
size_t bytes_of(MoeType t) { return t == MoeType::f32 ? 4 : t == MoeType::f16 || t == MoeType::bf16 ? 2 : 1; }

// A format of moe_formats.cuh as the host has to know it.
struct Format {
  const char *family, *name;  // of fatbins, of kernels
  MoeOrder order;
  uint32_t step_bytes, columns;
};

const Format* format_of(const MoeForm& f, MoeType type) {
  static constexpr Format kRaw[] = {{"int", "raw2", MoeOrder::nibble, 8, 1},
                                    {"int", "raw3", MoeOrder::nibble, 12, 1},
                                    {"int4", "raw4", MoeOrder::nibble, 16, 1},
                                    {"int", "raw8", MoeOrder::natural, 32, 1}};
  static constexpr Format kSm80[] = {
      {"sm80", "sm80_2", MoeOrder::tiles, 8, 8}, {"int4", "sm80_4", MoeOrder::tiles, 16, 4}, {"sm80", "sm80_8", MoeOrder::tiles, 32, 2}};
  static constexpr Format kMxfp4 = {"fp", "mxfp4", MoeOrder::nibble, 16, 1};
  static constexpr Format kNvfp4 = {"fp", "nvfp4", MoeOrder::nibble, 16, 1};
  static constexpr Format kFp8 = {"fp", "fp8", MoeOrder::natural, 32, 1};
  static constexpr Format kDense = {"fp", "dense", MoeOrder::natural, 64, 1};
  switch (f.storage) {
    case MoeStorage::raw:
      return &kRaw[f.bits == 8 ? 3 : f.bits - 2];
    case MoeStorage::sm80:
      return &kSm80[f.bits == 8 ? 2 : f.bits == 4 ? 1 : 0];
    case MoeStorage::fp4_by_k:
      return f.type == MoeType::e4m3 ? &kNvfp4 : &kMxfp4;
    case MoeStorage::fp8:
      return &kFp8;
    case MoeStorage::dense:
      return f.type == type && type != MoeType::f32 ? &kDense : nullptr;
    default:
      return nullptr;
  }
}

const char* type_name(MoeType t) { return t == MoeType::f16 ? "f16" : t == MoeType::bf16 ? "bf16" : "f32"; }

// How one product of a call is computed.
struct Product {
  const Format* format = nullptr;  // null: the simple kernel
  MoeUnit unit = {};
  uint32_t pairs = 0, parts = 0, panels = 0, warps = 0;  // few rows
  bool quick = false;
  uint32_t shared = 0;
  bool grouped = false;  // tiles of many rows
  MoeRows rows = {};     // that it takes
};

// The unit of `steps` steps from multiples of `from` steps on; granule 0: the copies of no size fit.
MoeUnit make_unit(const MoeLayer& layer, const MoeForm& f, const Format& format, uint32_t steps, uint32_t from) {
  MoeUnit u = {};
  const uint32_t line = format.step_bytes * format.columns, total = f.k / 32;
  // What every address and length is a multiple of. A copy may not run past the end of a row either.
  const uint32_t aligned =
      std::gcd(std::gcd(layer.weight_alignment, f.row_bytes * format.columns), std::gcd(from * line, std::gcd(steps * line, total * line)));
  u.granule = aligned % 16 == 0 ? 16 : aligned % 8 == 0 ? 8 : aligned % 4 == 0 ? 4 : 0;
  u.steps = steps;
  u.line_pitch = ((steps * line + 15) / 16 | 1) * 16;  // an odd number of 16 bytes: rows lie in different banks
  u.scale_at = u.line_pitch * (16 / format.columns);
  if (f.type != MoeType::none && f.storage != MoeStorage::dense) {
    const uint32_t blocks = f.block_shift >= 31 ? 1 : std::max(steps * 32 >> f.block_shift, 1u) + 1;
    u.scale_pitch = (blocks * static_cast<uint32_t>(bytes_of(f.type)) + 3 + 3) / 4 * 4;
  }
  u.bytes = (u.scale_at + 16 * u.scale_pitch + 15) / 16 * 16;
  return u;
}

// The format of a matrix that the tensor-core kernels take, or null.
const Format* fast_format(const MoeLayer& layer, int fc) {
  const MoeForm& f = layer.form[fc];
  const Format* const format = format_of(f, layer.type);
  if (!format || !layer.tensor_cores || f.k % 32 != 0) return nullptr;
  if (format->columns > 1 && (f.k % 64 != 0 || f.n % format->columns != 0)) return nullptr;
  if (f.block_shift < 5 && f.type != MoeType::e4m3) return nullptr;  // a scale for 32 codes or more
  if (fc == 0 && layer.pairing == MoePairing::separate) {
    const MoeForm& third = layer.form[2];
    if (third.storage != f.storage || third.bits != f.bits || third.type != f.type || third.block_shift != f.block_shift ||
        third.zeros != f.zeros || third.scale_row_shift != f.scale_row_shift)
      return nullptr;
  }
  if (fc == 0 && layer.pairing == MoePairing::halves && layer.inter % format->columns != 0) return nullptr;
  return format;
}

// Panels of FC1 that a block takes one after the other, so that all blocks run at once, `blocks` on a multiprocessor, and each goes on
// reading when it finishes a panel.
uint32_t panels_of_block(const Limits& limits, const MoeLayer& layer, uint32_t n_tokens, uint32_t blocks) {
  if (layer.form[0].zeros != MoeZeros::middle || layer.form[2].zeros != MoeZeros::middle)
    return 1;  // they are looked up beside the panel read
  if (layer.panels) return layer.panels;
  const double n = layer.n_experts, used = n * (1 - std::pow(1 - layer.k / n, n_tokens));  // experts of random routes
  const double panels = ceil_div(layer.inter, layer.pairing == MoePairing::none ? 16 : 8) * used;
  return std::max(1u, static_cast<uint32_t>(std::ceil(panels / (limits.multiprocessors * blocks))));
}

// Whether the kernels for few rows compute a call: they multiply 8 rows of an expert at a time, so experts should have about as many.
bool reads_once(const MoeLayer& layer, uint32_t n_tokens) {
  return n_tokens <= kFewTokens || (n_tokens <= kMostTokens && n_tokens * layer.k <= 4 * layer.n_experts);
}

Product choose(const Limits& limits, const MoeLayer& layer, int fc, uint32_t n_tokens) {
  Product p;
  const MoeForm& f = layer.form[fc];
  const Format* const format = fast_format(layer, fc);
  if (!format) return p;
  const uint32_t parts = layer.type == MoeType::f32 ? 3 : 1;
  p.grouped = !reads_once(layer, n_tokens);
  if (!p.grouped && !layer.few_tensor_cores) return p;
  if (p.grouped) {
    const uint32_t steps = parts == 3 ? 2 : 4, stages = parts == 3 ? 3 : 2;
    p.unit = make_unit(layer, f, *format, steps, steps);
    const uint32_t stage = parts * kTileRows * steps * 64 + kTilePanels * p.unit.bytes;
    p.shared = std::max(stages * stage, kTileRows * (kTilePanels * 16 + 4) * 4);
    if (p.unit.granule == 0) return Product();
  } else {
    const uint32_t run = f.storage == MoeStorage::sm80 && f.bits == 2 ? 16 : format->step_bytes;
    const uint32_t read = run % 16 == 0 ? 16 : run % 8 == 0 ? 8 : 4;  // bytes at once
    if (layer.weight_alignment % read != 0 || f.row_bytes * format->columns % read != 0) return p;
    const uint32_t routes = n_tokens * layer.k;
    p.pairs = n_tokens <= 2 ? 1 : 4;
    if (fc == 1) {
      // Two small blocks a multiprocessor where there are more than one for each.
      p.warps = ceil_div(layer.hidden, 16) > static_cast<uint32_t>(limits.multiprocessors) ? kSecondWarps / 2 : kSecondWarps;
      p.parts = std::max(1u, p.warps / routes);
    }
    const bool codes = f.storage == MoeStorage::raw || f.storage == MoeStorage::sm80;
    if (p.pairs == 1 && layer.type != MoeType::f32)
      p.quick = codes ? f.type == layer.type && f.block_shift == 5 && f.blocks % 2 == 0 && f.zeros == MoeZeros::middle &&
                            layer.scale_alignment % 4 == 0
                      : f.storage == MoeStorage::fp8 && f.type == MoeType::none;
    p.shared = fc == 0 ? 2 * kFirstWarps * 2 * p.pairs * 16 * 4 : routes * (p.parts * 16 + 16 + 3) * 4;
    if (fc == 0) {
      p.warps = kFirstWarps;
      p.panels = panels_of_block(limits, layer, n_tokens, p.quick ? 6 : p.pairs == 1 ? 5 : 4);
    }
  }
  if (p.shared > static_cast<uint32_t>(limits.shared_bytes_per_block) - kOwnShared) return Product();
  p.format = format;
  p.rows = {parts, format->order};
  return p;
}

DType dtype_of(MoeType t) { return t == MoeType::f16 ? DType::f16 : t == MoeType::bf16 ? DType::bf16 : DType::f32; }

bool wgmma_takes(const Limits& limits, const MoeLayer& layer, int fc, uint32_t n) {
  const MoeForm& f = layer.form[fc];
  const int64_t block = f.block_shift >= 31 ? f.k : int64_t{1} << f.block_shift;
  return f.storage == MoeStorage::raw && f.bits == 4 && f.type == layer.type &&
         (f.bias_type == layer.type || f.bias_type == MoeType::none) && (f.zeros == MoeZeros::middle || f.zeros == MoeZeros::packed) &&
         layer.weight_alignment % 16 == 0 && moe_wgmma_takes(limits, dtype_of(layer.type), f.k, n, block, layer.n_experts);
}

// Whether the products of many rows go to the wgmma kernels.
bool prefers_wgmma(const Limits& limits, const MoeLayer& layer) {
  const bool gated =
      layer.pairing != MoePairing::none && (layer.activation.kind == MoeAct::swiglu || layer.activation.kind == MoeAct::geglu);
  return gated && layer.tensor_cores && layer.wgmma && wgmma_takes(limits, layer, 0, layer.inter) &&
         wgmma_takes(limits, layer, 1, layer.hidden) &&
         (layer.pairing != MoePairing::separate ||
          (wgmma_takes(limits, layer, 2, layer.inter) && layer.form[2].blocks == layer.form[0].blocks));
}

struct Plan {
  Product first, second;
  bool few;        // one kernel routes and groups
  bool sums_rows;  // FC2 leaves rows of routes
  uint32_t max_tiles;
  bool wgmma;       // both products by moe_wgmma.h
  bool prepares_x;  // x has to be put into another order
  MoeRows in, between;
  MoeWorkspace at;
};

MoeRows rows_of(const MoeLayer& layer, const Product& p) {
  if (p.format) return p.rows;
  return {layer.type == MoeType::f32 ? 0u : 1u, MoeOrder::natural};
}

Plan make_plan(const Limits& limits, const MoeLayer& layer, uint32_t n_tokens) {
  Plan p;
  p.first = choose(limits, layer, 0, n_tokens);
  p.second = choose(limits, layer, 1, n_tokens);
  p.wgmma = !reads_once(layer, n_tokens) && prefers_wgmma(limits, layer);
  if (p.wgmma) p.first = p.second = Product();
  const size_t routes = size_t{n_tokens} * layer.k;
  p.few = n_tokens <= kFewTokens && !p.first.grouped && !p.second.grouped;
  p.sums_rows = !p.second.format || p.second.grouped;
  p.max_tiles = static_cast<uint32_t>(routes / kTileRows + std::min<size_t>(routes, layer.n_experts));
  p.in = rows_of(layer, p.first);
  p.between = rows_of(layer, p.second);
  p.prepares_x = !p.wgmma && (p.in.parts == 3 || p.in.order != MoeOrder::natural);
  size_t at = 0;
  const auto place = [&at](size_t bytes) {
    const size_t here = at;
    at += round_up_256(bytes);
    return here;
  };
  const auto row_bytes = [&](const MoeRows& rows) { return rows.parts == 0 ? bytes_of(layer.type) : size_t{2} * rows.parts; };
  p.at.ids = place(routes * 4);
  p.at.weights = place(routes * 4);
  p.at.groups = place(std::min<size_t>(routes, layer.n_experts) * sizeof(MoeGroup));
  p.at.counts = place(16);
  p.at.order = place(routes * 4);
  p.at.tiles = place(p.few ? 0 : p.max_tiles * 4);
  p.at.places = place(p.few ? 0 : routes * 4);
  p.at.sorted_rows = place(p.few ? 0 : routes * 4);
  p.at.offsets = place(p.few ? 0 : (layer.n_experts + 1) * 4);
  p.at.x = place(p.prepares_x ? size_t{n_tokens} * layer.hidden * row_bytes(p.in) : 0);
  if (p.wgmma) {
    p.at.x = place(routes * static_cast<size_t>(chunk_columns(layer.hidden)) * 2);
    p.at.h = place(routes * static_cast<size_t>(chunk_columns(layer.inter)) * 2);
    p.at.rows = place(routes * layer.hidden * 2);
    p.at.total = at;
    return p;
  }
  p.at.h = place(routes * layer.inter * row_bytes(p.between));
  p.at.rows = place(!p.sums_rows ? 0 : routes * layer.hidden * bytes_of(layer.type));
  p.at.total = at;
  return p;
}

Status launch_router(Gpu& gpu, Stream stream, const MoeLayer& layer, const MoeCall& call, const Plan& plan,
                     const MoeProductParams& product) {
  std::byte* const space = static_cast<std::byte*>(call.workspace);
  MoeRouterParams p = {};
  p.logits = call.logits;
  p.given = call.given;
  p.ids = const_cast<int32_t*>(product.ids);
  p.weights = const_cast<float*>(product.weights);
  p.groups = const_cast<MoeGroup*>(product.groups);
  p.counts = plan.few ? const_cast<uint32_t*>(product.counts) : nullptr;
  p.order = const_cast<int32_t*>(product.order);
  p.type = layer.logits_type;
  p.given_type = layer.given_type;
  p.n_tokens = call.n_tokens;
  p.n_experts = layer.n_experts;
  p.k = layer.k;
  p.normalize = layer.normalize;
  p.sparse_mixer = layer.sparse_mixer;
  p.tile_rows = kTileRows;
  const uint32_t warps = plan.few ? std::max(call.n_tokens, 4u) : 8;
  p.router_blocks = ceil_div(call.n_tokens, warps);
  uint32_t others = 0;
  if (plan.prepares_x) {
    p.x = call.x;
    p.prepared = space + plan.at.x;
    p.x_type = layer.type;
    p.hidden = layer.hidden;
    p.rows = plan.in;
    const uint64_t n = uint64_t{call.n_tokens} * layer.hidden;
    others = static_cast<uint32_t>(std::clamp<uint64_t>((n + warps * 64 - 1) / (warps * 64), 1, 1024));
  }
  const uint32_t shared = (warps * (layer.n_experts + 2 * layer.k) + 2 * layer.n_experts) * 4;
  HOTSET_ASSIGN(const Function route, gpu.function("moe_router", "hotset_moe_route", static_cast<int>(shared)));
  HOTSET_TRY(launch_with(
      gpu, stream, {.function = route, .grid_x = p.router_blocks + others, .block = warps * 32, .shared_bytes = shared, .overlap = true},
      p));
  if (plan.few) return {};
  p.counts = const_cast<uint32_t*>(product.counts);
  p.tiles = const_cast<uint32_t*>(product.tiles);
  p.places = reinterpret_cast<int32_t*>(space + plan.at.places);
  p.sorted_rows = reinterpret_cast<int32_t*>(space + plan.at.sorted_rows);
  p.offsets = reinterpret_cast<int32_t*>(space + plan.at.offsets);
  HOTSET_ASSIGN(const Function group, gpu.function("moe_router", "hotset_moe_group"));
  return launch_with(gpu, stream, {.function = group, .block = 1024, .shared_bytes = 8 * layer.n_experts, .overlap = true}, p);
}

Status launch_product(Gpu& gpu, Stream stream, const MoeLayer& layer, const Plan& plan, int fc, uint32_t n_groups, MoeProductParams p) {
  const Product& how = fc == 0 ? plan.first : plan.second;
  const uint32_t width = fc == 0 ? layer.inter : layer.hidden, per_panel = fc == 0 && layer.pairing != MoePairing::none ? 8 : 16;
  p.form = layer.form[fc];
  p.third = layer.form[2];
  p.unit = how.unit;
  p.parts = how.parts;
  p.panels = how.panels;
  p.n_experts = layer.n_experts;
  p.second = fc;
  Launch l;
  l.overlap = true;
  if (!how.format) {
    HOTSET_ASSIGN(l.function, gpu.function("moe_simple", fc == 0 ? "hotset_moe_first_simple" : "hotset_moe_second_simple"));
    l.grid_x = ceil_div(width, 4);
    l.grid_y = n_groups;
    l.block = 128;
    return launch_with(gpu, stream, l, p);
  }
  char fatbin[32], name[64];
  std::snprintf(fatbin, sizeof fatbin, "moe_%s_%s", how.grouped ? "gemm" : "decode", how.format->family);
  if (how.grouped)
    std::snprintf(name, sizeof name, "hotset_moe_gemm_%s_%s", how.format->name, type_name(layer.type));
  else
    std::snprintf(name, sizeof name, "hotset_moe_%s_%s_%s_%u%s", fc == 0 ? "first" : "second", how.format->name, type_name(layer.type),
                  how.pairs, how.quick ? "q" : "");
  HOTSET_ASSIGN(l.function, gpu.function(fatbin, name, gpu.limits().shared_bytes_per_block - kOwnShared));
  l.shared_bytes = how.shared;
  if (how.grouped) {
    l.grid_x = plan.max_tiles;
    l.grid_y = ceil_div(width, per_panel * kTilePanels);
    l.block = 256;
  } else {
    l.grid_x = ceil_div(ceil_div(width, per_panel), fc == 0 ? how.panels : 1);
    l.grid_y = fc == 0 ? n_groups : 1;
    l.block = how.warps * 32;
  }
  return launch_with(gpu, stream, l, p);
}

// Both products of many rows by moe_wgmma.h: rows by place.
Status launch_wgmma(Gpu& gpu, Stream stream, const MoeLayer& layer, const MoeCall& call, const Plan& plan) {
  std::byte* const space = static_cast<std::byte*>(call.workspace);
  const auto* const addresses = reinterpret_cast<const uint64_t*>(call.experts + layer.n_experts);
  const int64_t routes = int64_t{call.n_tokens} * layer.k;
  const DType dtype = dtype_of(layer.type);
  const auto column = [&](int fc, int tensor) { return addresses + static_cast<size_t>(fc * 4 + tensor) * layer.n_experts; };
  const auto product = [&](int fc, uint32_t n) {
    const MoeForm& f = layer.form[fc];
    MoeWgmmaParams p = {};
    p.offsets = reinterpret_cast<const int32_t*>(space + plan.at.offsets);
    p.weights = column(fc, 0);
    p.scales = column(fc, 1);
    if (f.zeros != MoeZeros::middle) p.zeros = column(fc, 2);
    p.experts = static_cast<int32_t>(layer.n_experts);
    p.n = static_cast<int32_t>(n);
    p.k = static_cast<int32_t>(f.k);
    p.blocks = static_cast<int32_t>(f.blocks);
    p.block_shift = static_cast<int32_t>(std::min(f.block_shift, 30u));
    p.row_step = 1;
    return p;
  };
  HOTSET_TRY(moe_gather_chunks(gpu, stream, call.x, reinterpret_cast<const int32_t*>(space + plan.at.sorted_rows), routes, layer.hidden,
                               space + plan.at.x));
  MoeWgmmaParams p = product(0, layer.inter);
  if (layer.form[0].bias_type != MoeType::none) p.biases = column(0, 3);
  p.out = space + plan.at.h;
  p.out_columns = static_cast<int32_t>(chunk_columns(layer.inter));
  p.activation = layer.activation.kind == MoeAct::geglu;
  p.alpha = layer.activation.alpha;
  p.beta = layer.activation.beta;
  p.limit = layer.activation.limit;
  p.limit_after = static_cast<int32_t>(layer.activation.limit_after);
  if (layer.pairing == MoePairing::interleaved) {
    p.row_step = 2;
    p.value_row = 1;
  } else if (layer.pairing == MoePairing::halves) {
    p.value_row = static_cast<int32_t>(layer.inter);
  } else {
    p.value_weights = column(2, 0);
    p.value_scales = column(2, 1);
    if (layer.form[2].zeros != MoeZeros::middle) p.value_zeros = column(2, 2);
    if (layer.form[2].bias_type != MoeType::none) p.value_biases = column(2, 3);
  }
  HOTSET_TRY(moe_wgmma(gpu, stream, dtype, true, p, space + plan.at.x, routes));
  p = product(1, layer.hidden);
  p.out = space + plan.at.rows;
  p.out_columns = static_cast<int32_t>(layer.hidden);
  return moe_wgmma(gpu, stream, dtype, false, p, space + plan.at.h, routes);
}

Status launch_sum(Gpu& gpu, Stream stream, const MoeLayer& layer, const MoeCall& call, const Plan& plan) {
  std::byte* const space = static_cast<std::byte*>(call.workspace);
  MoeSumParams p = {};
  p.rows = space + plan.at.rows;
  p.places = plan.wgmma ? reinterpret_cast<const int32_t*>(space + plan.at.places) : nullptr;
  p.experts = call.experts;
  p.ids = reinterpret_cast<const int32_t*>(space + plan.at.ids);
  p.weights = reinterpret_cast<const float*>(space + plan.at.weights);
  p.y = call.y;
  p.type = layer.type;
  p.bias_type = layer.form[1].bias_type;
  p.n_tokens = call.n_tokens;
  p.k = layer.k;
  p.n = layer.hidden;
  const bool by_8 = layer.type != MoeType::f32 && layer.hidden % 8 == 0 && reinterpret_cast<uintptr_t>(call.y) % 16 == 0;
  HOTSET_ASSIGN(const Function f, gpu.function("moe_router", by_8 ? "hotset_moe_sum_by_8" : "hotset_moe_sum"));
  const uint32_t threads = by_8 ? 128 : 256, width = by_8 ? 8 : 1;
  return launch_with(
      gpu, stream,
      {.function = f, .grid_x = call.n_tokens, .grid_y = ceil_div(layer.hidden, threads * width), .block = threads, .overlap = true}, p);
}

}  // namespace

Status check_moe(const MoeLayer& layer) {
  HOTSET_FAIL_IF(layer.n_experts > kMostExperts, unsupported, "%u experts, device kernels have up to %u", layer.n_experts, kMostExperts);
  return {};
}

size_t moe_table_bytes(uint32_t n_experts) { return n_experts * (sizeof(MoeExpert) + 12 * sizeof(uint64_t)); }

void complete_moe_table(void* table, uint32_t n_experts) {
  auto* const experts = static_cast<MoeExpert*>(table);
  auto* const addresses = reinterpret_cast<uint64_t*>(experts + n_experts);
  for (uint32_t e = 0; e < n_experts; ++e) {
    for (uint32_t fc = 0; fc < 3; ++fc) {
      const MoePlace& place = experts[e].fc[fc];
      const uint8_t* const tensors[4] = {place.weights, place.scales, place.zeros, place.bias};
      for (uint32_t i = 0; i < 4; ++i) addresses[(fc * 4 + i) * n_experts + e] = reinterpret_cast<uintptr_t>(tensors[i]);
    }
  }
}

MoeWorkspace moe_workspace(const Limits& limits, const MoeLayer& layer, uint32_t n_tokens) { return make_plan(limits, layer, n_tokens).at; }

const char* moe_kernels(const Limits& limits, const MoeLayer& layer, uint32_t n_tokens) {
  const Plan plan = make_plan(limits, layer, n_tokens);
  if (plan.wgmma) return "wgmma";
  return plan.first.format && plan.second.format ? "mma" : plan.first.format || plan.second.format ? "mma, simt" : "simt";
}

Status launch_moe(Gpu& gpu, Stream stream, const MoeLayer& layer, const MoeCall& call) {
  if (call.n_tokens == 0) return {};
  const Plan plan = make_plan(gpu.limits(), layer, call.n_tokens);
  std::byte* const space = static_cast<std::byte*>(call.workspace);
  MoeProductParams p = {};
  p.experts = call.experts;
  p.groups = reinterpret_cast<MoeGroup*>(space + plan.at.groups);
  p.counts = reinterpret_cast<uint32_t*>(space + plan.at.counts);
  p.order = reinterpret_cast<int32_t*>(space + plan.at.order);
  p.tiles = reinterpret_cast<uint32_t*>(space + plan.at.tiles);
  p.sorted_rows = reinterpret_cast<int32_t*>(space + plan.at.sorted_rows);
  p.ids = reinterpret_cast<int32_t*>(space + plan.at.ids);
  p.weights = reinterpret_cast<float*>(space + plan.at.weights);
  p.pairing = layer.pairing;
  p.activation = layer.activation;
  p.type = layer.type;
  p.n_tokens = call.n_tokens;
  p.k = layer.k;
  p.inter = layer.inter;
  HOTSET_TRY(launch_router(gpu, stream, layer, call, plan, p));

  if (plan.wgmma) {
    HOTSET_TRY(launch_wgmma(gpu, stream, layer, call, plan));
    return launch_sum(gpu, stream, layer, call, plan);
  }
  const uint32_t n_groups = std::min(call.n_tokens * layer.k, layer.n_experts);
  p.x = plan.prepares_x ? space + plan.at.x : call.x;
  p.in = plan.in;
  p.y = space + plan.at.h;
  p.out = plan.between;
  HOTSET_TRY(launch_product(gpu, stream, layer, plan, 0, n_groups, p));
  p.x = space + plan.at.h;
  p.in = plan.between;
  p.y = plan.sums_rows ? space + plan.at.rows : call.y;
  HOTSET_TRY(launch_product(gpu, stream, layer, plan, 1, n_groups, p));
  return plan.sums_rows ? launch_sum(gpu, stream, layer, call, plan) : Status();
}

}  // namespace hotset::cuda
