// SPDX-License-Identifier: Apache-2.0
// Products of a mixture-of-experts layer for a few rows, bound by reading weights: each byte is read once, whoever shares it.
//
// A panel is 16 rows of a matrix, a run 32 codes of a row, a chunk 4 runs (128 columns). In the layout of mma.m16n8k16 lane 4 g + t
// reads run t of panel rows g and g + 8 of a chunk, straight into registers, several chunks ahead. The 8 mma of a chunk each take 4 of
// these codes a lane, so one mma adds up products of four runs with four scales. To keep them apart, four of the eight columns of the
// other operand belong to one row of x: column 4 m + r holds run r of row m and zeros for the other runs. So two rows of x go at once,
// and element (g, 4 m + r) of the result is the sum of one run of matrix row g, in float32, without its scale. Then scales are applied: no
// weight is rounded. A float32 row goes in three times, as three bf16 that add up to it, so its products are exact as well.
//
//   pair  two rows of x; kPairs of them share each weight that has been decoded
//
// FC1: a block owns one panel of one group, its warps share the columns; it writes activated features. FC2: a block owns 16 columns of the
// result for all groups; rows of routes meet in shared memory and are summed in the order of routes. No atomics: the same bits in every
// run.
#pragma once
#include "cuda/moe_panel.cuh"

namespace hotset::cuda::moe {

__device__ const uint4 zero_run[4] = {};

// What scales are: of a type and place that allow one load for two, or any.
enum class Scales { none, f16_pairs, bf16_pairs, any };

// What a lane reads of a matrix.
template <class F, Scales kind>
struct LaneMatrix {
  const uint8_t* line[2];  // weights of rows g and g + 8
  uint32_t column[2];
  const uint8_t* scales[2];  // of their rows
  const MoePlace* place[2];
  uint32_t row[2];
  uint32_t runs, t;

  __device__ __forceinline__ LaneMatrix(const MoeForm& f, const Panel& panel, bool interleaved, uint32_t lane)
      : runs(f.k / 32), t(lane % 4) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t g = lane / 4, r = interleaved ? 2 * g + i : g + 8 * i, half = r >= 8;
      place[i] = half ? panel.place[1] : panel.place[0];
      row[i] = min((half ? panel.base[1] - 8 : panel.base[0]) + r, f.n - 1);
      line[i] = place[i]->weights + static_cast<uint64_t>(row[i] / F::kColumns) * (f.row_bytes * F::kColumns);
      column[i] = row[i] % F::kColumns;
      if (kind != Scales::none || F::kFolds)
        scales[i] = place[i]->scales + static_cast<uint64_t>(row[i] >> f.scale_row_shift) * f.blocks * scale_bytes(f.type);
    }
  }
  __device__ static __forceinline__ uint32_t scale_bytes(MoeType type) {
    return type == MoeType::f32 ? 4 : type == MoeType::f16 || type == MoeType::bf16 ? 2 : 1;
  }
};

// A lane's part of a chunk as it comes from memory.
template <class F, Scales kind>
struct Chunk {
  uint32_t words[2][F::kRunWords];
  uint32_t scales[2][kind == Scales::any ? 2 : 1];  // of runs 2 (t mod 2) and the next: what the lane's results need
  uint32_t folded[2];                               // bytes of both scales of the lane's own run

  __device__ __forceinline__ void read(const MoeForm& f, const LaneMatrix<F, kind>& m, uint32_t chunk) {
    const uint32_t run = min(4 * chunk + m.t, m.runs - 1), first = 4 * chunk + 2 * (m.t & 1);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      F::load_run(m.line[i], m.column[i], run, words[i]);
      if (F::kFolds) folded[i] = *reinterpret_cast<const uint16_t*>(m.scales[i] + 2 * run);
      if (kind == Scales::f16_pairs || kind == Scales::bf16_pairs) scales[i][0] = read4(m.scales[i] + 2 * min(first, m.runs - 2));
      if (kind == Scales::any && f.type != MoeType::none) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint32_t block = min(first + j, m.runs - 1) * 32 >> f.block_shift;
          if (f.type == MoeType::f32)
            scales[i][j] = reinterpret_cast<const uint32_t*>(m.scales[i])[block];
          else if (f.type == MoeType::f16 || f.type == MoeType::bf16)
            scales[i][j] = reinterpret_cast<const uint16_t*>(m.scales[i])[block];
          else
            scales[i][j] = m.scales[i][block];
        }
      }
    }
  }
  __device__ __forceinline__ float scale(MoeType type, int i, int j) const {
    if (kind == Scales::none || (kind == Scales::any && type == MoeType::none)) return 1;
    if (kind == Scales::f16_pairs) return f16_bits_to_float(j ? scales[i][0] >> 16 : scales[i][0] & 0xffff);
    if (kind == Scales::bf16_pairs) return __uint_as_float(j ? scales[i][0] & 0xffff0000u : scales[i][0] << 16);
    const uint32_t bits = scales[i][kind == Scales::any ? j : 0];
    if (type == MoeType::f16) return f16_bits_to_float(bits);
    if (type == MoeType::bf16) return bf16_bits_to_float(bits);
    return type == MoeType::e8m0 ? e8m0_to_float(bits) : __uint_as_float(bits);
  }
};

