// SPDX-License-Identifier: Apache-2.0
// Grouped products of a mixture-of-experts layer for many rows, with mma.sync (sm_80 and newer).
//
// A tile is up to 128 rows of one group by 8 panels of 16 matrix rows. Codes and scales of 128 columns and the rows' elements for them
// go through shared memory, kStages deep, by asynchronous copies; nothing of the sizes of groups is known to the host: the list of
// tiles was made by hotset_moe_group and blocks beyond its end leave at once. 8 warps: 4 of two panels each by 2 of 64 rows each.
// Codes are exact and scales meet float32 sums, so no weight is rounded.
//
//   rows in shared memory: [part][row][kRowPitch bytes], 16-byte pieces of odd rows with their halves exchanged, so that the pieces that 8
//   lanes read at once (4 of an even row, 4 of an odd one) lie in different banks
#pragma once
#include "cuda/moe_panel.cuh"

namespace hotset::cuda::moe {

constexpr uint32_t kTileRows = 128, kTilePanels = 8;
constexpr uint32_t kSumPitch = kTilePanels * 16 + 4;

// What a lane knows of the two panel rows whose codes it takes.
struct LaneRows {
  uint32_t line[2], column[2];  // where they stand in a unit
  uint32_t scale[2];            // offset of their scales there
  uint32_t row[2];              // of the matrix, for zero points and the address of scales
  const MoePlace* place[2];
};

// In a unit, row g of the panel's upper half and row g + 8 are the operand's rows g and g + 8; interleaved gates and values are
// sorted apart here, so that a lane always holds the gate and the value of one feature.
template <class F>
__device__ __forceinline__ LaneRows lane_rows(const MoeForm& f, const MoeUnit& unit, const Panel& panel, bool interleaved, uint32_t g) {
  LaneRows l;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t r = interleaved ? 2 * g + i : g + 8 * i, half = r >= 8;
    l.line[i] = r / F::kColumns * unit.line_pitch;
    l.column[i] = r % F::kColumns;
    l.scale[i] = unit.scale_at + r * unit.scale_pitch;
    l.row[i] = min(panel.base[half] + r - 8 * half, f.n - 1);
    l.place[i] = panel.place[half];
  }
  return l;
}

// Scales of a lane's rows in one unit.
template <class F>
struct LaneScales {
  static constexpr bool kHasNone = F::kBits == 16 || F::kFolds;
  const uint8_t* at[2];  // of block 0 of the matrix
  uint32_t size;
  MoeType type;

  __device__ __forceinline__ LaneScales(const MoeForm& f, const uint8_t* unit, uint32_t step0, const LaneRows& l) : type(f.type) {
    size = type == MoeType::f32 ? 4 : type == MoeType::f16 || type == MoeType::bf16 ? 2 : 1;
    const uint32_t b0 = step0 * 32 >> f.block_shift;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t phase = (static_cast<uint32_t>(reinterpret_cast<uint64_t>(l.place[i]->scales)) +
                              ((l.row[i] >> f.scale_row_shift) * f.blocks + b0) * size) &
                             3;
      at[i] = unit + l.scale[i] + phase - static_cast<int64_t>(b0 * size);
    }
  }
  __device__ __forceinline__ float get(int i, uint32_t block) const {
    if (kHasNone) return 1;
    if (type == MoeType::f16) return f16_bits_to_float(*reinterpret_cast<const uint16_t*>(at[i] + block * 2));
    if (type == MoeType::bf16) return bf16_bits_to_float(*reinterpret_cast<const uint16_t*>(at[i] + block * 2));
    if (type == MoeType::f32) return *reinterpret_cast<const float*>(at[i] + block * 4);
    if (type == MoeType::e8m0) return e8m0_to_float(at[i][block]);
    return 1;
  }
  // The bytes of both scales of a step of a format that folds them.
  __device__ __forceinline__ uint32_t get_bytes(int i, uint32_t step) const { return *reinterpret_cast<const uint16_t*>(at[i] + 2 * step); }
};

// What load() of a format takes for row i of a lane in one step.
template <class F, class Half>
__device__ __forceinline__ uint32_t load_argument(const MoeForm& f, const LaneRows& l, const LaneScales<F>& scales, int i, uint32_t step,
                                                  bool given, uint32_t middle) {
  if (F::kFolds) return scales.get_bytes(i, step);
  if (!F::kCodes || !given) return middle;
  return zero_pair<Half, F::kBits>(stored_zero_point(f, l.place[i]->zeros, l.row[i], step * 32 >> f.block_shift));
}

// A stage: steps of 32 columns, bytes of a row and of all rows in it.
template <class R>
constexpr uint32_t kStageSteps = R::kParts == 3 ? 2 : 4;
template <class R>
constexpr uint32_t kStages = R::kParts == 3 ? 3 : 2;
template <class R>
constexpr uint32_t kRowPitch = kStageSteps<R> * 64;
template <class R>
constexpr uint32_t kRowBytes = R::kParts * kTileRows * kRowPitch<R>;

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
        scale[panel][i] = scales[panel].get(i, block);
      }
    }
