// SPDX-License-Identifier: Apache-2.0
// Attention of 16 query rows that share a key/value head, keys cut into ranges (split-KV decode; also prefill in float32, over
// quantised caches and with a bias).
//
// Rows of a tile are (row s, head h of the group), ordered by s, so that a group of heads reads its keys once. A block is one
// (batch entry, key/value head, row tile, range of keys). Each warp takes every n-th run of kKeys keys of the range and keeps a
// softmax state (m, l, acc) of its own. A lane copies what it will itself read to shared memory several runs ahead (cp.async),
// so that the loop needs no barrier.
//   1. Q to shared memory in the order of the fragments
//   2. runs of keys: x = Q * K, cap, bias, mask, online softmax in base 2, acc += weights * V
//   3. states of the warps are merged; with several ranges the last block of a tile to finish merges those, in order
//   4. the sink's term, scale of V, one rounding; zeros for rows of padding
#pragma once
#include "cuda/attention_states.cuh"

namespace hotset::cuda::attn {

constexpr int kRowStages = 3;  // runs of keys in flight or in use

// Of a kernel of T over head sizes up to DP. A warp's run is 8 or 16 KB.
template <class T, class C, int DP, bool kQuantised>
struct RowsShape {
  static constexpr int kKeys = (sizeof(C) == 4 ? 8 : 16) * (DP == 64 ? 2 : 1);
  static constexpr int kGroups = kKeys / 8;  // of 8 keys
  static constexpr int kKUnits = DP / 32, kVUnits = DP / 64;
  static constexpr int kUnits = kGroups * (kKUnits + 2 * kVUnits);              // of a lane and run
  static constexpr int kLaneBytes = kQuantised ? 8 : sizeof(T) == 4 ? 32 : 16;  // of a unit
  static constexpr int kStageBytes = kUnits * kLaneBytes * 32;
  static constexpr int kQBytes = kRowsOfTile * DP * static_cast<int>(sizeof(C));
  static constexpr int kStateFloats = kRowsOfTile * (2 + DP);   // m, l, acc
  static constexpr bool kKeepsQ = sizeof(C) == 2 && DP <= 128;  // in registers
};

template <class T, class C, int DP, bool kQuantised>
struct RowsTile {
  using Shape = RowsShape<T, C, DP, kQuantised>;
  const AttentionParams& p;
  const Step& e;
  int b, g, first_row, n_rows;  // rows of the tile that exist
  int group, begin, end;        // keys of this range
  KeyRows k, v;
  char* shared;
  int lane, warp;
  bool plain;  // full rows, all in one place: runs of keys need no care but at the end of the range

  __device__ int s_of(int row) const { return (first_row + row) / group; }
  __device__ int h_of(int row) const { return g * group + (first_row + row) % group; }

