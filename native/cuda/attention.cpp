// SPDX-License-Identifier: Apache-2.0
#include "cuda/attention.h"

#include <algorithm>
#include <string>

#include "cuda/code_choice.h"
#include "cuda/fatbins.h"

namespace hotset::cuda {
namespace {

constexpr int kTileRows = 16, kStages = 3;              // attention_rows.cuh
constexpr int kRowSharedBytes = 4 * (1024 + 128 + 64);  // attention_row.cuh
constexpr int kMostSplits = 128;
constexpr int kFewRows = 32;  // up to here a tile of rows and heads wastes less

enum class Path { simple, rows, tiles, wgmma };

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

const char* suffix(DType type) { return type == DType::f32 ? "f32" : type == DType::f16 ? "f16" : "bf16"; }
int element_bytes(DType type) { return type == DType::f32 ? 4 : 2; }

bool aligned(const AttentionRows& r, int64_t to) {
  return r.data % static_cast<uint64_t>(to) == 0 && r.batch % to == 0 && r.head % to == 0 && r.row % to == 0;
}

// How a call runs, from its sizes alone.
struct Plan {
  Path path = Path::simple;
  bool quantised = false, stages = false;
  int padded_d = 0, warps = 0, splits = 1, tiles = 1, min_keys = 0;
  int shared_bytes = 0;
  // Workspace: counters | states of splits | prepared Q | staged K | staged V
  int64_t counters = 0, states = 0, q = 0, staged = 0;

