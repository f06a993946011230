// SPDX-License-Identifier: Apache-2.0
// Commit of a run, seeds and snapshots of the usage counters.
#include "experts/usage_counters.h"

#include <algorithm>
#include <cassert>

namespace hotset::experts {
namespace {

// Below this a counter is taken as 0: products of subnormal numbers are slow.
constexpr double kSmallest = 1e-30;

}  // namespace

size_t UsageCounters::add_layer(int64_t n_experts) {
  layers_.push_back({n_experts, std::make_unique<Counter[]>(static_cast<size_t>(n_experts)), {}});
  return layers_.size() - 1;
}

void UsageCounters::seed(size_t layer, std::span<const float> popularity, int64_t k) {
  assert(static_cast<int64_t>(popularity.size()) == layers_[layer].n_experts);
  double sum = 0;
  for (float p : popularity) sum += static_cast<double>(p);
  if (!(sum > 0)) return;
  const std::lock_guard lock(mutex_);
  for (size_t e = 0; e < popularity.size(); ++e) {
    const double share = static_cast<double>(popularity[e]) / sum;
    layers_[layer].counters[e].score.store(std::min(1.0, share * static_cast<double>(k)), std::memory_order_relaxed);
  }
}

void UsageCounters::commit(std::span<const RunUsage> run) noexcept {
  assert(run.size() == layers_.size());
  const std::lock_guard lock(mutex_);
  int64_t most_rows = 0;
  for (size_t l = 0; l < run.size(); ++l) {
    const RunUsage& usage = run[l];
    if (usage.n_rows() == 0) continue;
    most_rows = std::max(most_rows, usage.n_rows());
    layers_[l].changes.add(usage.changes());
    Counter* const counters = layers_[l].counters.get();
    // Written under the lock only, so the sum of two plain steps loses nothing.
    const auto raise = [](auto& value, auto by) { value.store(value.load(std::memory_order_relaxed) + by, std::memory_order_relaxed); };
    for (int64_t e = 0; e < layers_[l].n_experts; ++e) {
      const double c = counters[e].score.load(std::memory_order_relaxed);
      if (c != 0) counters[e].score.store(c < kSmallest ? 0 : decay_.alpha * c, std::memory_order_relaxed);
    }
    const double share = decay_.beta / static_cast<double>(usage.n_rows());
    for (int32_t e : usage.touched()) {
      const uint64_t routes = usage.routes(e);
      raise(counters[e].score, share * static_cast<double>(routes));
      raise(counters[e].routes, routes);
    }
  }
  n_tokens_ += static_cast<uint64_t>(most_rows);
}

size_t UsageCounters::bytes() const {
  size_t bytes = 0;
  for (const Layer& layer : layers_) bytes += static_cast<size_t>(layer.n_experts) * sizeof(Counter);
  return bytes;
}

UsageCounters::Snapshot UsageCounters::snapshot() const {
  Snapshot s;
  const std::lock_guard lock(mutex_);
  s.n_tokens = n_tokens_;
  for (const Layer& layer : layers_) {
    s.changes.push_back(layer.changes);
    std::vector<double>& scores = s.scores.emplace_back();
    std::vector<uint64_t>& routes = s.routes.emplace_back();
    for (int64_t e = 0; e < layer.n_experts; ++e) {
      scores.push_back(layer.counters[e].score.load(std::memory_order_relaxed));
      routes.push_back(layer.counters[e].routes.load(std::memory_order_relaxed));
    }
  }
  return s;
}

}  // namespace hotset::experts
