// SPDX-License-Identifier: Apache-2.0
// Graph rewrites before kernels are created.
#include "session/fuse.h"

#include <algorithm>

namespace hotset {
namespace {

using model::Graph;
using model::kNone;
using model::Node;
using model::ValueId;

struct Readers {
  std::vector<int> count;  // by value; a graph output counts as one reader
  std::vector<int32_t> last;
};

Readers find_readers(const Graph& graph) {
  Readers r{std::vector<int>(graph.values.size(), 0), std::vector<int32_t>(graph.values.size(), -1)};
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (ValueId id : graph.nodes[n].inputs) {
      if (id == kNone) continue;
      ++r.count[id];
      r.last[id] = static_cast<int32_t>(n);
    }
  }
  for (ValueId id : graph.outputs) ++r.count[id];
  return r;
}

void erase_nodes(Graph& graph, const std::vector<char>& dead) {
  std::vector<Node> kept;
  kept.reserve(graph.nodes.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    if (!dead[n]) kept.push_back(std::move(graph.nodes[n]));
  graph.nodes = std::move(kept);
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    for (ValueId id : graph.nodes[n].outputs)
      if (id != kNone) graph.values[id].producer = static_cast<int32_t>(n);
}

}  // namespace

int fuse(Graph& graph) {
  const Readers readers = find_readers(graph);
  std::vector<char> dead(graph.nodes.size(), 0);
  int n_fused = 0;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    Node& product = graph.nodes[n];
    if (product.op_type != "MatMulNBits" || product.domain != "com.microsoft") continue;
    if (product.inputs.size() > 5 && product.inputs[5] != kNone) continue;
    const ValueId y = product.outputs.empty() ? kNone : product.outputs[0];
    if (y == kNone) continue;  // its kernel refuses that
    if (readers.count[y] != 1 || readers.last[y] < 0) continue;
    Node& add = graph.nodes[readers.last[y]];
    if (product.guards != add.guards) continue;
    if (add.op_type != "Add" || !add.domain.empty() || add.inputs.size() != 2) continue;
    const ValueId other = add.inputs[0] == y ? add.inputs[1] : add.inputs[0];
    const model::Constant* bias = graph.constant(other);
    const model::Constant* scales = product.inputs.size() > 2 ? graph.constant(product.inputs[2]) : nullptr;
    const int64_t columns = product.get_int("N", 0);
    if (!bias || !scales || bias->tensor.shape.rank != 1 || bias->tensor.shape[0] != columns || bias->tensor.dtype != scales->tensor.dtype)
      continue;
    product.inputs.resize(6, kNone);
    product.inputs[5] = other;
    product.outputs[0] = add.outputs[0];
    dead[readers.last[y]] = 1;
    ++n_fused;
  }
  if (n_fused) erase_nodes(graph, dead);
  return n_fused;
}

int remove_dead_nodes(Graph& graph) {
  std::vector<char> live(graph.values.size(), 0);
  for (ValueId id : graph.outputs) live[id] = 1;
  std::vector<char> dead(graph.nodes.size(), 0);
  int n_dead = 0;
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const Node& node = graph.nodes[n];
    const bool used = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) { return id != kNone && live[id]; });
    if (!used) {
      dead[n] = 1;
      ++n_dead;
      continue;
    }
    for (ValueId id : node.inputs)
      if (id != kNone) live[id] = 1;
    for (const auto& [condition, value] : node.guards) live[condition] = 1;
  }
  if (n_dead) erase_nodes(graph, dead);
  return n_dead;
}

}  // namespace hotset