// A lane's column of each pair of rows: run t of row 2 pair + g / 4 if g mod 4 is t, else zeros that it never leaves.
template <class R, int kPairs>
struct LaneRows {
  const uint16_t* at[kPairs];  // of chunk 0
  uint32_t step;               // elements from chunk to chunk
  uint32_t part;               // and from part to part of a row
  bool has_run;

  template <class RowAt>
  __device__ __forceinline__ LaneRows(const void* x, uint32_t k, uint32_t rows, uint32_t lane, RowAt row_at) {
    const uint32_t g = lane / 4, t = lane % 4;
    has_run = (g & 3) == t;
    step = has_run ? 128 : 0;
    part = has_run ? k : 0;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const uint32_t m = 2 * pair + g / 4;  // rows that are not there repeat the first: nobody looks at them
      at[pair] = has_run ? static_cast<const uint16_t*>(x) + static_cast<uint64_t>(row_at(m < rows ? m : 0)) * R::kParts * k + 32 * t
                         : reinterpret_cast<const uint16_t*>(zero_run);
    }
  }
};

// sums[pair][i] += what chunk `c` of the lane's rows gives for row 2 pair + t / 2 of x and panel row g + 8 i, runs 2 (t mod 2), + 1.
template <class F, class R, int kPairs, Scales kind>
__device__ __forceinline__ void multiply_chunk(const MoeForm& f, const LaneMatrix<F, kind>& m, const Chunk<F, kind>& chunk, uint32_t c,
                                               const LaneRows<R, kPairs>& rows, uint32_t n_pairs, float (&sums)[kPairs][2]) {
  using Half = typename R::Half;
  const uint32_t run = 4 * c + m.t;
  const bool beyond = run >= m.runs;
  uint32_t argument[2] = {0, 0};
  if (F::kFolds) {
    argument[0] = chunk.folded[0];
    argument[1] = chunk.folded[1];
  } else if (F::kCodes) {
    argument[0] = argument[1] = zero_pair<Half, F::kBits>(1u << (F::kBits - 1));
    if (kind == Scales::any && f.zeros != MoeZeros::middle) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        argument[i] =
            zero_pair<Half, F::kBits>(stored_zero_point(f, m.place[i]->zeros, m.row[i], min(run, m.runs - 1) * 32 >> f.block_shift));
    }
  }
  float d[kPairs][4] = {};
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    uint32_t a[2][4];
    F::template pairs<Half>(chunk.words[0], w, run, argument[0], a[0]);
    F::template pairs<Half>(chunk.words[1], w, run, argument[1], a[1]);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      if (kPairs > 1 && pair >= n_pairs) break;
#pragma unroll
      for (int part = 0; part < R::kParts; ++part) {
        const uint16_t* const from =
            beyond ? reinterpret_cast<const uint16_t*>(zero_run) : rows.at[pair] + part * rows.part + c * rows.step;
        const uint4 b = *reinterpret_cast<const uint4*>(from + 8 * w);
        mma<Half>(d[pair], a[0][0], a[1][0], a[0][1], a[1][1], b.x, b.y);
        mma<Half>(d[pair], a[0][2], a[1][2], a[0][3], a[1][3], b.z, b.w);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float s0 = chunk.scale(f.type, i, 0), s1 = chunk.scale(f.type, i, 1);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) sums[pair][i] = fmaf(d[pair][2 * i + 1], s1, fmaf(d[pair][2 * i], s0, sums[pair][i]));
  }
}

