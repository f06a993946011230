// SPDX-License-Identifier: Apache-2.0
// Routes per expert of one node in the run in progress. The session adds them to its counters when the run has succeeded.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hotset::ops {

class ExpertUsage {
 public:
  explicit ExpertUsage(int64_t n_experts) : routes_(static_cast<size_t>(n_experts)), touched_(static_cast<size_t>(n_experts)) {}

  // Experts that tokens were sent to, in any order. Costs nothing per expert that was not chosen.
  void add(const int32_t* ids, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
      if (routes_[static_cast<size_t>(ids[i])]++ == 0) touched_[n_touched_++] = ids[i];
  }
  // Calls f(expert, routes) for each expert that was chosen, and forgets it.
  template <class F>
  void drain(F&& f) {
    for (size_t i = 0; i < n_touched_; ++i) {
      uint64_t& routes = routes_[static_cast<size_t>(touched_[i])];
      f(touched_[i], routes);
      routes = 0;
    }
    n_touched_ = 0;
  }

  size_t bytes() const { return routes_.size() * sizeof(uint64_t) + touched_.size() * sizeof(int32_t); }

 private:
  std::vector<uint64_t> routes_;
  std::vector<int32_t> touched_;
  size_t n_touched_ = 0;
};

}  // namespace hotset::ops
