// SPDX-License-Identifier: Apache-2.0
// Softmax routing with top-k selection, and the sparse mixer.
#include "experts/router.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace hotset::experts {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kJitter = 0.01f;       // of the sparse mixer
constexpr float kSmallestSum = 1e-6f;  // softmax weights with a smaller sum are not divided by it

float rank_key(float logit) { return std::isnan(logit) ? -kInfinity : logit; }

// ids of the k largest logits in falling order. Insertion behind equal keys keeps the lower id first.
void select(const float* logits, int64_t n_experts, int64_t k, int32_t* ids) {
  int64_t n_held = 0;
  for (int64_t e = 0; e < n_experts; ++e) {
    const float key = rank_key(logits[e]);
    if (n_held == k && !(key > rank_key(logits[ids[k - 1]]))) continue;
    int64_t place = n_held < k ? n_held++ : k - 1;
    for (; place > 0 && key > rank_key(logits[ids[place - 1]]); --place) ids[place] = ids[place - 1];
    ids[place] = static_cast<int32_t>(e);
  }
}

// Pass j: the largest logit outside those taken gets its softmax weight among the logits close to it.
void mix_sparsely(const float* logits, int64_t n_experts, int32_t* ids, float* weights) {
  for (int j = 0; j < 2; ++j) {
    const auto taken = [&](int64_t e) { return j == 1 && e == ids[0]; };
    int64_t best = -1;
    for (int64_t e = 0; e < n_experts; ++e)
      if (!taken(e) && (best < 0 || rank_key(logits[e]) > rank_key(logits[best]))) best = e;
    const float top = logits[best];
    float sum = 0;
    for (int64_t e = 0; e < n_experts; ++e) {
      const bool far = top - logits[e] > 2 * kJitter * std::max(std::fabs(logits[e]), top);
      if (!far && !taken(e)) sum += std::exp(logits[e] - top);
    }
    ids[j] = static_cast<int32_t>(best);
    weights[j] = std::exp(top - top) / sum;  // top - top: NaN when top is not finite
  }
}

}  // namespace

void route(const Router& router, const float* logits, const float* given, int32_t* ids, float* weights) {
  if (router.sparse_mixer) return mix_sparsely(logits, router.n_experts, ids, weights);
  const int64_t k = router.k;
  select(logits, router.n_experts, k, ids);
  if (given) {
    for (int64_t j = 0; j < k; ++j) weights[j] = given[ids[j]];
  } else {
    const float top = rank_key(logits[ids[0]]);
    float sum = 0;
    for (int64_t e = 0; e < router.n_experts; ++e) sum += std::exp(logits[e] - top);
    for (int64_t j = 0; j < k; ++j) weights[j] = std::exp(logits[ids[j]] - top) / sum;
  }
  if (!router.normalize) return;
  float sum = 0;
  for (int64_t j = 0; j < k; ++j) sum += weights[j];
  if (given) {
    for (int64_t j = 0; j < k; ++j) weights[j] = sum == 0 ? 0.0f : weights[j] / sum;
  } else if (sum > kSmallestSum) {
    for (int64_t j = 0; j < k; ++j) weights[j] /= sum;
  }
}

}  // namespace hotset::experts
