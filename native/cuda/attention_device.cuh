// SPDX-License-Identifier: Apache-2.0
// What the attention kernels share: element types, lengths of a batch entry, visible keys, where a key's row lies.
#pragma once
#include <cstdint>

#include "cuda/attention_params.h"
#include "cuda/float_types.cuh"

namespace hotset::cuda::attn {

using bf16 = Bfloat;

constexpr float kInf = __builtin_huge_valf();
constexpr float kLog2e = 1.4426950408889634f;

__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <class T>
__device__ inline const T* as(std::uint64_t address) {
  return reinterpret_cast<const T*>(address);
}

__device__ inline char* row_at(const AttentionRows& r, int b, int h, int row) {
  return reinterpret_cast<char*>(r.data) + b * r.batch + h * r.head + row * r.row;
}

// e4m3fn code to float32.
__device__ inline float e4m3_to_float(std::uint32_t c) {
  if ((c & 0x7f) == 0x7f) return __uint_as_float(0x7fc00000u);
  const float magnitude = __uint_as_float((c & 0x7f) << 20) * __uint_as_float(0x7b800000u);  // times 2^120: exponent bias 7 to 127
  return c & 0x80 ? -magnitude : magnitude;
}

// Element c of a cache row, integer codes without their scale.
template <class T>
__device__ inline float cache_element(int format, const char* row, int c) {
  switch (format) {
    case kCacheI8:
      return static_cast<float>(reinterpret_cast<const std::int8_t*>(row)[c]);
    case kCacheI4:
      return static_cast<float>(static_cast<int>(reinterpret_cast<const std::uint8_t*>(row)[c / 2] >> 4 * (c & 1) & 15) - 8);
    case kCacheF8:
      return e4m3_to_float(reinterpret_cast<const std::uint8_t*>(row)[c]);
    default:
      return to_float(reinterpret_cast<const T*>(row)[c]);
  }
}

// Rows that a windowed cache holds after `total` tokens: always the last ones, from row 0 on (operator's text 2.10).
__device__ inline int resident_rows(int total, int capacity, int window) {
  if (total <= capacity) return total;
  const int gap = capacity - window + 1;
  return total - gap * ((total - capacity + gap - 1) / gap);
}

// What one batch entry does, from lengths in device memory. Lengths out of range make it idle, never reach out of bounds.
struct Step {
  int total, rows, added;  // tokens after the call, valid query rows, rows appended
  int cached, held, kept;  // tokens before the call; rows of them in past; rows of present after it
  int start, first_row;    // position of query row 0, and where it is among the rows of its batch entry
  int all_rows;            // with those of padding, which become zeros
  bool staged;             // the new rows lie in staging, not in present, while attention runs
  __device__ int position(int s) const { return start + s; }
};

__device__ inline Step paged_step(const AttentionParams& p, int b) {
  const std::int32_t* const cumulative = as<std::int32_t>(p.cumulative);
  Step e = {};
  e.first_row = cumulative[b];
  e.rows = e.all_rows = e.added = cumulative[b + 1] - e.first_row;
  e.cached = e.held = e.start = as<std::int32_t>(p.past_seqlens)[b];
  e.total = e.kept = e.cached + e.rows;
  if (e.first_row < 0 || e.rows < 0 || e.first_row > p.rows - e.rows) return {};
  if (e.cached < 0 || e.cached > p.capacity - e.rows) {  // zeros
    e.total = e.rows = e.added = e.cached = e.held = e.kept = 0;
  }
  return e;
}

__device__ inline Step step_of(const AttentionParams& p, int b) {
  if (p.cumulative) return paged_step(p, b);
  Step e;
  e.first_row = 0;
  e.all_rows = p.rows;
  if (!p.seqlens) {
    e.rows = p.rows;
    e.total = e.kept = p.fixed_keys;
    e.added = p.new_rows;
    e.cached = e.held = e.start = p.fixed_keys - p.new_rows;
    e.staged = p.capacity == 0;
    return e;
  }
  e.total = as<std::int32_t>(p.seqlens)[b] + 1;
  e.rows = p.query_seqlens ? as<std::int32_t>(p.query_seqlens)[b] : min(p.rows, e.total);
  e.added = p.new_rows ? e.rows : 0;
  e.cached = e.total - e.added;
  bool ok = e.total >= 1 && e.rows >= 0 && e.rows <= min(p.rows, e.total) && e.added <= p.new_rows && (!p.columns || e.total <= p.columns);
  if (p.windowed_cache) {
    ok = ok && e.total < (1 << 30);
    e.held = ok ? resident_rows(e.cached, p.capacity, p.window) : 0;
    e.kept = ok ? resident_rows(e.total, p.capacity, p.window) : 0;
    e.staged = e.held + e.added != e.kept;
  } else {
    ok = ok && e.cached <= p.past_capacity && (!p.capacity || e.total <= p.capacity);
    e.held = e.cached;
    e.kept = e.total;
    e.staged = p.capacity == 0;
  }
  if (!ok) e = {0, 0, 0, 0, 0, 0, 0, 0, p.rows, p.capacity == 0};
  e.start = e.total - e.rows;
  return e;
}

// Keys that row s of an entry sees: [lo, hi).
__device__ inline int first_visible(const AttentionParams& p, const Step& e, int s) {
  return max(p.window > 0 ? e.position(s) - p.window + 1 : 0, e.cached - e.held);
}
__device__ inline int end_visible(const AttentionParams& p, const Step& e, int s) {
  return p.causal ? min(e.position(s) + 1, e.total) : e.total;
}

// Rows of K (or V) of one head by key index: those before `boundary` in one place, the others in a second one; or in pages.
struct KeyRows {
  const char *first, *second;
  std::int64_t first_row, second_row;  // pages: bytes from row to row and from page to page
  int boundary;
  const std::int32_t* table = nullptr;  // of the request
  int page_rows = 0, n_pages = 0;
  // Whether key j is anywhere. at(j) is an address that may be read even if not.
  __device__ bool has(int j) const { return !table || static_cast<unsigned>(table[j / page_rows]) < static_cast<unsigned>(n_pages); }
  __device__ const char* at(int j) const {
    if (table) return first + (has(j) ? table[j / page_rows] * second_row + j % page_rows * first_row : 0);
    return j < boundary ? first + j * first_row : second + j * second_row;
  }
};

__device__ inline KeyRows key_rows(const AttentionRows& past, const AttentionRows& present, const AttentionRows& staged, const Step& e,
                                   const AttentionParams& p, int b, int g) {
  KeyRows k;
  if (p.table) {
    k.first = row_at(present, 0, g, 0);
    k.first_row = present.row;
    k.second_row = present.batch;
    k.table = as<std::int32_t>(p.table) + static_cast<std::int64_t>(b) * p.table_columns;
    k.page_rows = p.page_rows;
    k.n_pages = p.n_pages;
    return k;
  }
  const AttentionRows& one = e.staged ? past : present;
  k.first_row = one.row;
  k.first = row_at(one, b, g, 0) - (e.cached - e.held) * one.row;
  k.second_row = staged.row;
  k.second = row_at(staged, b, g, 0) - e.cached * staged.row;
  k.boundary = e.staged ? e.cached : 0x7fffffff;
  return k;
}
__device__ inline KeyRows k_rows(const AttentionParams& p, const Step& e, int b, int g) {
  return key_rows(p.past_k, p.present_k, p.staged_k, e, p, b, g);
}
__device__ inline KeyRows v_rows(const AttentionParams& p, const Step& e, int b, int g) {
  return key_rows(p.past_v, p.present_v, p.staged_v, e, p, b, g);
}

// The extra logit of head h; false when there is none.
template <class T>
__device__ inline bool sink_of(const AttentionParams& p, int h, float* z) {
  *z = p.sink ? to_float(as<T>(p.sink)[h]) : 0.0f;
  return p.sink || p.zero_sink;
}

__device__ inline float v_scale_of(const AttentionParams& p, int g, int c) {
  if (!p.v_scale) return 1.0f;
  return as<float>(p.v_scale)[p.v_per_channel ? g * p.dv + c : 0];
}

__device__ inline float cap(float x, float softcap) { return softcap > 0.0f ? softcap * tanhf(x / softcap) : x; }

}  // namespace hotset::cuda::attn
