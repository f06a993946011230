// SPDX-License-Identifier: Apache-2.0
// Usage counters: the rule, prefill, seeds, layers that did not run, commits at once.
#include "experts/usage_counters.h"

#include <cassert>
#include <cmath>
#include <random>
#include <thread>
#include <vector>

using hotset::experts::Decay;
using hotset::experts::RunUsage;
using hotset::experts::UsageCounters;

namespace {

using Ids = std::vector<int32_t>;

void commit(UsageCounters& counters, size_t layer, const Ids& ids, int64_t n_rows) {
  std::vector<RunUsage> run;
  for (size_t l = 0; l < counters.n_layers(); ++l) run.emplace_back(counters.n_experts(l));
  run[layer].add(ids.data(), static_cast<int64_t>(ids.size()), n_rows);
  counters.commit(run);
}

bool close(const UsageCounters& counters, size_t layer, const std::vector<double>& expected) {
  for (size_t e = 0; e < expected.size(); ++e)
    if (std::fabs(counters.score(layer, static_cast<int64_t>(e)) - expected[e]) > 1e-12) return false;
  return true;
}

void test_one_row() {
  UsageCounters c;
  assert(c.add_layer(4) == 0);
  commit(c, 0, {0, 2}, 1);
  assert(close(c, 0, {.1, 0, .1, 0}));
  commit(c, 0, {0, 3}, 1);
  assert(close(c, 0, {.19, 0, .09, .1}));
  commit(c, 0, {3, 0}, 1);
  assert(close(c, 0, {.271, 0, .081, .19}));
  assert(c.routes(0, 0) == 3 && c.routes(0, 1) == 0 && c.routes(0, 2) == 1 && c.routes(0, 3) == 2);
  assert(c.snapshot().n_tokens == 3);
}

void test_many_rows_count_as_shares() {
  UsageCounters c({0.5, 0.25});
  c.add_layer(3);
  commit(c, 0, {0, 1, 0, 2, 0, 1, 0, 1}, 4);
  assert(close(c, 0, {.25, .25 * 3 / 4, .25 / 4}));
  commit(c, 0, {2}, 1);
  assert(close(c, 0, {.125, .125 * 3 / 4, .125 / 4 + .25}));
  for (int i = 0; i < 5000; ++i) commit(c, 0, {2}, 1);
  assert(c.score(0, 0) == 0 && std::fabs(c.score(0, 2) - .5) < 1e-12);  // beta / (1 - alpha)
}

void test_values_stay_in_range() {
  UsageCounters c({0, 1});
  c.add_layer(2);
  commit(c, 0, {1}, 1);
  assert(close(c, 0, {0, 1}));
  commit(c, 0, {0, 0, 1}, 3);  // a token may name an expert once, but the rule does not depend on it
  assert(close(c, 0, {2. / 3, 1. / 3}));
}

void test_layers_that_did_not_run_keep_their_counters() {
  UsageCounters c;
  c.add_layer(2);
  assert(c.add_layer(3) == 1);
  commit(c, 1, {2}, 1);
  commit(c, 0, {1}, 1);
  assert(close(c, 0, {0, .1}) && close(c, 1, {0, 0, .1}));
}

void test_clear_forgets_a_run() {
  std::vector<RunUsage> run;
  run.emplace_back(3);
  const Ids ids{2, 0, 2};
  run[0].add(ids.data(), 3, 3);
  run[0].add(ids.data(), 1, 1);
  assert(run[0].n_rows() == 4 && run[0].routes(2) == 3 && run[0].routes(0) == 1);
  assert(run[0].touched().size() == 2 && run[0].touched()[0] == 2 && run[0].touched()[1] == 0);
  run[0].clear();
  UsageCounters c;
  c.add_layer(3);
  c.commit(run);
  assert(close(c, 0, {0, 0, 0}) && c.routes(0, 2) == 0 && c.snapshot().n_tokens == 0);
}

void test_seed() {
  UsageCounters c;
  c.add_layer(3);
  const float popularity[] = {6, 3, 1}, none[] = {0, 0, 0};
  c.seed(0, none, 2);
  assert(close(c, 0, {0, 0, 0}));
  c.seed(0, popularity, 2);
  assert(close(c, 0, {1, .6, .2}));  // 1.2 is capped
  assert(c.routes(0, 0) == 0);
}

void test_runs_at_once() {
  constexpr int kThreads = 4, kRuns = 500;
  static constexpr int64_t kExperts = 16;
  UsageCounters c({1, 0.0001});
  c.add_layer(kExperts);
  c.add_layer(kExperts);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&c, t] {
      std::vector<RunUsage> run;
      run.emplace_back(kExperts);
      run.emplace_back(kExperts);
      for (int i = 0; i < kRuns; ++i) {
        const Ids ids{t, (t + i) % static_cast<int>(kExperts)};
        for (RunUsage& layer : run) layer.add(ids.data(), 2, 1);
        c.commit(run);
        for (RunUsage& layer : run) layer.clear();
        // Both layers of a snapshot are of the same commit.
        const UsageCounters::Snapshot s = c.snapshot();
        assert(s.routes[0] == s.routes[1] && s.scores[0] == s.scores[1]);
        assert(c.score(0, t) >= 0);
      }
    });
  for (std::thread& thread : threads) thread.join();
  uint64_t total = 0;
  double scores = 0;
  for (int64_t e = 0; e < kExperts; ++e) {
    total += c.routes(1, e);
    scores += c.score(1, e);
  }
  assert(total == 2 * kThreads * kRuns && c.snapshot().n_tokens == kThreads * kRuns);
  assert(std::fabs(scores - 2 * kThreads * kRuns * 0.0001) < 1e-9);
}

}  // namespace

int main() {
  test_one_row();
  test_many_rows_count_as_shares();
  test_values_stay_in_range();
  test_layers_that_did_not_run_keep_their_counters();
  test_clear_forgets_a_run();
  test_seed();
  test_runs_at_once();
}