  __device__ std::uint32_t stage(int slot) const {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared)) + Shape::kQBytes + 64 +
           (warp * kRowStages + slot) * Shape::kStageBytes + lane * (Shape::kLaneBytes == 8 ? 8 : 16);
  }

  // Starts copying one unit: channels [d, d + 8) of a row.
  __device__ void copy_unit(std::uint32_t to, const char* row, int d, bool real) const {
    real = real && d < p.d;
    if constexpr (!kQuantised) {
      const char* const from = row + (real ? d * static_cast<int>(sizeof(T)) : 0);
      copy_async<16>(to, from, real);
      if constexpr (sizeof(T) == 4) copy_async<16>(to + 512, from + (real ? 16 : 0), real);
    } else if (p.format == kCacheI4) {
      copy_async<4>(to, row + (real ? d / 2 : 0), real);
    } else {
      copy_async<8>(to, row + (real ? d : 0), real);
    }
  }
  __device__ void copy_plain_run(int base, std::uint32_t to) const {
    constexpr int kBytes = kQuantised ? 8 : 16, kUnit = kQuantised ? 8 : 8 * static_cast<int>(sizeof(T));  // of memory, not 4-bit
    const char* key_row = k.first + (base + lane / 4) * k.first_row + lane % 4 * kUnit;
#pragma unroll
    for (int j = 0; j < Shape::kGroups; ++j, key_row += 8 * k.first_row) {
#pragma unroll
      for (int u = 0; u < Shape::kKUnits; ++u, to += Shape::kLaneBytes * 32) {
        copy_async<kBytes>(to, key_row + 4 * u * kUnit, true);
        if constexpr (kUnit == 32) copy_async<16>(to + 512, key_row + 4 * u * kUnit + 16, true);
      }
    }
    const char* value_row = v.first + (base + lane % 4 * 2) * v.first_row + lane / 4 * kUnit;
#pragma unroll
    for (int j = 0; j < 2 * Shape::kGroups; ++j) {
#pragma unroll
      for (int u = 0; u < Shape::kVUnits; ++u, to += Shape::kLaneBytes * 32) {
        copy_async<kBytes>(to, value_row + 8 * u * kUnit, true);
        if constexpr (kUnit == 32) copy_async<16>(to + 512, value_row + 8 * u * kUnit + 16, true);
      }
      value_row += j % 2 ? 7 * v.first_row : v.first_row;
    }
  }
  __device__ void start() const {
    for (int i = 0; i < kRowStages - 1; ++i) copy_run(warp + i * static_cast<int>(blockDim.x / 32), i);
  }
  // Starts copying run t; nothing behind the range.
  __device__ void copy_run(int t, int slot) const {
    const int base = begin + t * Shape::kKeys;
    if (plain && base + Shape::kKeys <= end) {
      copy_plain_run(base, stage(slot));
    } else if (base < end) {
      std::uint32_t to = stage(slot);
#pragma unroll
      for (int j = 0; j < Shape::kGroups; ++j) {
        const int key = base + 8 * j + lane / 4;
        const char* const row = k.at(min(key, end - 1));
        const bool real = key < end && k.has(key);
#pragma unroll
        for (int u = 0; u < Shape::kKUnits; ++u, to += Shape::kLaneBytes * 32) copy_unit(to, row, 32 * u + lane % 4 * 8, real);
      }
#pragma unroll
      for (int j = 0; j < 2 * Shape::kGroups; ++j) {
        const int key = base + j / 2 * 8 + lane % 4 * 2 + j % 2;
        const char* const row = v.at(min(key, end - 1));
        const bool real = key < end && v.has(key);
#pragma unroll
        for (int u = 0; u < Shape::kVUnits; ++u, to += Shape::kLaneBytes * 32) copy_unit(to, row, 64 * u + lane / 4 * 8, real);
      }
    }
    end_copy_group();
  }
  // Unit i of this lane's run in `slot`.
  __device__ void read_unit(int slot, int i, Unit<C>* unit) const {
    const std::uint32_t from = stage(slot) + i * Shape::kLaneBytes * 32;
    if constexpr (kQuantised) {
      uint2 codes;
      asm volatile("ld.shared.v2.b32 {%0,%1}, [%2];" : "=r"(codes.x), "=r"(codes.y) : "r"(from) : "memory");
      decode_unit(p.format, codes, unit);
    } else if constexpr (sizeof(C) == 4) {
#pragma unroll
      for (int part = 0; part < 2; ++part)
        asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                     : "=f"(unit->r[4 * part]), "=f"(unit->r[4 * part + 1]), "=f"(unit->r[4 * part + 2]), "=f"(unit->r[4 * part + 3])
                     : "r"(from + 512 * part)
                     : "memory");
    } else {
      asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(unit->r[0]), "=r"(unit->r[1]), "=r"(unit->r[2]), "=r"(unit->r[3])
                   : "r"(from)
                   : "memory");
    }
  }

  // Q in shared memory: unit u of row `half` * 8 + lane / 4 for every lane. Rows that do not exist are zeros.
  __device__ C* q_unit(int u, int half, int of_lane) const { return reinterpret_cast<C*>(shared) + ((u * 2 + half) * 32 + of_lane) * 8; }
  __device__ float* q_factor() const { return reinterpret_cast<float*>(shared + Shape::kQBytes); }
  __device__ void load_query() const {
    // A float16 copy of q * scale of K keeps its bits whatever the size of the scales: rows are brought to a largest of 1.
    constexpr bool kRescale = kQuantised && sizeof(C) == 2;
    for (int row = warp; row < kRowsOfTile; row += blockDim.x / 32) {
      const bool real = row < n_rows;
      const T* const from = reinterpret_cast<const T*>(row_at(p.q, b, real ? h_of(row) : 0, real ? e.first_row + s_of(row) : e.first_row));
      const float* const scale = kQuantised && p.k_per_channel ? as<float>(p.k_scale) + g * p.d : nullptr;
      float top = 0;
      if constexpr (kRescale) {
        for (int c = lane; real && c < p.d; c += 32) top = fmaxf(top, fabsf(to_float(from[c]) * (scale ? scale[c] : 1.0f)));
        for (int offset = 16; offset; offset >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
      }
      if (!(top > 0 && top < kInf)) top = 1;
      if (lane == 0) q_factor()[row] = top;
      for (int c = lane; c < DP; c += 32) {
        const float x = real && c < p.d ? to_float(from[c]) * (scale ? scale[c] : 1.0f) / top : 0.0f;
        q_unit(c / 32, row / 8, row % 8 * 4 + c % 32 / 8)[c % 8] = from_float<C>(x);
      }
    }
  }
  __device__ void read_query(int u, int half, Unit<C>* unit) const {
    const float4* const from = reinterpret_cast<const float4*>(q_unit(u, half, lane));
    float4* const to = reinterpret_cast<float4*>(unit->r);
    to[0] = from[0];
    if constexpr (sizeof(C) == 4) to[1] = from[1];
  }
};

