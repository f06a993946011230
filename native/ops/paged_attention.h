// SPDX-License-Identifier: Apache-2.0
// PagedAttention between its checks and its run: attributes, sizes of a call.
#pragma once
#include <cstdint>

#include "ops/attend.h"
#include "ops/head_vector.h"
#include "ops/op.h"

namespace hotset::ops::paged {

enum Input {
  kQuery,
  kKey,
  kValue,
  kKeyCache,
  kValueCache,
  kCumulative,
  kPast,
  kTable,
  kCos,
  kSin,
  kSlots,
  kSink,
  kQNorm,
  kKNorm,
  kKScale,
  kVScale,
  kMetadata
};
enum Output { kOut, kKeyCacheOut, kValueCacheOut };
inline constexpr const char* kNames[] = {
    "query",         "key",           "value",     "key_cache", "value_cache",       "cumulative_sequence_length",
    "past_seqlens",  "block_table",   "cos_cache", "sin_cache", "slot_mapping",      "head_sink",
    "q_norm_weight", "k_norm_weight", "k_scale",   "v_scale",   "attention_metadata"};

enum class Quant { none, per_tensor, per_channel };

struct Attributes {
  int64_t heads = 0, kv_heads = 0, window = 0, rotary_offset = 0;  // window 0: off
  float scale = 0, softcap = 0, epsilon = 0;
  bool causal = true, rotary = false, interleaved = false;
  Quant k_quant = Quant::none, v_quant = Quant::none;
  DType k_type = DType::undefined, v_type = DType::undefined;  // of the caches' tensors; undefined: as they are
  // One cache for both: the first v_width channels of a key are the value. 0: all of them.
  bool latent = false;
  int64_t v_width = 0;
};

// Sizes of one call: tokens, requests, head size, that of values, pages, rows of a page, columns of the table, columns of cos_cache.
struct Sizes {
  int64_t tokens = 0, B = 0, D = 0, Dv = 0, n_pages = 0, page = 0, columns = 0, half = 0;
  DType type = DType::undefined, cache = DType::undefined;
  bool packed = false;
  // Of a vector in the cache: uint8 holds two codes of four bits in a byte.
  int bits() const { return cache == DType::u8 ? 4 : 8; }
  int64_t key_columns() const { return bits() == 4 ? (D + 1) / 2 : D; }
};

Result<Attributes> parse(const OpContext& c);
// Types and shapes.
Status check(const Attributes& a, const InferContext& c, Sizes* z);
// What the kernel reads and writes by the numbers of cumulative_sequence_length, past_seqlens, block_table and slot_mapping.
Status check_requests(const Attributes& a, const RunContext& c, const Sizes& z);

}  // namespace hotset::ops::paged
