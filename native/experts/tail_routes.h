// SPDX-License-Identifier: Apache-2.0
// Approximate routing: routes of small weight are dropped, and routes to experts that are not at hand are given to others that
// are. Both change results and are off unless asked for. All arithmetic is float32.
#pragma once
#include <cstdint>

#include "experts/router.h"

namespace hotset::experts {

struct TailRule {
  float min_weight = 0;        // a route of a smaller weight is dropped; 0 is off
  bool skip_cold_only = true;  // only if its expert is not at hand
  float threshold = 0;         // loss of logit that a replacement may cost; 0 is off
  int64_t min_rank = 6;        // routes before this one are not replaced; less than k
  int64_t max_tokens = -1;     // calls of more tokens are left alone; -1: by tail_max_tokens()

  bool is_on() const { return min_weight > 0 || threshold > 0; }
};

// Up to how many tokens a call counts as decoding when nobody says otherwise: max(32, ceil(8 * n_experts / k)) - 1.
int64_t tail_max_tokens(int64_t n_experts, int64_t k);

// What happened to routes; sums over tokens.
struct TailChanges {
  uint64_t skipped = 0, substituted = 0;
  uint64_t negative_tokens = 0;  // left alone because a weight is below zero

  void add(const TailChanges& other) {
    skipped += other.skipped;
    substituted += other.substituted;
    negative_tokens += other.negative_tokens;
  }
};

// Changes the routes of one token, as route() made them from `logits` and `given`. j is the place of a route in its token.
//
//   1. Routes j >= 1 with weights[j] < min_weight are dropped: ids[j] becomes -1.
//   2. For j from k - 1 down to max(1, min_rank): a route that is still there and whose expert is cold goes to the expert r
//      with the largest logit (the lower id first) among those at hand that the token has not chosen, if
//      logits[r] >= logits[ids[j]] - threshold. Its weight is what route() would have given r beside the others: the softmax of
//      all logits at r, or given[r], divided as theirs were.
//   3. If anything changed, the weights are multiplied so that their sum is what it was.
//
// `resident`: whether an expert is at hand, [n_experts]; null: none is. A token with a weight that is negative or not finite is left
// alone, and so are its dropped routes if the rest would weigh nothing; experts whose given weight is negative or NaN replace no other.
void change_tail(const TailRule& rule, const Router& router, const float* logits, const float* given, const uint8_t* resident, int32_t* ids,
                 float* weights, TailChanges* changes);

}  // namespace hotset::experts
