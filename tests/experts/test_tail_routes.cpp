// SPDX-License-Identifier: Apache-2.0
// Approximate routing against its text in double, over random routings and residents, and the text's examples.
#include "experts/tail_routes.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

using namespace hotset::experts;

namespace {

using Ids = std::vector<int32_t>;
using Floats = std::vector<float>;
using Residents = std::vector<uint8_t>;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

struct Routed {
  Ids ids;
  Floats weights;
  TailChanges changes;
};

Routed change(const TailRule& rule, const Router& router, const Floats& logits, const Floats& given, const Residents& resident,
              Routed routed) {
  change_tail(rule, router, logits.data(), given.empty() ? nullptr : given.data(), resident.empty() ? nullptr : resident.data(),
              routed.ids.data(), routed.weights.data(), &routed.changes);
  return routed;
}

Routed run(const TailRule& rule, const Router& router, const Floats& logits, const Floats& given, const Residents& resident) {
  Routed routed{Ids(static_cast<size_t>(router.k)), Floats(static_cast<size_t>(router.k)), {}};
  route(router, logits.data(), given.empty() ? nullptr : given.data(), routed.ids.data(), routed.weights.data());
  return change(rule, router, logits, given, resident, std::move(routed));
}

bool close(const Floats& got, const std::vector<double>& expected) {
  for (size_t i = 0; i < got.size(); ++i)
    if (!(std::fabs(got[i] - expected[i]) <= 3e-6 * std::max(1.0, std::fabs(expected[i])))) return false;
  return got.size() == expected.size();
}

// The example of the text: k = 3, experts 4, 7, 9 with weights .6, .3, .1, only 4 at hand.
struct Example {
  Router router{10, 3, true, false};
  Floats logits = Floats(10, -50.0f);
  Residents resident = Residents(10, 0);
  Example() {
    logits[4] = 3.0f;
    logits[7] = 2.3f;
    logits[9] = 1.2f;
    resident[4] = 1;
  }
  Routed run(const TailRule& rule) const { return change(rule, router, logits, {}, resident, {{4, 7, 9}, {.6f, .3f, .1f}, {}}); }
};

void test_skip() {
  Example x;
  const Routed r = x.run({.15f});
  assert(r.ids == (Ids{4, 7, -1}) && close(r.weights, {.6 / .9, .3 / .9, 0}) && r.changes.skipped == 1 && r.changes.substituted == 0);
  assert(x.run({.35f}).ids == (Ids{4, -1, -1}) && close(x.run({.35f}).weights, {1, 0, 0}));
  assert(x.run({1}).ids == (Ids{4, -1, -1}));  // never the first
  assert(x.run({.1f}).ids == (Ids{4, 7, 9}));  // less, not as little
  assert(x.run({0}).ids == (Ids{4, 7, 9}));
  x.resident[9] = 1;
  assert(x.run({.15f}).ids == (Ids{4, 7, 9}));
  assert(x.run({.15f, false}).ids == (Ids{4, 7, -1}));
}

void test_substitute() {
  Example x;
  x.resident[2] = 1;
  x.logits[2] = .8f;
  const Routed r = x.run({0, true, .5f, 2});
  const double new_weight = .6 * std::exp(.8 - 3.0), factor = 1 / (.9 + new_weight);
  assert(r.ids == (Ids{4, 7, 2}) && close(r.weights, {.6 * factor, .3 * factor, new_weight * factor}));
  assert(r.changes.skipped == 0 && r.changes.substituted == 1);
  x.logits[2] = .6f;
  assert(x.run({0, true, .5f, 2}).ids == (Ids{4, 7, 9}));
  x.logits[2] = 1.0f;  // 1.0 >= 1.2 - .5, but not >= 2.3 - .5
  assert(x.run({0, true, .5f, 1}).ids == (Ids{4, 7, 2}));
  assert(x.run({0, true, 2, 1}).ids == (Ids{4, 7, 2}));  // from the last on: one candidate, so 7 stays
  x.resident[3] = 1;
  x.logits[3] = 1.0f;
  assert(x.run({0, true, 2, 1}).ids == (Ids{4, 3, 2}));      // the lower id first
  assert(x.run({0, true, 2, 0}).ids == (Ids{4, 3, 2}));      // rank 0 is never replaced
  assert(x.run({.15f, true, 2, 1}).ids == (Ids{4, 2, -1}));  // dropped first
  x.resident[9] = 1;
  assert(x.run({0, true, 2, 2}).ids == (Ids{4, 7, 9}));  // at hand already
}

void test_left_alone() {
  const Router router{4, 2, false, false};
  const Floats logits{2, 1, 0, -1};
  const Residents none(4, 0), all(4, 1), only2{0, 0, 1, 0};
  const TailRule both{.9f, true, 10, 1};
  Routed r = run(both, router, logits, {.5f, -.25f, .1f, .1f}, none);
  assert(r.ids == (Ids{0, 1}) && r.changes.negative_tokens == 1 && r.changes.skipped == 0);
  r = run(both, router, logits, {.5f, kNaN, .1f, .1f}, none);
  assert(r.ids == (Ids{0, 1}) && r.changes.negative_tokens == 0 && r.changes.skipped == 0);
  r = run(both, router, logits, {kInf, .1f, .1f, .1f}, none);
  assert(r.ids == (Ids{0, 1}) && r.changes.skipped == 0);
  r = run(both, router, {kNaN, 1, 0, -1}, {}, none);
  assert(r.changes.skipped == 0 && std::isnan(r.weights[0]));
  r = run({.9f}, router, logits, {0, .25f, .1f, .1f}, none);  // nothing would be left
  assert(r.ids == (Ids{0, 1}) && r.weights == (Floats{0, .25f}));
  r = run(both, router, logits, {.5f, .95f, -.1f, .1f}, only2);  // the only candidate weighs less than nothing
  assert(r.ids == (Ids{0, 1}));
  r = run(both, router, logits, {.5f, .95f, .1f, .1f}, all);
  assert(r.ids == (Ids{0, 1}) && r.changes.substituted == 0);
  r = run(both, router, logits, {}, {});  // nothing at hand: dropped, not replaced
  assert(r.ids == (Ids{0, -1}) && r.changes.skipped == 1);
}

void test_default_number_of_tokens() {
  assert(tail_max_tokens(256, 8) == 255 && tail_max_tokens(32, 4) == 63 && tail_max_tokens(8, 2) == 31 && tail_max_tokens(100, 3) == 266);
}

// The text, in double, with sets and sorted lists in place of loops over places.
struct Reference {
  std::vector<int> ids;
  std::vector<double> weights;
  uint64_t skipped = 0, substituted = 0;
  bool is_near = false;  // a comparison is so close that float32 may decide otherwise

