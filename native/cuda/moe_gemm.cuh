// SPDX-License-Identifier: Apache-2.0
// Grouped products of a mixture-of-experts layer for many rows, with mma.sync (sm_80 and newer).
//
// A tile is up to 128 rows of one group by 8 panels of 16 matrix rows. Codes and scales of 64 columns and the rows' elements for them
// go through shared memory, kStages deep, by asynchronous copies; nothing of the sizes of groups is known to the host: the list of
// tiles was made by hotset_moe_group and blocks beyond its end leave at once. 8 warps: 4 of two panels each by 2 of 64 rows each.
// As in moe_decode.cuh codes are exact and scales meet float32 sums, so no weight is rounded.
//
//   rows in shared memory: [part][row][128 bytes], 16-byte pieces of odd rows with their halves exchanged, so that the pieces that 8
//   lanes read at once (4 of an even row, 4 of an odd one) lie in different banks
#pragma once
#include "cuda/moe_decode.cuh"

namespace hotset::cuda::moe {

constexpr uint32_t kTileRows = 128, kTilePanels = 8, kStageSteps = 2;
constexpr uint32_t kSumPitch = kTilePanels * 16 + 4;

template <class R>
constexpr int kGemmStages = R::kParts == 3 ? 3 : 4;

// What a stage holds of rows.
template <class R>
constexpr uint32_t kRowBytes = R::kParts * kTileRows * 128;

// Sums of a warp: [panel][8 rows][16 x 8 of the mma].
using TileSums = float[2][8][4];

template <class F, class R>
__device__ __forceinline__ void multiply_stage(const MoeForm& f, const uint8_t* const (&unit)[2], const uint8_t* rows_at, uint32_t step0,
                                               uint32_t steps, const LaneRows (&l)[2], uint32_t g, uint32_t t, uint32_t n_tiles,
                                               TileSums& sums) {
  using Half = typename R::Half;
  const LaneScales<F> scales[2] = {{f, unit[0], step0, l[0]}, {f, unit[1], step0, l[1]}};
  const bool given = F::kCodes && f.zeros != MoeZeros::middle;
  const uint32_t middle = F::kCodes ? zero_pair<Half, F::kBits>(1u << (F::kBits - 1)) : 0;
#pragma unroll 1
  for (uint32_t s = 0; s < steps; ++s) {
    const uint32_t step = step0 + s, block = step * 32 >> f.block_shift;
    uint32_t a[2][2][4];  // panel, row, pair
    float scale[2][2];
#pragma unroll
    for (int panel = 0; panel < 2; ++panel) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        F::template load<Half>(unit[panel] + l[panel].line[i], l[panel].column[i], s, t,
                               load_argument<F, Half>(f, l[panel], scales[panel], i, step, given, middle), a[panel][i]);
        scale[panel][i] = scales[panel].template get<MoeType::none>(i, block);
      }
    }
#pragma unroll
    for (uint32_t j = 0; j < 8; ++j) {
      if (j >= n_tiles) break;
      uint4 b[R::kParts];
#pragma unroll
      for (int part = 0; part < R::kParts; ++part)
        b[part] =
            *reinterpret_cast<const uint4*>(rows_at + part * (kTileRows * 128) + (j * 8 + g) * 128 + ((s * 4 + t) ^ (g & 1) << 2) * 16);
#pragma unroll
      for (int panel = 0; panel < 2; ++panel) {
        float d[4] = {};
#pragma unroll
        for (int part = 0; part < R::kParts; ++part) {
          mma<Half>(d, a[panel][0][0], a[panel][1][0], a[panel][0][1], a[panel][1][1], b[part].x, b[part].y);
          mma<Half>(d, a[panel][0][2], a[panel][1][2], a[panel][0][3], a[panel][1][3], b[part].z, b[part].w);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[panel][j][i] = fmaf(d[i], scale[panel][i / 2], sums[panel][j][i]);
      }
    }
  }
}