#pragma unroll
    for (uint32_t j = 0; j < 8; ++j) {
      if (j >= n_tiles) break;
      uint4 b[R::kParts];
#pragma unroll
      for (int part = 0; part < R::kParts; ++part)
        b[part] = *reinterpret_cast<const uint4*>(rows_at + part * (kTileRows * kRowPitch<R>)+(j * 8 + g) * kRowPitch<R> +
                                                  ((s * 4 + t) ^ (g & 1) << 2) * 16);
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
  constexpr uint32_t kPieces = kRowPitch<R> / 16, kRowsAtOnce = 256 / kPieces;
  extern __shared__ __align__(128) uint8_t shared[];
  wait_for_predecessor();
  release_successor();
  if (blockIdx.x >= p.counts[1]) return;
  const uint32_t tile = p.tiles[blockIdx.x], m0 = (tile >> 16) * kTileRows;
  const MoeGroup group = p.groups[tile & 0xffff];
  const MoeExpert& expert = p.experts[group.expert];
  const uint32_t rows = min(group.rows - m0, kTileRows), first = group.first + m0;
  const uint32_t thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  const uint32_t k = p.form.k, total = k / 32, n_stages = (total + kStageSteps<R> - 1) / kStageSteps<R>,
                 stage_bytes = kRowBytes<R> + kTilePanels * p.unit.bytes;
  const auto panel_at = [&](uint32_t i) {
    if (!is_second) return first_panel(p, expert, blockIdx.y * kTilePanels + i);
    Panel panel;
    panel.place[0] = panel.place[1] = &expert.fc[1];
    panel.base[0] = 16 * (blockIdx.y * kTilePanels + i);
    panel.base[1] = panel.base[0] + 8;
    return panel;
  };

  // A thread copies piece thread % kPieces of every kRowsAtOnce-th row.
  __shared__ uint32_t row_ids[kTileRows];
  if (thread < rows) row_ids[thread] = is_second ? first + thread : static_cast<uint32_t>(p.sorted_rows[first + thread]);
  __syncthreads();
  const uint32_t own_piece = thread % kPieces, own_row = thread / kPieces;
  const uint32_t piece = (own_piece ^ (own_row & 1) << 2) * 16;  // kRowsAtOnce is even: all rows of a thread are odd, or none
  const Panel copied = panel_at(warp);
  const auto issue = [&](uint32_t i) {
    if (i < n_stages) {
      uint8_t* const at = shared + i % kStages<R> * stage_bytes;
      const uint32_t steps = min(kStageSteps<R>, total - i * kStageSteps<R>);
      copy_unit<F>(p.form, p.unit, copied, i * kStageSteps<R>, steps, at + kRowBytes<R> + warp * p.unit.bytes, lane);
      if (own_piece < 4 * steps) {
        const uint16_t* const from = static_cast<const uint16_t*>(p.x) + i * (kStageSteps<R> * 32) + own_piece * 8;
#pragma unroll
        for (uint32_t m = own_row; m < kTileRows; m += kRowsAtOnce) {
          if (m >= rows) break;
#pragma unroll
          for (int part = 0; part < R::kParts; ++part)
            copy_async16(at + part * (kTileRows * kRowPitch<R>)+m * kRowPitch<R> + piece,
                         from + (static_cast<uint64_t>(row_ids[m]) * R::kParts + part) * k);
        }
      }
    }
    commit_copies();
  };
#pragma unroll
  for (uint32_t i = 0; i < kStages<R> - 1; ++i) issue(i);

  const uint32_t panels = warp % 4 * 2, half = warp / 4;
  const bool interleaved = !is_second && p.pairing == MoePairing::interleaved;
  const LaneRows lanes[2] = {lane_rows<F>(p.form, p.unit, panel_at(panels), interleaved, g),
                             lane_rows<F>(p.form, p.unit, panel_at(panels + 1), interleaved, g)};
  const uint32_t n_tiles = rows > half * 64 ? (min(rows - half * 64, 64u) + 7) / 8 : 0;
  TileSums sums = {};
  for (uint32_t i = 0; i < n_stages; ++i) {
    wait_copies<kStages<R> - 2>();
    __syncthreads();
    issue(i + kStages<R> - 1);  // into the stage that everybody left before the barrier
    const uint8_t* const at = shared + i % kStages<R> * stage_bytes;
    const uint8_t* const units[2] = {at + kRowBytes<R> + panels * p.unit.bytes, at + kRowBytes<R> + (panels + 1) * p.unit.bytes};
    multiply_stage<F, R>(p.form, units, at + half * 64 * kRowPitch<R>, i * kStageSteps<R>, min(kStageSteps<R>, total - i * kStageSteps<R>),
                         lanes, g, t, n_tiles, sums);
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
      store_row_element(p.out, p.type, p.y, first + m, width, n, finish_feature(p, FeatureEnds(p, expert, n), at[0], pairs ? at[8] : 0.0f));
  }
}

}  // namespace hotset::cuda::moe

// Kernels hotset_moe_gemm_<format>_<rows>.
#define HOTSET_MOE_GEMM(format, F, rows, R)                                                         \
  extern "C" __global__ void __launch_bounds__(256, hotset::cuda::moe::R::kParts == 3 ? 1 : 2)      \
      hotset_moe_gemm_##format##_##rows(const __grid_constant__ hotset::cuda::MoeProductParams p) { \
    hotset::cuda::moe::grouped_product<hotset::cuda::moe::F, hotset::cuda::moe::R>(p, p.second);    \
  }
#define HOTSET_MOE_GEMM_ROWS(format, F)      \
  HOTSET_MOE_GEMM(format, F, f16, RowsF16)   \
  HOTSET_MOE_GEMM(format, F, bf16, RowsBf16) \
  HOTSET_MOE_GEMM(format, F, f32, RowsF32)