  bool less(double a, double b) {
    is_near = is_near || std::fabs(a - b) < 1e-5;
    return a < b;
  }

  Reference(const TailRule& rule, const Router& router, const Floats& logits, const Floats& given, const Residents& resident) {
    const size_t n = logits.size(), k = static_cast<size_t>(router.k);
    std::vector<int> order(n);
    for (size_t e = 0; e < n; ++e) order[e] = static_cast<int>(e);
    const auto at = [](const auto& v, int e) { return v[static_cast<size_t>(e)]; };
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return at(logits, a) > at(logits, b); });
    double all = 0, chosen = 0;
    for (float x : logits) all += std::exp(static_cast<double>(x));
    const auto mass = [&](int e) { return given.empty() ? std::exp(static_cast<double>(at(logits, e))) / all : at(given, e); };
    ids.assign(order.begin(), order.begin() + static_cast<ptrdiff_t>(k));
    for (int e : ids) chosen += mass(e);
    const double divisor = router.normalize ? chosen : 1;
    for (int e : ids) weights.push_back(mass(e) / divisor);
    double before = 0, after = 0;
    for (double w : weights) before += w;

    std::vector<int> taken = ids;
    for (size_t j = 1; j < k; ++j) {
      if (!less(weights[j], rule.min_weight) || (rule.skip_cold_only && at(resident, ids[j]))) continue;
      ids[j] = -1;
      weights[j] = 0;
      ++skipped;
    }
    for (size_t j = k; j-- > static_cast<size_t>(std::max<int64_t>(1, rule.min_rank)) && rule.threshold > 0;) {
      if (ids[j] < 0 || at(resident, ids[j])) continue;
      const auto is_free = [&](int e) { return at(resident, e) && std::find(taken.begin(), taken.end(), e) == taken.end(); };
      const auto best = std::find_if(order.begin(), order.end(), is_free);
      if (best == order.end() || less(at(logits, *best), static_cast<double>(at(logits, ids[j])) - rule.threshold)) continue;
      ids[j] = *best;
      taken.push_back(*best);
      weights[j] = mass(*best) / divisor;
      ++substituted;
    }
    for (double w : weights) after += w;
    for (double& w : weights) w *= before / after;
  }
};

void test_random() {
  std::mt19937 rng(3);
  const auto uniform = [&](float low, float high) { return std::uniform_real_distribution<float>(low, high)(rng); };
  int n_near = 0;
  uint64_t skipped = 0, substituted = 0;
  for (int i = 0; i < 20000; ++i) {
    const size_t n = 1 + rng() % 40;
    Router router{static_cast<int64_t>(n), static_cast<int64_t>(1 + rng() % std::min<size_t>(n, 10)), rng() % 2 == 0, false};
    TailRule rule{rng() % 4 ? uniform(0, .3f) : 0, rng() % 2 == 0, rng() % 3 ? uniform(0, 3) : 0, static_cast<int64_t>(rng() % 8)};
    Floats logits, given;
    Residents resident;
    const float share = uniform(0, 1), spread = uniform(.1f, 4);
    for (size_t e = 0; e < n; ++e) {
      logits.push_back(i % 5 == 0 ? std::round(uniform(-3, 3)) : uniform(-spread, spread));  // ties now and then
      resident.push_back(uniform(0, 1) < share);
    }
    if (rng() % 3 == 0)
      for (size_t e = 0; e < n; ++e) given.push_back(uniform(.01f, 1));
    Reference expected(rule, router, logits, given, resident);
    const Routed got = run(rule, router, logits, given, resident);
    if (expected.is_near) {
      ++n_near;
      continue;
    }
    const bool is_right = std::equal(got.ids.begin(), got.ids.end(), expected.ids.begin()) && close(got.weights, expected.weights) &&
                          got.changes.skipped == expected.skipped && got.changes.substituted == expected.substituted;
    if (!is_right) {
      std::printf("case %d: routes differ from the reference\n", i);
      std::exit(1);
    }
    skipped += expected.skipped;
    substituted += expected.substituted;
  }
  assert(n_near < 4000 && skipped > 10000 && substituted > 2000);
}

}  // namespace

int main() {
  test_skip();
  test_substitute();
  test_left_alone();
  test_default_number_of_tokens();
  test_random();
}
