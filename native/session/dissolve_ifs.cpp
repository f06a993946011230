// SPDX-License-Identifier: Apache-2.0
// If nodes become guarded nodes of the graph around them.
#include "session/fuse.h"

namespace hotset {
namespace {

using model::Graph;
using model::kNone;
using model::Node;
using model::ValueId;

bool is_if(const Node& node) {
  if (node.op_type != "If" || !node.domain.empty() || node.inputs.size() != 1 || node.inputs[0] == kNone) return false;
  const Graph *then_branch = node.get_graph("then_branch"), *else_branch = node.get_graph("else_branch");
  return then_branch && else_branch && then_branch->inputs.empty() && else_branch->inputs.empty();
}

// Moves the nodes of `branch` into `nodes` and its values and constants into `graph`; returns its outputs there.
std::vector<ValueId> move_in(Graph& graph, const Graph& branch, const Node& owner, bool when, std::vector<Node>& nodes) {
  std::vector<ValueId> map(branch.values.size(), kNone);
  for (const model::Capture& c : branch.captures) map[c.inner] = c.outer;
  for (size_t id = 0; id < branch.values.size(); ++id) {
    if (map[id] != kNone) continue;
    model::Value v = branch.values[id];
    if (v.constant >= 0) {
      graph.constants.push_back(branch.constants[v.constant]);
      v.constant = static_cast<int>(graph.constants.size()) - 1;
    }
    map[id] = static_cast<ValueId>(graph.values.size());
    graph.values.push_back(std::move(v));
  }
  const auto rename = [&](std::vector<ValueId>& ids) {
    for (ValueId& id : ids)
      if (id != kNone) id = map[id];
  };
  const std::string branch_name = when ? "then_branch" : "else_branch";
  const std::string scope = owner.scope + "/" + std::to_string(owner.index) + "/" + std::to_string(branch_name.size()) + ":" + branch_name;
  int32_t index = 0;
  for (Node node : branch.nodes) {
    node.scope = scope;
    node.index = index++;
    rename(node.inputs);
    rename(node.outputs);
    rename(node.captures);
    for (auto& [condition, value] : node.guards) condition = map[condition];
    node.guards.insert(node.guards.end(), owner.guards.begin(), owner.guards.end());
    node.guards.emplace_back(owner.inputs[0], when);
    // Subgraphs further in name values of `branch`: they are dissolved in turn, through captures already renamed.
    for (auto& [key, attribute] : node.attributes) {
      auto* inner = std::get_if<std::shared_ptr<Graph>>(&attribute.value);
      if (!inner || !*inner) continue;
      auto copy = std::make_shared<Graph>(**inner);
      for (model::Capture& c : copy->captures) c.outer = map[c.outer];
      *inner = std::move(copy);
    }
    nodes.push_back(std::move(node));
  }
  std::vector<ValueId> outputs = branch.outputs;
  rename(outputs);
  return outputs;
}

}  // namespace

void dissolve_ifs(Graph& graph) {
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    graph.nodes[n].scope = "main";
    graph.nodes[n].index = static_cast<int32_t>(n);
  }
  for (bool found = true; found;) {  // once for each depth of nesting
    found = false;
    std::vector<Node> nodes;
    for (Node& node : graph.nodes) {
      if (!is_if(node)) {
        nodes.push_back(std::move(node));
        continue;
      }
      found = true;
      const auto then_outputs = move_in(graph, *node.get_graph("then_branch"), node, true, nodes);
      const auto else_outputs = move_in(graph, *node.get_graph("else_branch"), node, false, nodes);
      for (size_t i = 0; i < node.outputs.size(); ++i) {
        if (node.outputs[i] == kNone) continue;
        Node select;
        select.name = node.name;
        select.domain = "hotset";
        select.op_type = "Select";
        select.inputs = {node.inputs[0], i < then_outputs.size() ? then_outputs[i] : kNone,
                         i < else_outputs.size() ? else_outputs[i] : kNone};
        select.outputs = {node.outputs[i]};
        select.guards = node.guards;
        nodes.push_back(std::move(select));
      }
    }
    graph.nodes = std::move(nodes);
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    for (ValueId id : graph.nodes[n].outputs)
      if (id != kNone) graph.values[id].producer = static_cast<int32_t>(n);
}

}  // namespace hotset