// Grid: tiles, blocks of 8 panels. FC1 writes h by place, FC2 rows by route.
template <class F, class R>
__device__ __forceinline__ void grouped_product(const MoeProductParams& p, bool is_second) {
  constexpr int kStages = kGemmStages<R>;
  extern __shared__ __align__(128) uint8_t shared[];
  wait_for_predecessor();
  let_successor_start();
  if (blockIdx.x >= p.counts[1]) return;
  const uint32_t tile = p.tiles[blockIdx.x], m0 = (tile >> 16) * kTileRows;
  const MoeGroup group = p.groups[tile & 0xffff];
  const MoeExpert& expert = p.experts[group.expert];
  const uint32_t rows = min(group.rows - m0, kTileRows), first = group.first + m0;
  const uint32_t thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  const uint32_t k = p.form.k, total = k / 32, n_stages = (total + 1) / 2, stage_bytes = kRowBytes<R> + kTilePanels * p.unit.bytes;
  const auto panel_at = [&](uint32_t i) {
    if (!is_second) return first_panel(p, expert, blockIdx.y * kTilePanels + i);
    Panel panel;
    panel.place[0] = panel.place[1] = &expert.fc[1];
    panel.base[0] = 16 * (blockIdx.y * kTilePanels + i);
    panel.base[1] = panel.base[0] + 8;
    return panel;
  };

  // A thread copies pieces thread % 8 of rows thread / 8 + 32 j.
  const uint16_t* from[4];
#pragma unroll
  for (uint32_t j = 0; j < 4; ++j) {
    const uint32_t m = thread / 8 + 32 * j;
    from[j] = nullptr;
    if (m < rows) {
      const uint64_t row = is_second ? first + m : p.sorted_rows[first + m];
      from[j] = static_cast<const uint16_t*>(p.x) + row * R::kParts * k + thread % 8 * 8;
    }
  }
  const uint32_t piece = (thread % 8 ^ (thread / 8 & 1) << 2) * 16;  // 32 j does not change whether a row is odd
  const Panel copied = panel_at(warp);
  const auto issue = [&](uint32_t i) {
    if (i < n_stages) {
      uint8_t* const at = shared + i % kStages * stage_bytes;
      const uint32_t steps = min(kStageSteps, total - i * kStageSteps);
      copy_unit<F>(p.form, p.unit, copied, i * kStageSteps, steps, at + kRowBytes<R> + warp * p.unit.bytes, lane);
      if (thread % 8 < 4 * steps) {
#pragma unroll
        for (uint32_t j = 0; j < 4; ++j) {
          if (!from[j]) continue;
#pragma unroll
          for (int part = 0; part < R::kParts; ++part)
            copy_async(at + part * (kTileRows * 128) + (thread / 8 + 32 * j) * 128 + piece,
                       reinterpret_cast<const uint8_t*>(from[j] + part * static_cast<uint64_t>(k) + i * 64), 16);
        }
      }
    }
    commit_copies();
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) issue(i);

  const uint32_t panels = warp % 4 * 2, half = warp / 4;
  const bool interleaved = !is_second && p.pairing == MoePairing::interleaved;
  const LaneRows lanes[2] = {lane_rows<F>(p.form, p.unit, panel_at(panels), interleaved, g),
                             lane_rows<F>(p.form, p.unit, panel_at(panels + 1), interleaved, g)};
  const uint32_t n_tiles = rows > half * 64 ? (min(rows - half * 64, 64u) + 7) / 8 : 0;
  TileSums sums = {};
  for (uint32_t i = 0; i < n_stages; ++i) {
    wait_copies<kStages - 2>();
    __syncthreads();
    issue(i + kStages - 1);  // into the stage that everybody left before the barrier
    const uint8_t* const at = shared + i % kStages * stage_bytes;
    const uint8_t* const units[2] = {at + kRowBytes<R> + panels * p.unit.bytes, at + kRowBytes<R> + (panels + 1) * p.unit.bytes};
    multiply_stage<F, R>(p.form, units, at + half * 64 * 128, i * kStageSteps, min(kStageSteps, total - i * kStageSteps), lanes, g, t,
                         n_tiles, sums);
  }

  // Sums change hands through shared memory, [row][kSumPitch], so that stores go to neighbours.
  wait_copies<0>();
  __syncthreads();
  float* const all = reinterpret_cast<float*>(shared);
#pragma unroll
  for (uint32_t panel = 0; panel < 2; ++panel) {
#pragma unroll
    for (uint32_t j = 0; j < 8; ++j) {
      float* const at = all + (half * 64 + j * 8 + 2 * t) * kSumPitch + (panels + panel) * 16 + g;
      at[0] = sums[panel][j][0];
      at[kSumPitch] = sums[panel][j][1];
      at[8] = sums[panel][j][2];
      at[kSumPitch + 8] = sums[panel][j][3];
    }
  }
  __syncthreads();
  const bool pairs = !is_second && p.pairing != MoePairing::none;
  const uint32_t shift = pairs ? 6 : 7, width = is_second ? p.form.n : p.inter;
  for (uint32_t i = thread; i < rows << shift; i += blockDim.x) {
    const uint32_t m = i >> shift, f = i & ((1u << shift) - 1), n = (blockIdx.y << shift) + f;
    if (n >= width) continue;
    const float* const at = all + m * kSumPitch + (pairs ? f / 8 * 16 + f % 8 : f);
    if (is_second)
      store_as(p.type, p.y, static_cast<uint64_t>(p.order[first + m]) * width + n, at[0] * expert.fc[1].global_scale);
    else
      store_row_element(p.out, p.type, p.y, first + m, width, n, finish_feature(p, expert, n, at[0], pairs ? at[8] : 0.0f));
  }
}

}  // namespace hotset::cuda::moe

// Kernels hotset_moe_gemm_<format>_<rows>.
#define HOTSET_MOE_GEMM(format, F, rows, R)                                                         \
  extern "C" __global__ void __launch_bounds__(256)                                                 \
      hotset_moe_gemm_##format##_##rows(const __grid_constant__ hotset::cuda::MoeProductParams p) { \
    hotset::cuda::moe::grouped_product<hotset::cuda::moe::F, hotset::cuda::moe::R>(p, p.second);    \
  }
#define HOTSET_MOE_GEMM_ROWS(format, F)      \
  HOTSET_MOE_GEMM(format, F, f16, RowsF16)   \
  HOTSET_MOE_GEMM(format, F, bf16, RowsBf16) \
  HOTSET_MOE_GEMM(format, F, f32, RowsF32)
