// SPDX-License-Identifier: Apache-2.0
// The router: ties, non-finite logits, given weights, the sparse mixer.
#include "experts/router.h"

#include <cassert>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <vector>

using hotset::experts::route;
using hotset::experts::Router;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routed run(std::vector<float> logits, int64_t k, bool normalize = false, std::vector<float> given = {}, bool sparse_mixer = false) {
  Routed r{std::vector<int32_t>(static_cast<size_t>(k)), std::vector<float>(static_cast<size_t>(k))};
  const Router router{static_cast<int64_t>(logits.size()), k, normalize, sparse_mixer};
  route(router, logits.data(), given.empty() ? nullptr : given.data(), r.ids.data(), r.weights.data());
  return r;
}

bool close(const std::vector<float>& got, const std::vector<float>& expected) {
  if (got.size() != expected.size()) return false;
  for (size_t i = 0; i < got.size(); ++i)
    if (!(std::fabs(got[i] - expected[i]) < 2e-7f)) return false;
  return true;
}

bool all_nan(const std::vector<float>& v) {
  for (float x : v)
    if (!std::isnan(x)) return false;
  return true;
}

using Ids = std::vector<int32_t>;

void test_ties_go_to_the_lower_id() {
  const Routed r = run({1, 3, 2, 3}, 2);
  assert(r.ids == (Ids{1, 3}) && close(r.weights, {0.39948627f, 0.39948627f}));
  assert(close(run({1, 3, 2, 3}, 2, true).weights, {0.5f, 0.5f}));
  assert(run({0, 0, 3}, 2).ids == (Ids{2, 0}));
  assert(run({5, 5, 5, 5}, 3).ids == (Ids{0, 1, 2}));
  assert(run({-0.0f, 0.0f, -0.0f}, 3).ids == (Ids{0, 1, 2}));
  assert(close(run({5, 5, 5, 5}, 4).weights, {0.25f, 0.25f, 0.25f, 0.25f}));
}

void test_order_is_by_logit_where_exp_underflows() {
  const Routed r = run({-200, 0, -150, -300}, 3);  // all but one softmax value are 0
  assert(r.ids == (Ids{1, 2, 0}) && r.weights[0] == 1 && r.weights[2] == 0);
  assert(run({-10000, 1, -10000, 0}, 2, true).ids == (Ids{1, 3}));
  assert(close(run({65504, 65504, -65504}, 2).weights, {0.5f, 0.5f}));
}

void test_not_finite() {
  Routed r = run({1, kNaN, 3, 2}, 3);
  assert(r.ids == (Ids{2, 3, 0}) && all_nan(r.weights));
  r = run({kNaN, kNaN, kNaN}, 2, true);
  assert(r.ids == (Ids{0, 1}) && all_nan(r.weights));
  r = run({kInf, 1, kInf}, 2);
  assert(r.ids == (Ids{0, 2}) && all_nan(r.weights));
  r = run({-kInf, -kInf, -kInf}, 2);
  assert(r.ids == (Ids{0, 1}) && all_nan(r.weights));
  r = run({-kInf, 4, -kInf}, 3);
  assert(r.ids == (Ids{1, 0, 2}) && close(r.weights, {1, 0, 0}));
  r = run({-kInf, kNaN, -kInf, kNaN, 1}, 3, false, {0.1f, 0.2f, 0.3f, 0.4f, 0.5f});
  assert(r.ids == (Ids{4, 0, 1}) && close(r.weights, {0.5f, 0.1f, 0.2f}));
}

void test_given_weights() {
  const std::vector<float> given{0.5f, 0.25f, -0.125f};
  assert(close(run({2, 1, 0}, 2, false, given).weights, {0.5f, 0.25f}));
  assert(close(run({2, 1, 0}, 2, true, given).weights, {0.66666667f, 0.33333334f}));
  assert(close(run({2, 1, 0}, 3, true, given).weights, {0.8f, 0.4f, -0.2f}));  // negative ones stay
  assert(close(run({2, 1, 0}, 2, true, {1, -1, 5}).weights, {0, 0}));          // a sum of zero
  assert(close(run({2, 1, 0}, 2, true, {1e-8f, 1e-8f, 5}).weights, {0.5f, 0.5f}));
}

void test_sparse_mixer() {
  Routed r = run({2.0f, 1.98f, 0.5f, -1, 1.0f, 1.90f, 0, 0.1f}, 2, false, {}, true);
  assert(r.ids == (Ids{0, 1}) && close(r.weights, {0.5049998f, 1.0f}));
  r = run({-kInf, 3, -kInf}, 2, false, {}, true);
  assert(r.ids == (Ids{1, 0}));
  r = run({7, 7}, 2, false, {}, true);
  assert(r.ids == (Ids{0, 1}) && close(r.weights, {0.5f, 1.0f}));
  r = run({kNaN, kNaN, kNaN}, 2, false, {}, true);
  assert(r.ids == (Ids{0, 1}));
}

void test_ids_are_distinct_and_in_range() {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    const int64_t n = 2 + static_cast<int64_t>(random() % 40), k = 1 + static_cast<int64_t>(random()) % n;
    const bool sparse = random() % 4 == 0;
    std::vector<float> logits(static_cast<size_t>(n));
    const float values[] = {0, 1, -1, 2, kNaN, kInf, -kInf, 0.5f};
    for (float& x : logits) x = values[random() % 8];
    const Routed r = run(logits, sparse ? 2 : k, random() % 2 == 0, {}, sparse);
    const std::set<int32_t> distinct(r.ids.begin(), r.ids.end());
    assert(distinct.size() == r.ids.size() && *distinct.begin() >= 0 && *distinct.rbegin() < n);
  }
}

}  // namespace

int main() {
  test_ties_go_to_the_lower_id();
  test_order_is_by_logit_where_exp_underflows();
  test_not_finite();
  test_given_weights();
  test_sparse_mixer();
  test_ids_are_distinct_and_in_range();
}
