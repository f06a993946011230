// SPDX-License-Identifier: Apache-2.0
// Products of a mixture-of-experts layer for a few rows, bound by reading weights: each byte is read once, whoever shares it.
//
// A panel is 16 rows of a matrix. Its columns (k) are cut into a slice a warp; a warp streams the slice through units of its own in
// shared memory, multiplies with tensor cores and adds up 16 x 8 results for up to two passes. Codes go in as exact 16-bit floats and
// scales are applied to the float32 sums of 32 products, so no weight is rounded. Float32 rows are three bf16 columns
// each: products are exact there too.
//
//   columns g = 0 ... 7 of a pass: 16-bit rows m = g; float32 rows m = g mod 2, part g / 2 (6 and 7 are empty)
//
// FC1: a block owns one panel of one group and writes activated features. FC2: a block owns 16 columns of the result for all groups,
// keeps the rows of routes in shared memory and sums them in the order of routes: no atomics, the same bits in every run.
#pragma once
#include "cuda/moe_formats.cuh"

namespace hotset::cuda::moe {

constexpr int kPasses = 2;

// Rows of the layer's type as factors.
struct RowsF16 {
  using Half = __half;
  static constexpr MoeType kType = MoeType::f16;
  static constexpr int kParts = 1, kRows = 8;  // rows of a pass
};
struct RowsBf16 {
  using Half = __nv_bfloat16;
  static constexpr MoeType kType = MoeType::bf16;
  static constexpr int kParts = 1, kRows = 8;
};
struct RowsF32 {
  using Half = __nv_bfloat16;
  static constexpr MoeType kType = MoeType::f32;
  static constexpr int kParts = 3, kRows = 2;
};

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
  // Of the type `known`, or of any with `none`.
  template <MoeType known>
  __device__ __forceinline__ float get(int i, uint32_t block) const {
    if (kHasNone) return 1;
    const MoeType is = known == MoeType::none ? type : known;
    if (is == MoeType::f16) return f16_bits_to_float(*reinterpret_cast<const uint16_t*>(at[i] + block * 2));
    if (is == MoeType::bf16) return bf16_bits_to_float(*reinterpret_cast<const uint16_t*>(at[i] + block * 2));
    if (is == MoeType::f32) return *reinterpret_cast<const float*>(at[i] + block * 4);
    if (is == MoeType::e8m0) return e8m0_to_float(at[i][block]);
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

// Adds the products of one unit. columns[pass]: the lane's column of a row as MoeRows has it. Not `general`: one pass, scales of the
// type `known`, no zero points.
template <class F, class R, MoeType known, bool general>
__device__ __forceinline__ void multiply_steps(const MoeForm& f, const uint8_t* unit, uint32_t step0, uint32_t steps, const LaneRows& l,
                                               uint32_t t, const uint16_t* const (&columns)[kPasses], bool second_pass,
                                               float (&sums)[kPasses][4]) {
  using Half = typename R::Half;
  const LaneScales<F> scales(f, unit, step0, l);
  const bool given = general && F::kCodes && f.zeros != MoeZeros::middle;
  const uint32_t middle = F::kCodes ? zero_pair<Half, F::kBits>(1u << (F::kBits - 1)) : 0;
#pragma unroll(general ? 1 : 4)
  for (uint32_t s = 0; s < steps; ++s) {
    const uint32_t step = step0 + s, block = step * 32 >> f.block_shift;
    uint4 b[kPasses];
#pragma unroll
    for (int pass = 0; pass < (general ? kPasses : 1); ++pass)
      if (pass == 0 || second_pass) b[pass] = *reinterpret_cast<const uint4*>(columns[pass] + step * 32 + 8 * t);
    uint32_t a[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      F::template load<Half>(unit + l.line[i], l.column[i], s, t, load_argument<F, Half>(f, l, scales, i, step, given, middle), a[i]);
    const float s0 = scales.template get<known>(0, block), s1 = scales.template get<known>(1, block);
#pragma unroll
    for (int pass = 0; pass < (general ? kPasses : 1); ++pass) {
      if (pass && !second_pass) break;
      float part[4] = {};
      mma<Half>(part, a[0][0], a[1][0], a[0][1], a[1][1], b[pass].x, b[pass].y);
      mma<Half>(part, a[0][2], a[1][2], a[0][3], a[1][3], b[pass].z, b[pass].w);
      sums[pass][0] = fmaf(part[0], s0, sums[pass][0]);
      sums[pass][1] = fmaf(part[1], s0, sums[pass][1]);
      sums[pass][2] = fmaf(part[2], s1, sums[pass][2]);
      sums[pass][3] = fmaf(part[3], s1, sums[pass][3]);
    }
  }
}

template <class F, class R>
__device__ __forceinline__ void multiply_unit(const MoeForm& f, const uint8_t* unit, uint32_t step0, uint32_t steps, const LaneRows& l,
                                              uint32_t t, const uint16_t* const (&columns)[kPasses], bool second_pass,
                                              float (&sums)[kPasses][4]) {
  const bool general = second_pass || (F::kCodes && f.zeros != MoeZeros::middle);
  if (!general && LaneScales<F>::kHasNone)
    multiply_steps<F, R, MoeType::none, false>(f, unit, step0, steps, l, t, columns, false, sums);
  else if (!general && F::kCodes && f.type == MoeType::f16)
    multiply_steps<F, R, MoeType::f16, false>(f, unit, step0, steps, l, t, columns, false, sums);
  else if (!general && F::kCodes && f.type == MoeType::bf16)
    multiply_steps<F, R, MoeType::bf16, false>(f, unit, step0, steps, l, t, columns, false, sums);
  else if (!general && !F::kCodes && F::kBits == 4)
    multiply_steps<F, R, MoeType::e8m0, false>(f, unit, step0, steps, l, t, columns, false, sums);
  else if (!general && !F::kCodes && F::kBits == 8 && f.type == MoeType::f32)
    multiply_steps<F, R, MoeType::f32, false>(f, unit, step0, steps, l, t, columns, false, sums);
  else
    multiply_steps<F, R, MoeType::none, true>(f, unit, step0, steps, l, t, columns, second_pass, sums);
}

// Sums of a pass to rows [row][16] in shared memory.
template <class R>
__device__ __forceinline__ void store_sums(float (&c)[4], uint32_t g, uint32_t t, uint32_t rows, float* to) {
  if constexpr (R::kParts == 3) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (t == 3) c[i] = 0;  // columns 6 and 7 belong to no part
      c[i] += __shfl_xor_sync(0xffffffffu, c[i], 1);
      c[i] += __shfl_xor_sync(0xffffffffu, c[i], 2);
    }
    if (t != 0) return;
  }
  const uint32_t m = R::kParts == 3 ? 0 : 2 * t;
  if (m < rows) {
    to[m * 16 + g] = c[0];
    to[m * 16 + g + 8] = c[2];
  }
  if (m + 1 < rows) {
    to[(m + 1) * 16 + g] = c[1];
    to[(m + 1) * 16 + g + 8] = c[3];
  }
}

// The lane's columns of rows [0, rows) of a group; `row_at(m)` gives the index of a row of x. Lanes of empty columns get some other
// one, whose results nobody looks at.
template <class R, class RowAt>
__device__ __forceinline__ void find_columns(const void* x, uint32_t k, uint32_t rows, uint32_t g, RowAt row_at,
                                             const uint16_t* (&columns)[kPasses]) {
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const uint32_t m = pass * R::kRows + (R::kParts == 3 ? g & 1 : g), part = R::kParts == 3 && g < 6 ? g >> 1 : 0;
    columns[pass] = static_cast<const uint16_t*>(x) + (static_cast<uint64_t>(row_at(m < rows ? m : 0)) * R::kParts + part) * k;
  }
}

