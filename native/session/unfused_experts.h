// SPDX-License-Identifier: Apache-2.0
// Mixtures of experts that a file spells out in ordinary operators, for reports: what they are, how large, how they are computed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/graph.h"

namespace hotset {

struct UnfusedExperts {
  enum class Form {
    masked,    // every expert runs for every token; Equal(chosen experts, e) makes the weights of the others zero
    gathered,  // Gather(stacked weights, chosen experts) copies matrices for each token
  };
  const model::Node* router = nullptr;  // the TopK that chooses
  Form form = Form::masked;
  int64_t n_experts = 0, per_token = 0;  // per_token 0: not known before a run
  int64_t n_nodes = 0;                   // that belong to one expert each, or Gather nodes
  size_t bytes = 0;                      // of constants that belong to experts alone
};

// In the order of the graph. A TopK without experts behind it (sampling, attention) is none.
std::vector<UnfusedExperts> find_unfused_experts(const model::Graph& graph);

}  // namespace hotset
