// SPDX-License-Identifier: Apache-2.0
// GroupQueryAttention between its checks and its run: attributes, sizes of a call, what happens to the cache.
#pragma once
#include <cstdint>

#include "ops/attend.h"
#include "ops/head_vector.h"
#include "ops/op.h"

namespace hotset::ops::gqa {

enum Input {
  kQuery,
  kKey,
  kValue,
  kPastKey,
  kPastValue,
  kSeqlens,
  kTotal,
  kCos,
  kSin,
  kPositions,
  kBias,
  kSink,
  kKScale,
  kVScale,
  kQNorm,
  kKNorm,
  kQuerySeqlens
};
enum Output { kOut, kPresentKey, kPresentValue, kQk };

inline constexpr const char* kInputNames[] = {
    "query",         "key",           "value",        "past_key",       "past_value", "seqlens_k", "total_sequence_length",
    "cos_cache",     "sin_cache",     "position_ids", "attention_bias", "head_sink",  "k_scale",   "v_scale",
    "q_norm_weight", "k_norm_weight", "query_seqlens"};

enum class Quant { none, per_tensor, per_channel };

struct Attributes {
  int64_t heads = 0, kv_heads = 0, window = 0, bits = 0;  // window 0: off
  float scale = 0, softcap = 0, q_epsilon = 0, k_epsilon = 0;
  bool causal = true, windowed_cache = false, rotary = false, interleaved = false, smooth = false;
  QkOutput qk = QkOutput::none;
  Quant k_quant = Quant::none, v_quant = Quant::none;
};

// Sizes of one call; the letters of the operator's text.
struct Sizes {
  int64_t B = 0, S = 0, Skv = 0, D = 0, Cp = 0, C = 0, half = 0;  // half: columns of cos_cache
  bool packed = false, shared = false;
  DType type = DType::undefined, cache = DType::undefined;
  size_t k_row = 0, v_row = 0;  // bytes of a cache row
};

// What one batch entry does with its cache.
struct Step {
  int64_t total, n_rows, added;  // T_b, Q_b, rows appended
  int64_t cached, held, kept;    // tokens before the step; rows of them in past; rows of present after the step
  bool staged;
};

// Rows that a windowed cache (sliding_window_cache = 1) holds once `total` tokens were seen: always the last ones, from row 0
// on. A full cache drops capacity - window + 1 rows at once, so that the layout depends on `total` only.
inline int64_t resident_rows(int64_t total, int64_t capacity, int64_t window) {
  if (total <= capacity) return total;
  const int64_t gap = capacity - window + 1;
  return total - gap * ((total - capacity + gap - 1) / gap);
}

Result<Attributes> parse(const OpContext& c);
// Types, shapes and the rules that need total_sequence_length; fills *z.
Status check_call(const Attributes& a, const InferContext& c, int64_t total, Sizes* z);
// Reads seqlens_k and query_seqlens; fills steps[0, B).
Status plan_steps(const Attributes& a, const RunContext& c, const Sizes& z, int64_t total, Step* steps);

}  // namespace hotset::ops::gqa
