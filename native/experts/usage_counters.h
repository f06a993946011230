// SPDX-License-Identifier: Apache-2.0
// How often each expert is chosen: routes of the run in progress, and the counters of a session that successful runs feed.
//
// A run notes its routes in RunUsage of its own, without a lock. When it has succeeded they are committed, all layers together:
//
//     c[e] <- alpha * c[e] + beta * (routes to e / rows of the node)        for every expert of every layer that ran
//
// so c lies in 0...1 and a long prompt weighs as much as one decoded token. A run that fails or is cancelled commits nothing.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "experts/tail_routes.h"

namespace hotset::experts {

// Routes of one layer in one run. Costs nothing per expert that was not chosen, allocates when it is made only.
class RunUsage {
 public:
  explicit RunUsage(int64_t n_experts) : routes_(static_cast<size_t>(n_experts)), touched_(static_cast<size_t>(n_experts)) {}

  // Experts that `n_rows` tokens were sent to, in any order.
  void add(const int32_t* ids, int64_t count, int64_t n_rows) {
    for (int64_t i = 0; i < count; ++i)
      if (routes_[static_cast<size_t>(ids[i])]++ == 0) touched_[n_touched_++] = ids[i];
    n_rows_ += n_rows;
  }
  // What approximate routing did to routes that `add` has counted as the router made them.
  void add_changes(const TailChanges& changes) { changes_.add(changes); }
  void clear() {
    for (size_t i = 0; i < n_touched_; ++i) routes_[static_cast<size_t>(touched_[i])] = 0;
    n_touched_ = 0;
    n_rows_ = 0;
    changes_ = {};
  }

  int64_t n_rows() const { return n_rows_; }
  uint64_t routes(int64_t expert) const { return routes_[static_cast<size_t>(expert)]; }
  const TailChanges& changes() const { return changes_; }
  // The experts with routes, in the order in which they were first chosen.
  std::span<const int32_t> touched() const { return {touched_.data(), n_touched_}; }
  size_t bytes() const { return routes_.size() * sizeof(uint64_t) + touched_.size() * sizeof(int32_t); }

 private:
  std::vector<uint64_t> routes_;
  std::vector<int32_t> touched_;
  size_t n_touched_ = 0;
  int64_t n_rows_ = 0;
  TailChanges changes_;
};

// The rule above. alpha, beta >= 0 and alpha + beta <= 1.
struct Decay {
  double alpha = 0.9, beta = 0.1;
};

// Any number of threads may commit and read at once. Layers are numbered in the order of the graph.
class UsageCounters {
 public:
  explicit UsageCounters(Decay decay = {}) : decay_(decay) {}

  // These while the session is created, before anything runs. add_layer returns the layer's number.
  void set_decay(Decay decay) { decay_ = decay; }
  size_t add_layer(int64_t n_experts);
  // Starts from a profile: c[e] = min(1, popularity[e] * k / sum of popularity). All zero leaves the counters alone.
  void seed(size_t layer, std::span<const float> popularity, int64_t k);

  // What a run noted, by layer. The caller clears it.
  void commit(std::span<const RunUsage> run) noexcept;

  // c of an expert: what a cache weighs its records with.
  double score(size_t layer, int64_t expert) const { return at(layer, expert).score.load(std::memory_order_relaxed); }
  // Routes of all committed runs.
  uint64_t routes(size_t layer, int64_t expert) const { return at(layer, expert).routes.load(std::memory_order_relaxed); }

  size_t n_layers() const { return layers_.size(); }
  int64_t n_experts(size_t layer) const { return layers_[layer].n_experts; }
  size_t bytes() const;

  // All counters as one commit left them.
  struct Snapshot {
    std::vector<std::vector<double>> scores;    // [layer][expert]
    std::vector<std::vector<uint64_t>> routes;  // [layer][expert]
    std::vector<TailChanges> changes;           // [layer]
    uint64_t n_tokens = 0;                      // rows of the committed runs; of a run's layers, the one with most rows counts
  };
  Snapshot snapshot() const;

 private:
  struct Counter {
    std::atomic<double> score{0};
    std::atomic<uint64_t> routes{0};
  };
  struct Layer {
    int64_t n_experts;
    std::unique_ptr<Counter[]> counters;
    TailChanges changes;
  };
  const Counter& at(size_t layer, int64_t expert) const { return layers_[layer].counters[static_cast<size_t>(expert)]; }

  Decay decay_;
  std::vector<Layer> layers_;
  mutable std::mutex mutex_;  // of writers and of snapshot
  uint64_t n_tokens_ = 0;
};

}  // namespace hotset::experts
