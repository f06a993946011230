// SPDX-License-Identifier: Apache-2.0
// Looks from the indices of each TopK for comparisons with constants, or for Gather of stacked weights.
#include "session/unfused_experts.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string_view>

namespace hotset {
namespace {

constexpr int32_t kUnknown = -1, kShared = -2;  // labels below the numbers of experts
constexpr size_t kMaxStacks = 64;               // stacked weights of a layer
constexpr int kMaxSteps = 12;                   // nodes between a comparison and the product with the expert's result

bool is_one_of(const model::Node& node, std::initializer_list<std::string_view> names) {
  return node.domain.empty() && std::find(names.begin(), names.end(), node.op_type) != names.end();
}

bool keeps_numbers(const model::Node& node) {
  return is_one_of(node, {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Cast", "CastLike", "Identity", "Transpose", "Expand"});
}

class Finder {
 public:
  explicit Finder(const model::Graph& graph) : graph_(graph), seeds_(graph.nodes.size(), kUnknown), first_(graph.values.size() + 1, 0) {
    for (const model::Node& node : graph.nodes)
      for (const auto* ids : {&node.inputs, &node.captures})
        for (const model::ValueId id : *ids)
          if (id != model::kNone) ++first_[static_cast<size_t>(id) + 1];
    for (size_t v = 0; v < graph.values.size(); ++v) first_[v + 1] += first_[v];
    readers_.resize(first_.back());
    std::vector<size_t> next = first_;
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      for (const auto* ids : {&graph.nodes[n].inputs, &graph.nodes[n].captures})
        for (const model::ValueId id : *ids)
          if (id != model::kNone) readers_[next[static_cast<size_t>(id)]++] = static_cast<int32_t>(n);
  }

  std::vector<UnfusedExperts> find() {
    for (const model::Node& node : graph_.nodes)
      if (is_one_of(node, {"TopK"}) && node.outputs.size() == 2 && node.outputs[1] != model::kNone) look_behind(node);
    if (!layer_of_.empty()) measure();
    std::erase_if(layers_, [](const UnfusedExperts& layer) { return layer.bytes == 0; });
    return std::move(layers_);
  }

 private:
  std::span<const int32_t> readers(model::ValueId id) const {
    const size_t v = static_cast<size_t>(id);
    return {readers_.data() + first_[v], first_[v + 1] - first_[v]};
  }

  int64_t chosen(const model::Node& top_k) const {
    const model::Constant* k = top_k.inputs.size() > 1 ? graph_.constant(top_k.inputs[1]) : nullptr;
    if (!k) return top_k.inputs.size() > 1 ? 0 : top_k.get_int("k", 0);
    if (!k->tensor.data || k->tensor.dtype != DType::i64 || k->tensor.size() != 1) return 0;
    int64_t value;
    std::memcpy(&value, k->tensor.data, sizeof value);
    return value;
  }

  void look_behind(const model::Node& top_k) {
    UnfusedExperts masked{&top_k, UnfusedExperts::Form::masked, 0, chosen(top_k), 0, 0}, gathered = masked;
    gathered.form = UnfusedExperts::Form::gathered;
    const int32_t first_expert = static_cast<int32_t>(layer_of_.size());
    std::vector<model::ValueId> indices = {top_k.outputs[1]};  // and what has the same numbers
    std::vector<model::ValueId> stacks;
    std::vector<int32_t> weightings;
    for (size_t i = 0; i < indices.size() && indices.size() < 64; ++i) {
      for (const int32_t n : readers(indices[i])) {
        const model::Node& node = graph_.nodes[static_cast<size_t>(n)];
        if (keeps_numbers(node) && node.inputs[0] == indices[i] && !node.outputs.empty() && node.outputs[0] != model::kNone) {
          if (std::find(indices.begin(), indices.end(), node.outputs[0]) == indices.end()) indices.push_back(node.outputs[0]);
        } else if (is_one_of(node, {"Equal"}) && node.inputs.size() == 2) {
          const model::Constant* e = graph_.constant(node.inputs[node.inputs[0] == indices[i] ? 1 : 0]);
          const int32_t product = e && e->tensor.size() == 1 ? weighting(node) : kUnknown;
          if (product == kUnknown || seeds_[static_cast<size_t>(product)] != kUnknown) continue;
          seeds_[static_cast<size_t>(product)] = static_cast<int32_t>(layer_of_.size());
          weightings.push_back(product);
          layer_of_.push_back(layers_.size());
          ++masked.n_experts;
        } else if (is_one_of(node, {"Gather"}) && node.inputs.size() == 2 && node.inputs[1] == indices[i] && node.get_int("axis", 0) == 0) {
          const model::Constant* stack = graph_.constant(node.inputs[0]);
          if (!stack || stack->tensor.shape.rank < 3 || stacks.size() == kMaxStacks) continue;
          ++gathered.n_nodes;
          if (std::find(stacks.begin(), stacks.end(), node.inputs[0]) != stacks.end()) continue;
          stacks.push_back(node.inputs[0]);
          gathered.n_experts = std::max(gathered.n_experts, stack->tensor.shape[0]);
          gathered.bytes += stack->tensor.bytes();
        }
      }
    }
    if (masked.n_experts > 1) {
      layers_.push_back(masked);
    } else {
      layer_of_.resize(static_cast<size_t>(first_expert));
      for (const int32_t product : weightings) seeds_[static_cast<size_t>(product)] = kUnknown;
    }
    if (gathered.n_nodes) layers_.push_back(gathered);
  }

  // The Mul that gives the expert's result its weight: the first one behind a sum over the chosen experts.
  int32_t weighting(const model::Node& equal) const {
    const model::Node* node = &equal;
    bool summed = false;
    for (int step = 0; step < kMaxSteps; ++step) {
      if (node->outputs.empty() || node->outputs[0] == model::kNone) return kUnknown;
      const auto next = readers(node->outputs[0]);
      if (next.size() != 1) return kUnknown;
      node = &graph_.nodes[static_cast<size_t>(next[0])];
      if (summed && is_one_of(*node, {"Mul"})) return next[0];
      if (is_one_of(*node, {"ReduceSum", "ReduceMax"}))
        summed = true;
      else if (!keeps_numbers(*node) && !is_one_of(*node, {"Mul", "Where"}))
        return kUnknown;
    }
    return kUnknown;
  }

  // What only one expert's weighting needs belongs to it: nodes backwards from there, then the constants of these nodes.
  void measure() {
    std::vector<int32_t> label(graph_.nodes.size(), kUnknown), of_constant(graph_.constants.size(), kUnknown);
    std::vector<char> is_output(graph_.values.size(), 0);
    for (const model::ValueId id : graph_.outputs) is_output[static_cast<size_t>(id)] = 1;
    const auto join = [](int32_t a, int32_t b) { return a == kUnknown || a == b ? b : kShared; };
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const model::Node& node = graph_.nodes[n];
      label[n] = seeds_[n];
      for (size_t o = 0; o < node.outputs.size() && seeds_[n] == kUnknown; ++o) {
        if (node.outputs[o] == model::kNone) continue;
        if (is_output[static_cast<size_t>(node.outputs[o])]) label[n] = kShared;
        for (const int32_t reader : readers(node.outputs[o])) label[n] = join(label[n], label[static_cast<size_t>(reader)]);
      }
      if (label[n] == kUnknown) label[n] = kShared;
      if (label[n] >= 0) ++layers_[layer_of_[static_cast<size_t>(label[n])]].n_nodes;
      for (const auto* ids : {&node.inputs, &node.captures})
        for (const model::ValueId id : *ids)
          if (id != model::kNone && graph_.values[static_cast<size_t>(id)].constant >= 0) {
            int32_t& owner = of_constant[static_cast<size_t>(graph_.values[static_cast<size_t>(id)].constant)];
            owner = join(owner, label[n]);
          }
    }
    for (size_t c = 0; c < of_constant.size(); ++c)
      if (of_constant[c] >= 0) layers_[layer_of_[static_cast<size_t>(of_constant[c])]].bytes += graph_.constants[c].tensor.bytes();
  }

  const model::Graph& graph_;
  std::vector<UnfusedExperts> layers_;
  std::vector<size_t> layer_of_;  // of each masked expert
  std::vector<int32_t> seeds_;    // of each node: the expert whose weighting it is
  std::vector<size_t> first_;     // readers of value v: readers_[first_[v]] ... readers_[first_[v + 1] - 1]
  std::vector<int32_t> readers_;
};

}  // namespace

std::vector<UnfusedExperts> find_unfused_experts(const model::Graph& graph) { return Finder(graph).find(); }

}  // namespace hotset