// Panel of features [8 i, 8 i + 8) with gate and value, or [16 i, 16 i + 16) without.
__device__ __forceinline__ Panel first_panel(const MoeProductParams& p, const MoeExpert& e, uint32_t i) {
  Panel panel;
  panel.place[0] = panel.place[1] = &e.fc[0];
  panel.base[0] = 16 * i;
  panel.base[1] = 16 * i + 8;
  if (p.pairing == MoePairing::halves || p.pairing == MoePairing::separate) {
    panel.base[0] = 8 * i;
    panel.base[1] = p.pairing == MoePairing::halves ? p.inter + 8 * i : 8 * i;
    if (p.pairing == MoePairing::separate) panel.place[1] = &e.fc[2];
  }
  return panel;
}

// One feature of one row: `gate` and `value` are sums without scale and bias.
__device__ __forceinline__ float finish_feature(const MoeProductParams& p, const MoeExpert& e, uint32_t feature, float gate, float value) {
  gate = round_to(p.type, gate * e.fc[0].global_scale) +
         bias_at(p.form.bias_type, e.fc[0], p.pairing == MoePairing::interleaved ? 2 * feature : feature);
  if (p.pairing == MoePairing::none) return activate(p.activation, p.pairing, gate, 0);
  bool third;
  const uint32_t row = first_row(p.pairing, p.inter, feature, 1, &third);
  const MoePlace& place = third ? e.fc[2] : e.fc[0];
  value = round_to(p.type, value * place.global_scale) + bias_at(third ? p.third.bias_type : p.form.bias_type, place, row);
  return activate(p.activation, p.pairing, gate, value);
}