// Chunks [begin, end) of n_panels panels one after the other, kDepth of them being read at any time: reading goes on into the next panel.
// panel_at(i) describes a panel. `ready` is called when reading has begun and before any row of x is looked at; `done(i, sums)` when
// both lanes of a row of x hold the sum of its runs in panel i.
template <class F, class R, int kPairs, Scales kind, int kDepth, class PanelAt, class Ready, class Done>
__device__ __forceinline__ void multiply_panels(const MoeForm& f, PanelAt panel_at, uint32_t n_panels, bool interleaved, uint32_t begin,
                                                uint32_t end, const LaneRows<R, kPairs>& rows, uint32_t n_pairs, Ready ready, Done done) {
  LaneMatrix<F, kind> m(f, panel_at(0), interleaved, threadIdx.x % 32);  // of what is read next
  uint32_t read_panel = 0, read_chunk = begin;
  const uint32_t total = n_panels * (end - begin);
  const auto read_next = [&](Chunk<F, kind>& chunk) {
    chunk.read(f, m, read_chunk);
    if (++read_chunk < end) return;
    read_chunk = begin;
    if (++read_panel < n_panels) m = LaneMatrix<F, kind>(f, panel_at(read_panel), interleaved, threadIdx.x % 32);
  };
  Chunk<F, kind> ahead[kDepth];
#pragma unroll
  for (int i = 0; i < kDepth; ++i)
    if (i < total) read_next(ahead[i]);
  ready();
  float sums[kPairs][2] = {};
  uint32_t panel = 0, c = begin;
#pragma unroll 1
  for (uint32_t u = 0; u < total; u += kDepth) {
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      if (u + i >= total) break;
      multiply_chunk<F, R, kPairs, kind>(f, m, ahead[i], c, rows, n_pairs, sums);
      if (u + i + kDepth < total) read_next(ahead[i]);
      if (++c < end) continue;
      c = begin;
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair)
#pragma unroll
        for (int half = 0; half < 2; ++half) sums[pair][half] += __shfl_xor_sync(0xffffffffu, sums[pair][half], 1);
      done(panel++, sums);
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) sums[pair][0] = sums[pair][1] = 0;
    }
  }
  if (begin == end)  // a warp without columns takes part in what all do
    for (; panel < n_panels; ++panel) done(panel, sums);
}

// Sums of rows [0, rows) of x to `to` [row][16].
template <int kPairs>
__device__ __forceinline__ void store_sums(const float (&sums)[kPairs][2], uint32_t lane, uint32_t rows, float* to) {
  const uint32_t g = lane / 4, t = lane % 4;
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    const uint32_t m = 2 * pair + t / 2;
    if (m < rows) to[m * 16 + g + 8 * (t & 1)] = t & 1 ? sums[pair][1] : sums[pair][0];
  }
}