// Keys of the range, of which the first runs are on their way.
template <class T, class C, int DP, bool kQuantised>
__device__ inline void add_keys(const RowsTile<T, C, DP, kQuantised>& tile, RowsState<DP>& state) {
  using Shape = RowsShape<T, C, DP, kQuantised>;
  const AttentionParams& p = tile.p;
  const int lane = tile.lane, warps = blockDim.x / 32;
  const int n_runs = (tile.end - tile.begin + Shape::kKeys - 1) / Shape::kKeys;
  const bool careful = p.softcap > 0.0f || p.bias;
  float factor[2];
  int lo[2], hi[2];
  const T* bias[2];
  const float scale = p.scale * (kQuantised && !p.k_per_channel ? as<float>(p.k_scale)[0] : 1.0f) * (careful ? 1.0f : kLog2e);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = lane / 4 + 8 * i, of = min(row, tile.n_rows - 1), s = tile.s_of(of);
    factor[i] = scale * tile.q_factor()[row];
    lo[i] = first_visible(p, tile.e, s);
    hi[i] = end_visible(p, tile.e, s);
    bias[i] = p.bias ? as<T>(p.bias) + tile.b * p.bias_b + tile.h_of(of) * p.bias_h + s * p.bias_s : nullptr;
  }
  const int all_from = first_visible(p, tile.e, tile.s_of(tile.n_rows - 1)), all_to = end_visible(p, tile.e, tile.s_of(0));

  Unit<C> q[Shape::kKeepsQ ? Shape::kKUnits : 1][2];
  if constexpr (Shape::kKeepsQ) {
#pragma unroll
    for (int u = 0; u < Shape::kKUnits; ++u) {
      tile.read_query(u, 0, &q[u][0]);
      tile.read_query(u, 1, &q[u][1]);
    }
  }
  int slot = 0;
  for (int t = tile.warp; t < n_runs; t += warps) {
    tile.copy_run(t + (kRowStages - 1) * warps, slot == 0 ? kRowStages - 1 : slot - 1);
    wait_copy_groups<kRowStages - 1>();
    float x[Shape::kGroups][4] = {};
    if constexpr (Shape::kKeepsQ) {
#pragma unroll
      for (int j = 0; j < Shape::kGroups; j += 2) {  // units of two groups at once, so that nobody waits for each of them
        Unit<C> k[2][Shape::kKUnits];
        float odd[2][4] = {};
#pragma unroll
        for (int i = 0; i < 2 * Shape::kKUnits; ++i)
          tile.read_unit(slot, j * Shape::kKUnits + i, &k[i / Shape::kKUnits][i % Shape::kKUnits]);
#pragma unroll
        for (int u = 0; u < Shape::kKUnits; ++u)
#pragma unroll
          for (int i = 0; i < 2; ++i) add_qk<C>(u % 2 ? odd[i] : x[j + i], q[u][0], q[u][1], k[i][u]);
#pragma unroll
        for (int i = 0; i < 8; ++i) x[j + i / 4][i % 4] += odd[i / 4][i % 4];
      }
    } else {
#pragma unroll
      for (int u = 0; u < Shape::kKUnits; ++u) {
        Unit<C> q_read[2];
        tile.read_query(u, 0, &q_read[0]);
        tile.read_query(u, 1, &q_read[1]);
#pragma unroll
        for (int j = 0; j < Shape::kGroups; ++j) {
          Unit<C> k;
          tile.read_unit(slot, j * Shape::kKUnits + u, &k);
          add_qk<C>(x[j], q_read[0], q_read[1], k);
        }
      }
    }

    const int base = tile.begin + t * Shape::kKeys;
    const bool masked = base < all_from || base + Shape::kKeys > min(all_to, tile.end) || tile.k.table;
    float top[2] = {state.m[0], state.m[1]};
#pragma unroll
    for (int j = 0; j < Shape::kGroups; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) x[j][i] *= factor[i / 2];
    if (careful || masked) {
#pragma unroll
      for (int j = 0; j < Shape::kGroups; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = base + 8 * j + lane % 4 * 2 + i % 2;
          const bool visible = !masked || (key >= lo[i / 2] && key < min(hi[i / 2], tile.end) && tile.k.has(key));
          if (careful) x[j][i] = (cap(x[j][i], p.softcap) + (p.bias && visible ? to_float(bias[i / 2][key]) : 0.0f)) * kLog2e;
          if (!visible) x[j][i] = -kInf;
        }
    }
#pragma unroll
    for (int j = 0; j < Shape::kGroups; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) top[i / 2] = fmaxf(top[i / 2], x[j][i]);
    float change[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffffu, top[i], 1));
      top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffffu, top[i], 2));
      const float from = top[i] == -kInf ? 0.0f : top[i];
      change[i] = exp2_approx(state.m[i] - from);
      state.m[i] = top[i];
      top[i] = from;
      state.l[i] *= change[i];
    }
    if (__any_sync(0xffffffffu, change[0] != 1.0f || change[1] != 1.0f)) {
#pragma unroll
      for (int u = 0; u < Shape::kVUnits; ++u)
#pragma unroll
        for (int c = 0; c < 8; ++c)
#pragma unroll
          for (int i = 0; i < 4; ++i) state.acc[u][c][i] *= change[i / 2];
    }