// Dynamic shared memory of both: units [warps][stages] | sums [warps][rows][16] (FC2: | place of a route [R]).
template <class F, class R>
__device__ __forceinline__ void first_product(const MoeProductParams& p) {
  constexpr int kStages = 4;
  extern __shared__ __align__(16) uint8_t shared[];
  wait_for_predecessor();
  let_successor_start();
  if (blockIdx.y >= p.counts[0]) return;
  const MoeGroup group = p.groups[blockIdx.y];
  const MoeExpert& expert = p.experts[group.expert];
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint32_t total = p.form.k / 32, begin = min(warp * p.slice, total), n_steps = min(p.slice, total - begin);
  const uint32_t unit_steps = p.unit.steps, n_units = (n_steps + unit_steps - 1) / unit_steps;
  const Panel panel = first_panel(p, expert, blockIdx.x);
  uint8_t* const units = shared + warp * p.stages * p.unit.bytes;
  float* const sums_at = reinterpret_cast<float*>(shared + p.n_warps * p.stages * p.unit.bytes);
  const auto issue = [&](uint32_t u) {
    if (u < n_units)
      copy_unit<F>(p.form, p.unit, panel, begin + u * unit_steps, min(unit_steps, n_steps - u * unit_steps),
                   units + u % kStages * p.unit.bytes, lane);
    commit_copies();
  };
#pragma unroll 1
  for (uint32_t u = 0; u < kStages; ++u) issue(u);

  const uint16_t* columns[kPasses];
  find_columns<R>(p.x, p.form.k, group.rows, g, [&](uint32_t m) { return p.order[group.first + m] / p.k; }, columns);
  const LaneRows rows = lane_rows<F>(p.form, p.unit, panel, p.pairing == MoePairing::interleaved, g);
  const bool second = group.rows > R::kRows;
  float sums[kPasses][4] = {};
  for (uint32_t u = 0; u < n_units; ++u) {
    wait_copies<kStages - 1>();
    __syncwarp();
    multiply_unit<F, R>(p.form, units + u % kStages * p.unit.bytes, begin + u * unit_steps, min(unit_steps, n_steps - u * unit_steps), rows,
                        t, columns, second, sums);
    __syncwarp();
    issue(u + kStages);
  }
  float* const mine = sums_at + warp * (kPasses * R::kRows * 16);
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass)
    if (pass == 0 || second) store_sums<R>(sums[pass], g, t, group.rows - pass * R::kRows, mine + pass * R::kRows * 16);
  __syncthreads();

  const bool pairs = p.pairing != MoePairing::none;
  const uint32_t features = pairs ? 8 : 16;
  for (uint32_t i = threadIdx.x; i < group.rows * features; i += blockDim.x) {
    const uint32_t m = i / features, f = i % features, feature = blockIdx.x * features + f;
    if (feature >= p.inter) continue;
    float gate = 0, value = 0;
    for (uint32_t w = 0; w < p.n_warps; ++w) {
      const float* const at = sums_at + w * (kPasses * R::kRows * 16) + m * 16 + f;
      gate += at[0];
      if (pairs) value += at[8];
    }
    store_row_element(p.out, p.type, p.y, group.first + m, p.inter, feature, finish_feature(p, expert, feature, gate, value));
  }
}

