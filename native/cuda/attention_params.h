// SPDX-License-Identifier: Apache-2.0
// One attention call as its kernels see it; nvcc and the host compile this.
//
// Letters of the operator's text: B batch, S query rows, N query heads, Nk key/value heads, D head size. Query head h reads
// key/value head h / (N / Nk). All addresses are of device memory, 0 where absent.
#pragma once
#include <cstdint>

namespace hotset::cuda {

enum AttentionFormat : std::int32_t { kCacheSame, kCacheI8, kCacheI4, kCacheF8 };  // kCacheSame: the type of the query

// Vectors of D elements: head h of row r of batch entry b lies at data + b * batch + h * head + r * row (bytes).
struct AttentionRows {
  std::uint64_t data;
  std::int64_t batch, head, row;
};

struct AttentionParams {
  std::int32_t batch, rows, heads, kv_heads, d, dv;
  std::int32_t new_rows;                 // rows of K and V that come with the call; 0: the cache holds all
  std::int32_t past_capacity, capacity;  // rows of past and present; 0 where absent
  std::int32_t columns;                  // of bias and qk; no key index reaches it. 0: neither is there
  std::int32_t fixed_keys;               // without seqlens: every entry has this many keys, the new ones last
  std::int32_t prepare_new;              // 0: attention reads new K and V where they come (`staged` says so)
  std::int32_t causal, window;           // window 0: off
  std::int32_t windowed_cache;           // present holds the last rows only (see attention_device.cuh)
  std::int32_t format, k_per_channel, v_per_channel;
  std::int32_t table_rows, half;  // cos and sin: table_rows x half; half 0: no rotation
  std::int32_t interleaved, rotary_offset;
  std::int32_t prepare_query;         // normalise or rotate the query into `q`
  std::int32_t zero_sink, qk_output;  // qk_output 1: logits, 2: weights
  std::int32_t splits, min_keys;      // a row tile's keys are cut into at most `splits` ranges of at least min_keys
  std::int32_t n_counters;
  std::int32_t early;  // the kernel before attention writes prepared vectors alone: old keys may be fetched while it runs
  float scale, softcap, q_epsilon, k_epsilon;

  std::uint64_t seqlens, query_seqlens;          // int32[B]: tokens after the call - 1; valid query rows
  std::uint64_t positions, total;                // int64[B, S]; int32[1]: when it is S, element 0 alone counts and row s is s later
  std::uint64_t cos, sin, q_norm, k_norm, sink;  // in the type of the query
  std::uint64_t k_scale, v_scale;                // float32: 1, or Nk * D
  std::uint64_t bias;                            // [., ., S, columns]
  std::int64_t bias_b, bias_h, bias_s;           // elements
  std::uint64_t qk;                              // [B, N, S, columns]
  std::uint64_t partial, counters;               // of splits: float32 states; uint32 numbers of finished ranges

  // Paged caches: rows of query, key, value and output are tokens of one list; request b has those in [cumulative[b],
  // cumulative[b + 1]). Key j lies in row j % page_rows of page table[b, j / page_rows], -1: nowhere. `present` has pages as its
  // batch entries.
  std::uint64_t cumulative, past_seqlens, table, slots;  // int32; slots: where a new token goes, -1: nowhere
  std::int32_t page_rows, table_columns, n_pages, unused;

  AttentionRows query, key, value;  // as they come
  AttentionRows q;                  // as attention reads it, dense when prepared
  AttentionRows past_k, past_v, present_k, present_v;
  AttentionRows staged_k, staged_v;  // new rows in cache format that present has no place for yet
  AttentionRows output;
};

}  // namespace hotset::cuda