#pragma unroll
    for (int j = 0; j < Shape::kGroups; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[j][i] = exp2_approx(x[j][i] - top[i / 2]);
        state.l[i / 2] += x[j][i];
      }

    constexpr int kFirstV = Shape::kGroups * Shape::kKUnits;
    if constexpr (sizeof(C) == 4) {
#pragma unroll
      for (int j = 0; j < Shape::kGroups; ++j)
#pragma unroll
        for (int u = 0; u < Shape::kVUnits; ++u) {
          Unit<C> v[2];
          for (int i = 0; i < 2; ++i) tile.read_unit(slot, kFirstV + (2 * j + i) * Shape::kVUnits + u, &v[i]);
          add_pv8(state.acc[u], x[j], v[0], v[1]);
        }
    } else {
#pragma unroll
      for (int j = 0; j < Shape::kGroups; j += 2) {
        const std::uint32_t w[4] = {pack<C>(x[j][0], x[j][1]), pack<C>(x[j][2], x[j][3]), pack<C>(x[j + 1][0], x[j + 1][1]),
                                    pack<C>(x[j + 1][2], x[j + 1][3])};
#pragma unroll
        for (int u = 0; u < Shape::kVUnits; ++u) {
          Unit<C> v[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) tile.read_unit(slot, kFirstV + (2 * j + i) * Shape::kVUnits + u, &v[i]);
          add_pv16<C>(state.acc[u], w, v);
        }
      }
    }
    slot = slot == kRowStages - 1 ? 0 : slot + 1;
  }
  wait_copy_groups<0>();
}