template <class F, class R>
__device__ __forceinline__ void second_product(const MoeProductParams& p) {
  constexpr int kStages = 8;
  extern __shared__ __align__(16) uint8_t shared[];
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint32_t total = p.form.k / 32, begin = min(warp * p.slice, total), n_steps = min(p.slice, total - begin);
  const uint32_t unit_steps = p.unit.steps, units_of_group = (n_steps + unit_steps - 1) / unit_steps;
  const uint32_t routes = p.n_tokens * p.k;
  uint8_t* const units = shared + warp * p.stages * p.unit.bytes;
  float* const sums_at = reinterpret_cast<float*>(shared + p.n_warps * p.stages * p.unit.bytes);
  uint32_t* const place_of = reinterpret_cast<uint32_t*>(sums_at + p.n_warps * routes * 16);
  // The kernel before this one let it start only after it had seen the end of the one that routed: groups are there, h is not.
  const uint32_t n_groups = __ldcg(p.counts), n_units = n_groups * units_of_group;
  const auto group_of = [&](uint32_t i) {
    const uint4 v = __ldcg(reinterpret_cast<const uint4*>(p.groups) + i);
    return MoeGroup{v.x, v.y, v.z, v.w};
  };
  const auto panel_of = [&](const MoeGroup& group) {
    Panel panel;
    panel.place[0] = panel.place[1] = &p.experts[group.expert].fc[1];
    panel.base[0] = 16 * blockIdx.x;
    panel.base[1] = 16 * blockIdx.x + 8;
    return panel;
  };
  const auto issue = [&](uint32_t u) {
    if (u < n_units) {
      const uint32_t chunk = u % units_of_group;
      copy_unit<F>(p.form, p.unit, panel_of(group_of(u / units_of_group)), begin + chunk * unit_steps,
                   min(unit_steps, n_steps - chunk * unit_steps), units + u % kStages * p.unit.bytes, lane);
    }
    commit_copies();
  };
#pragma unroll 1
  for (uint32_t u = 0; u < kStages; ++u) issue(u);
  wait_for_predecessor();
  let_successor_start();

  for (uint32_t i = threadIdx.x; i < routes; i += blockDim.x) place_of[p.order[i]] = i;
  for (uint32_t i = 0, u = 0; i < n_groups; ++i) {
    const MoeGroup group = group_of(i);
    const LaneRows rows = lane_rows<F>(p.form, p.unit, panel_of(group), false, g);
    const uint16_t* columns[kPasses];
    find_columns<R>(p.x, p.form.k, group.rows, g, [&](uint32_t m) { return group.first + m; }, columns);
    const bool second = group.rows > R::kRows;
    float sums[kPasses][4] = {};
    for (uint32_t chunk = 0; chunk < units_of_group; ++chunk, ++u) {
      wait_copies<kStages - 1>();
      __syncwarp();
      multiply_unit<F, R>(p.form, units + u % kStages * p.unit.bytes, begin + chunk * unit_steps,
                          min(unit_steps, n_steps - chunk * unit_steps), rows, t, columns, second, sums);
      __syncwarp();
      issue(u + kStages);
    }
    float* const mine = sums_at + (warp * routes + group.first) * 16;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass)
      if (pass == 0 || second) store_sums<R>(sums[pass], g, t, group.rows - pass * R::kRows, mine + pass * R::kRows * 16);
  }
  __syncthreads();

  for (uint32_t i = threadIdx.x; i < p.n_tokens * 16; i += blockDim.x) {
    const uint32_t token = i / 16, c = i % 16, column = blockIdx.x * 16 + c;
    if (column >= p.form.n) continue;
    float sum = 0;
    for (uint32_t j = 0; j < p.k; ++j) {
      const uint32_t route = token * p.k + j, place = place_of[route];
      const MoePlace& fc2 = p.experts[p.ids[route]].fc[1];
      float row = 0;
      for (uint32_t w = 0; w < p.n_warps; ++w) row += sums_at[(w * routes + place) * 16 + c];
      row = round_to(p.type, row * fc2.global_scale) + bias_at(p.form.bias_type, fc2, column);
      const float share = __fmul_rn(p.weights[route], row);  // as the CPU does it: no fused multiply-add
      sum = j == 0 ? share : __fadd_rn(sum, share);
    }
    store_as(p.type, p.y, static_cast<uint64_t>(token) * p.form.n + column, sum);
  }
}

}  // namespace hotset::cuda::moe

// Kernels hotset_moe_first_<format>_<rows> and hotset_moe_second_<format>_<rows>.
#define HOTSET_MOE_DECODE(format, F, rows, R)                                                         \
  extern "C" __global__ void __launch_bounds__(128)                                                   \
      hotset_moe_first_##format##_##rows(const __grid_constant__ hotset::cuda::MoeProductParams p) {  \
    hotset::cuda::moe::first_product<hotset::cuda::moe::F, hotset::cuda::moe::R>(p);                  \
  }                                                                                                   \
  extern "C" __global__ void __launch_bounds__(128)                                                   \
      hotset_moe_second_##format##_##rows(const __grid_constant__ hotset::cuda::MoeProductParams p) { \
    hotset::cuda::moe::second_product<hotset::cuda::moe::F, hotset::cuda::moe::R>(p);                 \
  }
#define HOTSET_MOE_DECODE_ROWS(format, F)      \
  HOTSET_MOE_DECODE(format, F, f16, RowsF16)   \
  HOTSET_MOE_DECODE(format, F, bf16, RowsBf16) \
  HOTSET_MOE_DECODE(format, F, f32, RowsF32)
