// SPDX-License-Identifier: Apache-2.0
// Skipping and substitution of a token's last routes.
#include "experts/tail_routes.h"

#include <algorithm>
#include <cmath>

namespace hotset::experts {
namespace {

// The routes of one token while they are changed. A dropped route has a weight below zero until the end, so that its expert
// still counts as chosen.
class Token {
 public:
  Token(const TailRule& rule, const Router& router, const float* logits, const float* given, const uint8_t* resident, int32_t* ids,
        float* weights)
      : rule_(rule), router_(router), logits_(logits), given_(given), resident_(resident), ids_(ids), weights_(weights) {
    if (!given || !router.normalize || router.sparse_mixer) return;
    divisor_ = 0;
    for (int64_t j = 0; j < router.k; ++j) divisor_ += given[ids[j]];
  }

  float sum() const {
    float sum = 0;
    for (int64_t j = 0; j < router_.k; ++j)
      if (weights_[j] > 0) sum += weights_[j];
    return sum;
  }

  uint64_t skip() {
    float kept = 0;
    for (int64_t j = 0; j < router_.k; ++j)
      if (!may_skip(j)) kept += weights_[j];
    if (!(kept > 0)) return 0;
    uint64_t n = 0;
    for (int64_t j = 1; j < router_.k; ++j) {
      if (!may_skip(j)) continue;
      weights_[j] = -1;
      ++n;
    }
    return n;
  }

  uint64_t substitute() {
    uint64_t n = 0;
    for (int64_t j = router_.k - 1; j >= std::max<int64_t>(1, rule_.min_rank); --j) {
      if (weights_[j] < 0 || is_resident(ids_[j])) continue;
      const int64_t r = best_replacement();
      if (r < 0 || !(logits_[r] >= logits_[ids_[j]] - rule_.threshold)) continue;
      ids_[j] = static_cast<int32_t>(r);
      weights_[j] = weight_of(r);
      ++n;
    }
    return n;
  }

  // Drops what was skipped and restores the sum.
  void finish(float before) {
    const float after = sum(), factor = after > 0 ? before / after : 1;
    for (int64_t j = 0; j < router_.k; ++j) {
      if (weights_[j] < 0) {
        ids_[j] = -1;
        weights_[j] = 0;
      }
      weights_[j] *= factor;
    }
  }

 private:
  bool is_resident(int64_t e) const { return resident_ && resident_[e]; }
  bool may_skip(int64_t j) const { return j >= 1 && weights_[j] < rule_.min_weight && !(rule_.skip_cold_only && is_resident(ids_[j])); }
  // Softmax weights are to each other as the exponentials, whatever all of them were divided by.
  float weight_of(int64_t e) const {
    if (!given_) return weights_[0] * std::exp(logits_[e] - logits_[ids_[0]]);
    return divisor_ == 0 ? 0 : given_[e] / divisor_;
  }
  // The expert at hand with the largest logit that the token has not chosen, or -1.
  int64_t best_replacement() const {
    int64_t best = -1;
    for (int64_t e = 0; resident_ && e < router_.n_experts; ++e) {
      if (!resident_[e] || (best >= 0 && !(logits_[e] > logits_[best])) || std::isnan(logits_[e])) continue;
      if (!(weight_of(e) >= 0) || std::find(ids_, ids_ + router_.k, static_cast<int32_t>(e)) != ids_ + router_.k) continue;
      best = e;
    }
    return best;
  }

  const TailRule& rule_;
  const Router& router_;
  const float *const logits_, *const given_;
  const uint8_t* const resident_;
  int32_t* const ids_;
  float* const weights_;
  float divisor_ = 1;  // of given weights
};

}  // namespace

int64_t tail_max_tokens(int64_t n_experts, int64_t k) { return std::max<int64_t>(32, (8 * n_experts + k - 1) / k) - 1; }

void change_tail(const TailRule& rule, const Router& router, const float* logits, const float* given, const uint8_t* resident, int32_t* ids,
                 float* weights, TailChanges* changes) {
  const auto has = [&](auto&& test) { return std::any_of(weights, weights + router.k, test); };
  if (has([](float w) { return w < 0; })) {
    ++changes->negative_tokens;
    return;
  }
  if (has([](float w) { return !std::isfinite(w); })) return;
  Token token(rule, router, logits, given, resident, ids, weights);
  const float before = token.sum();
  const uint64_t skipped = rule.min_weight > 0 ? token.skip() : 0, substituted = rule.threshold > 0 ? token.substitute() : 0;
  if (skipped + substituted == 0) return;
  token.finish(before);
  changes->skipped += skipped;
  changes->substituted += substituted;
}

}  // namespace hotset::experts