// Grid (Nk * row tiles, ranges, B): the last row tiles first, which have most keys. Dynamic shared memory: Q, 64 bytes of factors, then per
// warp kRowStages runs; the runs' place is used again for states and factors.
template <class T, class C, int DP, bool kQuantised>
__device__ inline void attend_rows(const AttentionParams& p) {
  using Tile = RowsTile<T, C, DP, kQuantised>;
  using Shape = RowsShape<T, C, DP, kQuantised>;
  extern __shared__ __align__(16) char shared[];
  __shared__ float m_l[2 * kRowsOfTile];
  __shared__ bool last;
  if (!p.early) wait_for_predecessor();
  const int b = blockIdx.z, group = p.heads / p.kv_heads, g = blockIdx.x % p.kv_heads, range = blockIdx.y;
  const int first_row = (gridDim.x / p.kv_heads - 1 - blockIdx.x / p.kv_heads) * kRowsOfTile;
  const Step e = step_of(p, b);
  const int n_rows = min(e.rows * group - first_row, kRowsOfTile);
  Tile tile{p,
            e,
            b,
            g,
            first_row,
            n_rows,
            group,
            0,
            0,
            k_rows(p, e, b, g),
            v_rows(p, e, b, g),
            shared,
            static_cast<int>(threadIdx.x % 32),
            static_cast<int>(threadIdx.x / 32),
            false};
  tile.plain = p.d == DP && !e.staged && !p.table && p.format != kCacheI4;
  if (range == 0) {  // rows of padding
    const int rows = min(e.all_rows * group - first_row, kRowsOfTile);
    for (int i = max(n_rows, 0) * p.d + threadIdx.x; i < rows * p.d; i += blockDim.x)
      reinterpret_cast<T*>(row_at(p.output, b, tile.h_of(i / p.d), e.first_row + tile.s_of(i / p.d)))[i % p.d] = from_float<T>(0.0f);
  }
  if (n_rows <= 0) return;
  const int from = first_visible(p, e, tile.s_of(0)), to = end_visible(p, e, tile.s_of(n_rows - 1)), n = max(to - from, 0);
  const int share = (max((n + p.splits - 1) / p.splits, p.min_keys) + Shape::kKeys - 1) / Shape::kKeys * Shape::kKeys;
  const int ranges = max((n + share - 1) / share, 1);
  if (range >= ranges) return;
  tile.begin = from + range * share;
  tile.end = min(tile.begin + share, to);
  const bool all_old = p.early && tile.begin + (kRowStages - 1) * static_cast<int>(blockDim.x / 32) * Shape::kKeys <= e.cached;
  if (all_old) tile.start();
  if (p.early) wait_for_predecessor();
  if (!all_old) tile.start();
  tile.load_query();
  __syncthreads();
  RowsState<DP> state;
  add_keys(tile, state);
  release_successor();

  // One state of the block, in place of the runs.
  float* const states = reinterpret_cast<float*>(shared + Shape::kQBytes + 64);
  const int warps = blockDim.x / 32;
  float* const factors = states + warps * Shape::kStateFloats;
  __syncthreads();
  put_state(state, tile.lane, states + tile.warp * Shape::kStateFloats);
  __syncthreads();
  merge_factors<true>(states, warps, Shape::kStateFloats, factors, m_l);
  const bool redo = e.rows > 1 || sizeof(C) == 4;
  if (ranges == 1) return write_rows<true, Tile, T, DP>(tile, states, warps, Shape::kStateFloats, factors, m_l, redo, states);

  const std::int64_t tile_index = static_cast<std::int64_t>(b) * gridDim.x + blockIdx.x;
  float* const all = reinterpret_cast<float*>(p.partial) + tile_index * p.splits * Shape::kStateFloats;
  float* const mine = all + range * Shape::kStateFloats;
  for (int i = threadIdx.x; i < n_rows * DP; i += blockDim.x) {
    float sum = 0;
    for (int w = 0; w < warps; ++w) sum += factors[w * kRowsOfTile + i / DP] * states[w * Shape::kStateFloats + 2 * kRowsOfTile + i];
    mine[2 * kRowsOfTile + i] = sum;
  }
  if (threadIdx.x < 2 * kRowsOfTile) mine[threadIdx.x] = m_l[threadIdx.x];
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(reinterpret_cast<unsigned*>(p.counters) + tile_index, 1u) == static_cast<unsigned>(ranges - 1);
  __syncthreads();
  if (!last) return;
  __threadfence();
  merge_factors<false>(all, ranges, Shape::kStateFloats, states, m_l);
  write_rows<false, Tile, T, DP>(tile, all, ranges, Shape::kStateFloats, states, m_l, redo, states);
}

}  // namespace hotset::cuda::attn

// Kernels hotset_attention_rows_<name>_<64|128|256>[_quantised]; block 32 * warps.
#define HOTSET_ATTENTION_ROWS_OF(name, T, C, DP, suffix, quantised)                                          \
  extern "C" __global__ void __launch_bounds__(DP == 256 ? 128 : 256, 1)                                     \
      hotset_attention_rows_##name##_##DP##suffix(const __grid_constant__ hotset::cuda::AttentionParams p) { \
    hotset::cuda::attn::attend_rows<T, C, DP, quantised>(p);                                                 \
  }
#define HOTSET_ATTENTION_ROWS(name, T, C)                     \
  HOTSET_ATTENTION_ROWS_OF(name, T, T, 64, , false)           \
  HOTSET_ATTENTION_ROWS_OF(name, T, T, 128, , false)          \
  HOTSET_ATTENTION_ROWS_OF(name, T, T, 256, , false)          \
  HOTSET_ATTENTION_ROWS_OF(name, T, C, 64, _quantised, true)  \
  HOTSET_ATTENTION_ROWS_OF(name, T, C, 128, _quantised, true) \
  HOTSET_ATTENTION_ROWS_OF(name, T, C, 256, _quantised, true)
