// SPDX-License-Identifier: Apache-2.0
// Before and after attention: norm, rotation and cache format of new rows; moving cache rows.
#include "cuda/attention_device.cuh"

using namespace hotset::cuda;
using namespace hotset::cuda::attn;

namespace {

constexpr int kFirst = 4;            // elements of a vector that a lane holds at once
constexpr int kWarps = 4;            // of a preparing block
constexpr int kMostChannels = 1024;  // head sizes up to this

__device__ float sum_of_warp(float x) {
  for (int offset = 16; offset; offset >>= 1) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

// x[0, d) = RMSNorm(x) * w rounded to T; one warp.
template <class T>
__device__ void normalise(float* x, std::uint64_t weight, float epsilon, int d, int lane) {
  float sum = 0;
  for (int i = lane; i < d; i += 32) sum += x[i] * x[i];
  const float inverse = rsqrtf(sum_of_warp(sum) / static_cast<float>(d) + epsilon);
  for (int i = lane; i < d; i += 32) x[i] = to_float(from_float<T>(x[i] * inverse * to_float(as<T>(weight)[i])));
  __syncwarp();
}

// Rotates the first 2 * half channels, rounded to T; one warp.
template <class T>
__device__ void rotate(const AttentionParams& p, float* x, int position, int lane) {
  const std::int64_t row = static_cast<std::int64_t>(min(max(position, 0), p.table_rows - 1)) * p.half;
  for (int i = lane; i < p.half; i += 32) {
    const float c = to_float(as<T>(p.cos)[row + i]), s = to_float(as<T>(p.sin)[row + i]);
    float* const a = x + p.rotary_offset + (p.interleaved ? 2 * i : i);
    float* const b = p.interleaved ? a + 1 : a + p.half;
    const float u = *a, v = *b;
    *a = to_float(from_float<T>(__fsub_rn(__fmul_rn(u, c), __fmul_rn(v, s))));
    *b = to_float(from_float<T>(__fadd_rn(__fmul_rn(v, c), __fmul_rn(u, s))));
  }
  __syncwarp();
}

// Codes of x / scale to nearest even, saturating.
__device__ std::uint32_t code_of(int format, float x) {
  if (format == kCacheI8) return static_cast<std::uint32_t>(__float2int_rn(fminf(fmaxf(x, -128.0f), 127.0f))) & 0xff;
  if (format == kCacheI4) return static_cast<std::uint32_t>(__float2int_rn(fminf(fmaxf(x, -8.0f), 7.0f)) + 8);
  // e4m3fn: to a step of 2^-9 below 2^-6, else to 4 significant bits, ties to even.
  const std::uint32_t sign = __float_as_uint(x) >> 24 & 0x80;
  if (x != x) return sign | 0x7f;
  const float m = fminf(fabsf(x), 448.0f);
  if (m < 0.015625f) return sign | static_cast<std::uint32_t>(__float2int_rn(m * 512.0f));
  const std::uint32_t u = __float_as_uint(m);
  return sign | (((u + 0x7ffff + (u >> 20 & 1)) >> 20) - (120u << 3));
}

template <class T>
__device__ void store(const AttentionParams& p, const float* x, char* to, std::uint64_t scale, bool per_channel, int g, int lane) {
  if (p.format == kCacheSame) {  // a key
    for (int i = lane; i < p.d; i += 32) reinterpret_cast<T*>(to)[i] = from_float<T>(x[i]);
    return;
  }
  const float* const s = as<float>(scale) + (per_channel ? g * p.d : 0);
  const auto code = [&](int i) { return i < p.d ? code_of(p.format, __fdiv_rn(x[i], s[per_channel ? i : 0])) : 8u; };
  if (p.format == kCacheI4) {
    for (int i = lane; i < (p.d + 1) / 2; i += 32) reinterpret_cast<std::uint8_t*>(to)[i] = code(2 * i) | code(2 * i + 1) << 4;
  } else {
    for (int i = lane; i < p.d; i += 32) reinterpret_cast<std::uint8_t*>(to)[i] = code(i);
  }
}

// Where new row s of a paged cache goes; null: nowhere.
__device__ char* page_row(const AttentionParams& p, const AttentionRows& pages, const Step& e, int b, int h, int s) {
  const int at = e.cached + s;
  const int page = as<std::int32_t>(p.table)[static_cast<std::int64_t>(b) * p.table_columns + at / p.page_rows];
  std::int64_t slot = page < 0 ? -1 : static_cast<std::int64_t>(page) * p.page_rows + at % p.page_rows;
  if (p.slots) slot = as<std::int32_t>(p.slots)[e.first_row + s];
  if (slot < 0 || slot >= static_cast<std::int64_t>(p.n_pages) * p.page_rows) return nullptr;
  return row_at(pages, static_cast<int>(slot / p.page_rows), h, static_cast<int>(slot % p.page_rows));
}

// One warp takes one vector at a time: (b, s, v), v over query heads (only if they are prepared), then K heads, then V heads.
//   1. load as float32   2. norm (Q, K), round   3. rotate (Q, K), round   4. Q to p.q; K and V to present or staging
// Also zeroes the counters of the attention kernel. Not for rows of padding.
template <class T>
__device__ void prepare(const AttentionParams& p) {
  __shared__ float vectors[kWarps][kMostChannels];
  wait_for_predecessor();
  release_successor();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, block = blockIdx.x, threads = blockDim.x;
  const int q_heads = p.prepare_query ? p.heads : 0, per_row = q_heads + (p.prepare_new ? 2 * p.kv_heads : 0);
  const int rows = max(p.rows, p.new_rows);  // tokens of all requests when paged
  for (int i = block * threads + threadIdx.x; i < p.n_counters; i += gridDim.x * threads)
    reinterpret_cast<std::uint32_t*>(p.counters)[i] = 0;
  float* const x = vectors[warp];
  const unsigned n = static_cast<unsigned>(p.cumulative ? 1 : p.batch) * rows * per_row;
  for (unsigned i = block * kWarps + warp; i < n; i += gridDim.x * kWarps) {
    const int v = static_cast<int>(i % per_row);
    int s = static_cast<int>(i / per_row % rows), b = static_cast<int>(i / per_row / rows);
    const bool is_q = v < q_heads, is_k = !is_q && v < q_heads + p.kv_heads;
    const int h = is_q ? v : (v - q_heads) % p.kv_heads, width = is_q || is_k ? p.d : p.dv;
    const AttentionRows& source = is_q ? p.query : is_k ? p.key : p.value;
    const T* const from = reinterpret_cast<const T*>(row_at(source, b, h, s));  // when paged, b is 0 and s a token
    T first[kFirst];                                                            // asked for before the lengths are known
    if (s < (is_q ? p.rows : p.new_rows)) {
#pragma unroll
      for (int k = 0; k < kFirst; ++k)
        if (lane + 32 * k < width) first[k] = from[lane + 32 * k];
    }
    if (p.cumulative) {
      while (b < p.batch - 1 && as<std::int32_t>(p.cumulative)[b + 1] <= s) ++b;
      s -= as<std::int32_t>(p.cumulative)[b];
    }
    const Step e = step_of(p, b);
    if (s < 0 || s >= (is_q ? e.rows : e.added)) continue;
    const bool plain = !is_q && p.format == kCacheSame && (!is_k || (!p.half && !p.k_norm));
    char* to;
    if (is_q) {
      to = row_at(p.q, b, h, e.first_row + s);
    } else if (p.table) {
      to = page_row(p, is_k ? p.present_k : p.present_v, e, b, h, s);
      if (!to) continue;
    } else if (e.staged) {
      to = row_at(is_k ? p.staged_k : p.staged_v, b, h, s);
    } else {
      to = row_at(is_k ? p.present_k : p.present_v, b, h, e.held + s);
    }
    if (plain) {
#pragma unroll
      for (int k = 0; k < kFirst; ++k)
        if (lane + 32 * k < width) reinterpret_cast<T*>(to)[lane + 32 * k] = first[k];
      for (int c = lane + 32 * kFirst; c < width; c += 32) reinterpret_cast<T*>(to)[c] = from[c];
      continue;
    }
    __syncwarp();
#pragma unroll
    for (int k = 0; k < kFirst; ++k)
      if (lane + 32 * k < width) x[lane + 32 * k] = to_float(first[k]);
    for (int c = lane + 32 * kFirst; c < width; c += 32) x[c] = to_float(from[c]);
    __syncwarp();
    if (is_q || is_k) {
      const std::uint64_t norm = is_q ? p.q_norm : p.k_norm;
      if (norm) normalise<T>(x, norm, is_q ? p.q_epsilon : p.k_epsilon, p.d, lane);
      if (p.half) {
        const std::int64_t* const ids = as<std::int64_t>(p.positions);
        const std::int64_t most = p.table_rows;
        const bool first_prompt = p.total && as<std::int32_t>(p.total)[0] == p.rows;
        const std::int64_t at = !ids ? e.position(s) : first_prompt ? ids[0] + s : ids[static_cast<std::int64_t>(b) * p.rows + s];
        rotate<T>(p, x, static_cast<int>(at < 0 ? 0 : at < most ? at : most - 1), lane);
      }
    }
    if (is_q) {
      for (int c = lane; c < p.d; c += 32) reinterpret_cast<T*>(to)[c] = from_float<T>(x[c]);
    } else {
      store<T>(p, x, to, is_k ? p.k_scale : p.v_scale, is_k ? p.k_per_channel : p.v_per_channel, h, lane);
    }
  }
}

// `bytes` from `from` (null: zeros) to `to`, 16 at a time where both allow; all threads of some blocks.
__device__ void copy_bytes(char* to, const char* from, std::int64_t bytes, std::int64_t thread, std::int64_t threads) {
  if (bytes <= 0) return;
  const std::uint64_t odd = reinterpret_cast<std::uint64_t>(to) | reinterpret_cast<std::uint64_t>(from) | static_cast<std::uint64_t>(bytes);
  if (odd % 16 == 0) {
    for (std::int64_t i = thread; i < bytes / 16; i += threads)
      reinterpret_cast<uint4*>(to)[i] = from ? reinterpret_cast<const uint4*>(from)[i] : make_uint4(0, 0, 0, 0);
  } else {
    for (std::int64_t i = thread; i < bytes; i += threads) to[i] = from ? from[i] : 0;
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(32 * kWarps) hotset_attention_prepare_f32(const __grid_constant__ AttentionParams p) {
  prepare<float>(p);
}
extern "C" __global__ void __launch_bounds__(32 * kWarps) hotset_attention_prepare_f16(const __grid_constant__ AttentionParams p) {
  prepare<__half>(p);
}
extern "C" __global__ void __launch_bounds__(32 * kWarps) hotset_attention_prepare_bf16(const __grid_constant__ AttentionParams p) {
  prepare<bf16>(p);
}

// A present that is another buffer than past: old rows come over, rows without a token become 0. Entries with staged rows are
// left to hotset_attention_settle. grid (x, Nk, 2 B): z even K, odd V.
extern "C" __global__ void hotset_attention_copy(const __grid_constant__ AttentionParams p) {
  wait_for_predecessor();
  release_successor();
  const int b = blockIdx.z / 2, g = blockIdx.y;
  const AttentionRows& past = blockIdx.z % 2 ? p.past_v : p.past_k;
  const AttentionRows& present = blockIdx.z % 2 ? p.present_v : p.present_k;
  const Step e = step_of(p, b);
  if (e.staged) return;
  const std::int64_t thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
  copy_bytes(row_at(present, b, g, 0), row_at(past, b, g, 0), e.held * present.row, thread, threads);
  copy_bytes(row_at(present, b, g, e.kept), nullptr, (p.capacity - e.kept) * present.row, thread, threads);
}

// Windowed caches after attention: present = the last rows of past, then of staging. Past may be the same memory: rows only
// move towards row 0, each block owns some columns of all rows, and a piece is read before anything is written over it.
// grid (shares of the columns, Nk, 2 B), block 256; W: what is moved at once, rows are multiples of it.
template <class W>
__device__ void settle(const AttentionParams& p) {
  constexpr int kLoads = 4;
  wait_for_predecessor();
  release_successor();
  const int b = blockIdx.z / 2, g = blockIdx.y;
  const bool v = blockIdx.z % 2;
  const AttentionRows &past = v ? p.past_v : p.past_k, &present = v ? p.present_v : p.present_k, &staged = v ? p.staged_v : p.staged_k;
  const Step e = step_of(p, b);
  if (!e.staged) return;
  const int words = static_cast<int>(present.row) / static_cast<int>(sizeof(W)), columns = (words + gridDim.x - 1) / gridDim.x;
  const int first = blockIdx.x * columns, n_columns = min(columns, words - first);
  if (n_columns <= 0) return;
  const int fresh = min(e.added, e.kept), old = e.kept - fresh;
  const bool own = past.data != present.data;  // nothing but zeros behind the last row then
  const std::int64_t n = static_cast<std::int64_t>(own ? p.capacity : e.kept) * n_columns;
  for (std::int64_t base = 0; base < n; base += static_cast<std::int64_t>(blockDim.x) * kLoads) {
    W x[kLoads];
    for (int k = 0; k < kLoads; ++k) {
      const std::int64_t i = base + k * static_cast<int>(blockDim.x) + threadIdx.x;
      if (i >= n) continue;
      const int row = static_cast<int>(i / n_columns), c = first + static_cast<int>(i % n_columns);
      if (row < old)
        x[k] = reinterpret_cast<const W*>(row_at(past, b, g, e.held - old + row))[c];
      else if (row < e.kept)
        x[k] = reinterpret_cast<const W*>(row_at(staged, b, g, e.added - fresh + row - old))[c];
      else
        x[k] = W();
    }
    __syncthreads();
    for (int k = 0; k < kLoads; ++k) {
      const std::int64_t i = base + k * static_cast<int>(blockDim.x) + threadIdx.x;
      if (i < n)
        reinterpret_cast<W*>(row_at(present, b, g, static_cast<int>(i / n_columns)))[first + static_cast<int>(i % n_columns)] = x[k];
    }
    __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(256) hotset_attention_settle_16(const __grid_constant__ AttentionParams p) {
  settle<uint4>(p);
}
extern "C" __global__ void __launch_bounds__(256) hotset_attention_settle_1(const __grid_constant__ AttentionParams p) {
  settle<std::uint8_t>(p);
}
