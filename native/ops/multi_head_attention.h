// SPDX-License-Identifier: Apache-2.0
// MultiHeadAttention between its checks and its run.
#pragma once
#include "ops/attend.h"
#include "ops/op.h"

namespace hotset::ops::mha {

enum Input { kQuery, kKey, kValue, kProjectionBias, kPadding, kBias, kPastKey, kPastValue, kPastLength, kCacheIndirection };
enum Output { kOut, kPresentKey, kPresentValue, kQk };

struct Attributes {
  int64_t heads = 0;
  float scale = 0, filter = -10000.0f;
  bool causal = false;
};

// Q, K, V as they come: three tensors, query and packed K/V [B, L, N, 2, D], or all packed [B, S, N, 3, D].
struct Sources {
  HeadRows q, k, v;
};

template <class Has, class Get>  // bool(int), const Tensor&(int)
Sources sources(const Attributes& a, Has has, Get get) {
  const auto part = [&](int i, int p) { return head_rows(get(i), a.heads, p); };
  if (!has(kKey)) return {part(kQuery, 0), part(kQuery, 1), part(kQuery, 2)};
  if (!has(kValue)) return {part(kQuery, 0), part(kKey, 0), part(kKey, 1)};
  return {part(kQuery, 0), part(kKey, 0), part(kValue, 0)};
}

Result<Attributes> parse(const OpContext& c);

}  // namespace hotset::ops::mha