// Grid: runs of p.panels panels, groups. Shared memory: sums [2][warps][2 kPairs][16]. More rows than pairs hold go in passes.
template <class F, class R, int kPairs, Scales kind, int kDepth>
__device__ __forceinline__ void first_product(const MoeProductParams& p) {
  constexpr uint32_t kRows = 2 * kPairs;
  extern __shared__ __align__(16) float shared[];
  // The table of experts comes near while the router is still at work.
  for (uint32_t at = threadIdx.x * 128; at < p.n_experts * sizeof(MoeExpert); at += blockDim.x * 128)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(reinterpret_cast<const uint8_t*>(p.experts) + at));
  wait_for_predecessor();
  release_successor();
  const MoeGroup group = p.groups[blockIdx.y];
  if (p.n_tokens > 1 && blockIdx.y >= p.counts[0]) return;  // one row of x has as many groups as routes
  const MoeExpert& expert = p.experts[group.expert];
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_warps = blockDim.x / 32;
  const uint32_t chunks = (p.form.k + 127) / 128, begin = chunks * warp / n_warps, end = chunks * (warp + 1) / n_warps;
  const bool pairs = p.pairing != MoePairing::none;
  const uint32_t features = pairs ? 8 : 16, first = blockIdx.x * p.panels,
                 n_panels = min(p.panels, (p.inter + features - 1) / features - first);
  const uint32_t own_row = threadIdx.x / features, own = threadIdx.x % features;  // what this thread finishes of each panel
  for (uint32_t m0 = 0; m0 < group.rows; m0 += kRows) {
    const uint32_t rows = min(group.rows - m0, kRows);
    const LaneRows<R, kPairs> x(p.x, p.form.k, rows, lane,
                                [&](uint32_t m) { return p.n_tokens == 1 ? 0 : p.order[group.first + m0 + m] / p.k; });
    FeatureEnds ends;
    const auto feature_of = [&](uint32_t panel) { return (first + panel) * features + own; };
    const auto read_ends = [&](uint32_t panel) {
      if (own_row < rows && panel < n_panels) ends = FeatureEnds(p, expert, min(feature_of(panel), p.inter - 1));
    };
    multiply_panels<F, R, kPairs, kind, kDepth>(
        p.form, [&](uint32_t i) { return first_panel(p, expert, first + i); }, n_panels, p.pairing == MoePairing::interleaved, begin, end,
        x, (rows + 1) / 2, [&]() { read_ends(0); },
        [&](uint32_t panel, const float (&sums)[kPairs][2]) {
          float* const at_sums = shared + (panel & 1) * (n_warps * kRows * 16);  // the others may still read those of the panel before
          store_sums(sums, lane, rows, at_sums + warp * (kRows * 16));
          __syncthreads();
          const uint32_t feature = feature_of(panel);
          if (own_row < rows && feature < p.inter) {
            float gate = 0, value = 0;
            for (uint32_t w = 0; w < n_warps; ++w) {
              const float* const at = at_sums + w * (kRows * 16) + own_row * 16 + own;
              gate += at[0];
              if (pairs) value += at[8];
            }
            store_row_element(p.out, p.type, p.y, group.first + m0 + own_row, p.inter, feature, finish_feature(p, ends, gate, value));
          }
          read_ends(panel + 1);
        });
    if (m0 + kRows < group.rows) __syncthreads();
  }
}

// Grid: panels. `parts` warps share the columns of a group. Shared memory: sums [parts][R][16] | biases [R][16] | scale, weight and place
// of a route [R] each. The kernel before this one let it start only after it had seen the end of the one that routed: so groups and what
// belongs to routes is there from the start, h is not.
template <class F, class R, int kPairs, Scales kind, int kDepth>
__device__ __forceinline__ void second_product(const MoeProductParams& p) {
  constexpr uint32_t kRows = 2 * kPairs;
  extern __shared__ __align__(16) float shared[];
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_warps = blockDim.x / 32, routes = p.n_tokens * p.k;
  float* const biases = shared + p.parts * routes * 16;
  float* const scales = biases + routes * 16;
  float* const weights = scales + routes;
  uint32_t* const place_of = reinterpret_cast<uint32_t*>(weights + routes);
  bool waits = true;
  const auto ready = [&]() {
    if (!waits) return;
    waits = false;
    for (uint32_t i = threadIdx.x; i < routes * 16; i += blockDim.x) {
      const uint32_t route = i / 16, column = blockIdx.x * 16 + i % 16;
      const MoePlace& fc2 = p.experts[__ldcg(p.ids + route)].fc[1];
      biases[i] = bias_at(p.form.bias_type, fc2, min(column, p.form.n - 1));
      if (i % 16) continue;
      scales[route] = fc2.global_scale;
      weights[route] = __ldcg(p.weights + route);
      place_of[__ldcg(p.order + route)] = route;
    }
    wait_for_predecessor();
    release_successor();
  };
  const uint32_t items = (p.n_tokens == 1 ? p.k : __ldcg(p.counts)) * p.parts, chunks = (p.form.k + 127) / 128;
  for (uint32_t item = warp; item < items; item += n_warps) {
    const uint4 v = __ldcg(reinterpret_cast<const uint4*>(p.groups) + item / p.parts);
    const MoeGroup group = {v.x, v.y, v.z, v.w};
    const uint32_t part = item % p.parts, begin = chunks * part / p.parts, end = chunks * (part + 1) / p.parts;
    Panel panel;
    panel.place[0] = panel.place[1] = &p.experts[group.expert].fc[1];
    panel.base[0] = 16 * blockIdx.x;
    panel.base[1] = 16 * blockIdx.x + 8;
    for (uint32_t m0 = 0; m0 < group.rows; m0 += kRows) {
      const uint32_t rows = min(group.rows - m0, kRows);
      const LaneRows<R, kPairs> x(p.x, p.form.k, rows, lane, [&](uint32_t m) { return group.first + m0 + m; });
      multiply_panels<F, R, kPairs, kind, kDepth>(
          p.form, [&](uint32_t) { return panel; }, 1, false, begin, end, x, (rows + 1) / 2, ready,
          [&](uint32_t, const float (&sums)[kPairs][2]) {
            store_sums(sums, lane, rows, shared + (part * routes + group.first + m0) * 16);
          });
    }
  }
  ready();
  __syncthreads();

  for (uint32_t i = threadIdx.x; i < p.n_tokens * 16; i += blockDim.x) {
    const uint32_t token = i / 16, c = i % 16, column = blockIdx.x * 16 + c;
    if (column >= p.form.n) continue;
    float sum = 0;
    for (uint32_t j = 0; j < p.k; ++j) {
      const uint32_t route = token * p.k + j, place = place_of[route];
      float row = 0;
      for (uint32_t part = 0; part < p.parts; ++part) row += shared[(part * routes + place) * 16 + c];
      row = round_to(p.type, row * scales[route]) + biases[route * 16 + c];
      const float share = __fmul_rn(weights[route], row);  // as the CPU does it: no fused multiply-add
      sum = j == 0 ? share : __fadd_rn(sum, share);
    }
    store_as(p.type, p.y, static_cast<uint64_t>(token) * p.form.n + column, sum);
  }
}

}  // namespace hotset::cuda::moe