  Plan(const Gpu& gpu, const AttentionCall& call);
  int64_t bytes() const { return counters + states + q + 2 * staged; }
};

int64_t cache_row_bytes(const AttentionCall& c) {
  const int64_t d = c.params.d;
  return c.params.format == kCacheSame ? d * element_bytes(c.type) : c.params.format == kCacheI4 ? (d + 1) / 2 : d;
}

// Most keys that a row tile of any entry may have to read.
int64_t most_keys(const AttentionParams& p, int group) {
  int64_t n = p.fixed_keys;
  if (!n && p.page_rows) n = int64_t{p.table_columns} * p.page_rows;
  if (!n) n = p.capacity && !p.windowed_cache ? p.capacity : int64_t{p.past_capacity} + p.new_rows;
  if (p.window > 0) n = std::min<int64_t>(n, int64_t{p.window} + (kTileRows + group - 1) / group);
  return std::max<int64_t>(n, 1);
}

Plan::Plan(const Gpu& gpu, const AttentionCall& call) {
  const AttentionParams& p = call.params;
  const int group = p.heads / p.kv_heads, element = element_bytes(call.type);
  quantised = p.format != kCacheSame;
  stages = p.prepare_new && (p.windowed_cache || p.capacity == 0);
  if (p.prepare_query) q = round_up(int64_t{p.page_rows ? 1 : p.batch} * p.rows * p.heads * p.d * element, 256);
  if (stages) staged = round_up(int64_t{p.batch} * p.kv_heads * p.new_rows * cache_row_bytes(call), 256);
  const bool fits = p.d == p.dv && p.d % 8 == 0 && p.d <= 256 && !p.qk_output;
  if (!fits) return;

  padded_d = p.d <= 64 ? 64 : p.d <= 128 ? 128 : 256;
  if (p.rows > kFewRows && element == 2 && !quantised && !p.columns && p.scale > 0) {
    const int tile_rows = padded_d == 256 ? 64 : 128;  // as TilesShape and attend_wgmma have it
    tiles = (p.rows + tile_rows - 1) / tile_rows;
    path = Path::tiles;
    shared_bytes = 2 * padded_d * (tile_rows + 4 * 64) + 1024;  // above 48 KB, so that it is asked for
    static const bool has_wgmma = choose_code(kFatbinArchs, 9, 0) == "sm_90a";  // the kernels are empty in other code
    if (has_wgmma && gpu.limits().compute_capability == 90 && padded_d <= 128) {
      path = Path::wgmma;
      shared_bytes = 2 * padded_d * 4 * 64 + 1024;
    }
    if (shared_bytes <= gpu.limits().shared_bytes_per_block) return;
  }

  // As RowsShape has it.
  tiles = static_cast<int>((int64_t{p.rows} * group + kTileRows - 1) / kTileRows);
  path = Path::simple;
  const int compute = quantised && element == 2 ? 2 : element;
  const int keys = (compute == 4 ? 8 : 16) * (padded_d == 64 ? 2 : 1);
  const int lane_bytes = quantised ? 8 : 8 * element;
  const int stage_bytes = keys * padded_d / 128 * lane_bytes * 32;
  const int q_bytes = kTileRows * padded_d * compute + 64, state_bytes = 4 * kTileRows * (2 + padded_d);
  const auto shared = [&](int n) {
    return q_bytes + std::max({n * kStages * stage_bytes, n * (state_bytes + 128), kMostSplits * 128, kRowSharedBytes});
  };
  for (warps = padded_d == 256 ? 4 : 8; warps > 2 && shared(warps) > gpu.limits().shared_bytes_per_block;) warps /= 2;
  shared_bytes = shared(warps);
  if (shared_bytes > gpu.limits().shared_bytes_per_block) return;
  path = Path::rows;
  min_keys = keys * warps;
  const int64_t blocks = int64_t{p.batch} * p.kv_heads * tiles;
  const int64_t pieces = (most_keys(p, group) + min_keys - 1) / min_keys;
  splits =
      static_cast<int>(std::clamp<int64_t>(std::min(gpu.limits().multiprocessors / std::max<int64_t>(blocks, 1), pieces), 1, kMostSplits));
  if (splits > 1) {
    counters = round_up(4 * blocks, 256);
    states = round_up(blocks * splits * state_bytes, 256);
  }
}

AttentionRows dense(DevicePtr data, int64_t heads, int64_t rows, int64_t row_bytes) {
  return {data, heads * rows * row_bytes, rows * row_bytes, row_bytes};
}

Status launch_named(Gpu& gpu, Stream stream, const char* fatbin, const std::string& kernel, Launch how, const AttentionParams& p) {
  HOTSET_ASSIGN(how.function, gpu.function(fatbin, kernel.c_str(), static_cast<int>(how.shared_bytes)));
  how.overlap = true;
  return launch_with(gpu, stream, how, p);
}

// New rows into present or staging, Q normalised and rotated, counters to 0.
Status launch_prepare(Gpu& gpu, Stream stream, DType type, const AttentionParams& p) {
  const int64_t vectors = (p.prepare_query ? p.heads : 0) + (p.prepare_new ? 2 * int64_t{p.kv_heads} : 0);
  const int64_t tasks = int64_t{p.cumulative ? 1 : p.batch} * std::max(p.rows, p.new_rows) * vectors;
  Launch how;
  how.grid_x = static_cast<unsigned>(std::clamp<int64_t>((tasks + 3) / 4, 1, int64_t{gpu.limits().multiprocessors} * 64));
  how.block = 128;
  return launch_named(gpu, stream, "attention_prepare", std::string("hotset_attention_prepare_") + suffix(type), how, p);
}

// Old rows into a present of its own.
Status launch_copy(Gpu& gpu, Stream stream, const AttentionParams& p) {
  Launch how;
  const int64_t bytes = p.present_k.row * p.capacity;
  how.grid_x = static_cast<unsigned>(std::clamp<int64_t>(bytes / (256 * 64), 1, 64));
  how.grid_y = static_cast<unsigned>(p.kv_heads);
  how.grid_z = static_cast<unsigned>(2 * p.batch);
  how.block = 256;
  return launch_named(gpu, stream, "attention_prepare", "hotset_attention_copy", how, p);
}

// Present of a windowed cache from past and staged rows.
Status launch_settle(Gpu& gpu, Stream stream, const AttentionParams& p) {
  const bool wide =
      aligned(p.past_k, 16) && aligned(p.present_k, 16) && aligned(p.past_v, 16) && aligned(p.present_v, 16) && aligned(p.staged_k, 16);
  const int64_t words = p.present_k.row / (wide ? 16 : 1);
  Launch how;
  how.grid_x = static_cast<unsigned>(std::clamp<int64_t>(wide ? words / 2 : words / 32, 1, 16));
  how.grid_y = static_cast<unsigned>(p.kv_heads);
  how.grid_z = static_cast<unsigned>(2 * p.batch);
  how.block = 256;
  return launch_named(gpu, stream, "attention_prepare", wide ? "hotset_attention_settle_16" : "hotset_attention_settle_1", how, p);
}

Status launch_rows(Gpu& gpu, Stream stream, const AttentionCall& call, const Plan& plan, const AttentionParams& p) {
  Launch how;
  how.grid_x = static_cast<unsigned>(p.kv_heads * plan.tiles);
  how.grid_y = static_cast<unsigned>(plan.splits);
  how.grid_z = static_cast<unsigned>(p.batch);
  how.block = static_cast<unsigned>(32 * plan.warps);
  how.shared_bytes = static_cast<unsigned>(plan.shared_bytes);
  const std::string type = suffix(call.type);
  const std::string kernel = "hotset_attention_rows_" + type + "_" + std::to_string(plan.padded_d) + (plan.quantised ? "_quantised" : "");
  return launch_named(gpu, stream, ("attention_rows_" + type).c_str(), kernel, how, p);
}

Status launch_tiles(Gpu& gpu, Stream stream, const AttentionCall& call, const Plan& plan, const AttentionParams& p) {
  Launch how;
  how.grid_x = static_cast<unsigned>(p.heads * plan.tiles);
  how.grid_y = static_cast<unsigned>(p.batch);
  how.block = plan.path == Path::wgmma ? 256 : 128;
  how.shared_bytes = static_cast<unsigned>(plan.shared_bytes);
  const std::string type = suffix(call.type), size = "_" + std::to_string(plan.padded_d);
  if (plan.path == Path::wgmma) return launch_named(gpu, stream, "attention_wgmma", "hotset_attention_wgmma_" + type + size, how, p);
  return launch_named(gpu, stream, ("attention_tiles_" + type).c_str(), "hotset_attention_tiles_" + type + size, how, p);
}

Status launch_simple(Gpu& gpu, Stream stream, DType type, const AttentionParams& p) {
  Launch how;
  how.grid_x = static_cast<unsigned>(p.rows);
  how.grid_y = static_cast<unsigned>(p.heads);
  how.grid_z = static_cast<unsigned>(p.batch);
  how.block = 128;
  return launch_named(gpu, stream, "attention_simple", std::string("hotset_attention_simple_") + suffix(type), how, p);
}

// Whether every address suits loads of 8 elements.
bool units_are_aligned(const AttentionParams& p) {
  const int64_t unit = p.format == kCacheSame ? 16 : p.format == kCacheI4 ? 4 : 8;
  for (const AttentionRows* r : {&p.past_k, &p.past_v, &p.present_k, &p.present_v, &p.staged_k, &p.staged_v})
    if (!aligned(*r, unit)) return false;
  return aligned(p.q, 16) && aligned(p.output, 4);
}

}  // namespace

size_t attention_workspace(const Gpu& gpu, const AttentionCall& call) { return static_cast<size_t>(Plan(gpu, call).bytes()); }

const char* attention_kernel_name(const Gpu& gpu, const AttentionCall& call) {
  return Plan(gpu, call).path == Path::simple ? "cuda" : "cuda mma";
}

Status attention(Gpu& gpu, Stream stream, const AttentionCall& call, DevicePtr workspace) {
  const Plan plan(gpu, call);
  AttentionParams p = call.params;
  if (p.batch == 0) return {};
  const Current current(gpu);
  p.counters = workspace;
  p.partial = p.counters + static_cast<uint64_t>(plan.counters);
  const DevicePtr q = p.partial + static_cast<uint64_t>(plan.states), staged = q + static_cast<uint64_t>(plan.q);
  p.splits = plan.splits;
  p.min_keys = plan.min_keys;
  p.n_counters = plan.splits > 1 ? p.batch * p.kv_heads * plan.tiles : 0;
  p.q = p.query;
  if (p.prepare_query) {
    const int64_t head = int64_t{p.d} * element_bytes(call.type);
    p.q = {q, p.page_rows ? 0 : p.rows * p.heads * head, head, p.heads * head};
  }
  if (plan.stages) {
    p.staged_k = dense(staged, p.kv_heads, p.new_rows, cache_row_bytes(call));
    p.staged_v = dense(staged + static_cast<uint64_t>(plan.staged), p.kv_heads, p.new_rows, cache_row_bytes(call));
  }
  const bool copies = p.capacity && !p.page_rows && (p.present_k.data != p.past_k.data || p.present_v.data != p.past_v.data);
  if (copies) HOTSET_TRY(launch_copy(gpu, stream, p));
  if (p.rows == 0) return {};
  const bool prepares = p.prepare_query || p.prepare_new || p.n_counters > 0;
  if (prepares) HOTSET_TRY(launch_prepare(gpu, stream, call.type, p));
  p.early = prepares && !copies && !p.page_rows;
  const Path path = units_are_aligned(p) ? plan.path : Path::simple;
  HOTSET_TRY(path == Path::simple ? launch_simple(gpu, stream, call.type, p)
             : path == Path::rows ? launch_rows(gpu, stream, call, plan, p)
                                  : launch_tiles(gpu, stream, call, plan, p));
  return p.windowed_cache ? launch_settle(gpu, stream, p) : Status();
}

}  // namespace hotset::cuda