// Kernels hotset_moe_first_<format>_<rows>_<pairs><kind> and hotset_moe_second_...: 1 pair for up to 2 rows of x, 4 for more; kind "q"
// where scales allow quick reading. `blocks`: of FC1 that a multiprocessor should hold; depths: chunks being read.
#define HOTSET_MOE_KERNELS(format, F, rows, R, pairs, suffix, kind, blocks, first_depth, second_depth)                  \
  extern "C" __global__ void __launch_bounds__(128, blocks)                                                             \
      hotset_moe_first_##format##_##rows##_##pairs##suffix(const __grid_constant__ hotset::cuda::MoeProductParams p) {  \
    namespace m = hotset::cuda::moe;                                                                                    \
    m::first_product<m::F, m::R, pairs, m::Scales::kind, first_depth>(p);                                               \
  }                                                                                                                     \
  extern "C" __global__ void __launch_bounds__(512, 1)                                                                  \
      hotset_moe_second_##format##_##rows##_##pairs##suffix(const __grid_constant__ hotset::cuda::MoeProductParams p) { \
    namespace m = hotset::cuda::moe;                                                                                    \
    m::second_product<m::F, m::R, pairs, m::Scales::kind, second_depth>(p);                                             \
  }
// depth: of the kernels for one pair.
#define HOTSET_MOE_ROWS(format, F, rows, R, kind, depth)             \
  HOTSET_MOE_KERNELS(format, F, rows, R, 1, , kind, 5, depth, depth) \
  HOTSET_MOE_KERNELS(format, F, rows, R, 4, , kind, 4, (depth == 1 ? 1 : 2), (depth == 1 ? 1 : 2))
#define HOTSET_MOE_CODES(format, F, depth, quick_depth)                               \
  HOTSET_MOE_ROWS(format, F, f16, RowsF16, any, depth)                                \
  HOTSET_MOE_ROWS(format, F, bf16, RowsBf16, any, depth)                              \
  HOTSET_MOE_ROWS(format, F, f32, RowsF32, any, depth)                                \
  HOTSET_MOE_KERNELS(format, F, f16, RowsF16, 1, q, f16_pairs, 6, depth, quick_depth) \
  HOTSET_MOE_KERNELS(format, F, bf16, RowsBf16, 1, q, bf16_pairs, 6, depth, quick_depth)
#define HOTSET_MOE_FLOATS(format, F, kind, depth)         \
  HOTSET_MOE_ROWS(format, F, f16, RowsF16, kind, depth)   \
  HOTSET_MOE_ROWS(format, F, bf16, RowsBf16, kind, depth) \
  HOTSET_MOE_ROWS(format, F, f32, RowsF32, kind, depth)
