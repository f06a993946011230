// SPDX-License-Identifier: Apache-2.0
// Steps between the nodes of a file and a finished graph: constants, undefined values, execution order.
#include <functional>
#include <queue>

#include "model/onnx_reader.h"

namespace hotset::model {
namespace {

// The nodes that must run before `node`; each value's producer, with repetitions.
template <class F>
void each_producer(const Graph& graph, const Node& node, F&& f) {
  for (const auto* list : {&node.inputs, &node.captures}) {
    for (const ValueId id : *list) {
      if (id != kNone && graph.values[static_cast<size_t>(id)].producer >= 0) f(graph.values[static_cast<size_t>(id)].producer);
    }
  }
}

Status cycle(const Graph& graph, const std::vector<int32_t>& waiting) {
  size_t at = 0;
  while (waiting[at] == 0) ++at;
  // Going back along unsorted producers must come to a node seen before; from there the path is the cycle.
  std::vector<int32_t> seen(graph.nodes.size(), -1);
  std::vector<size_t> path;
  while (seen[at] < 0) {
    seen[at] = static_cast<int32_t>(path.size());
    path.push_back(at);
    size_t next = at;
    each_producer(graph, graph.nodes[at], [&](int32_t p) {
      if (waiting[static_cast<size_t>(p)] > 0) next = static_cast<size_t>(p);
    });
    at = next;
  }
  std::string text;
  const size_t first = static_cast<size_t>(seen[at]);
  for (size_t i = first; i < path.size() && i < first + 8; ++i) text += graph.nodes[path[i]].text() + " reads from ";
  text += path.size() > first + 8 ? "..." : graph.nodes[path[first]].text();
  return fail(Code::invalid_model, "a cycle: %s", text.c_str());
}

// Constants need no capture; other captures learn the type and shape that the enclosing graph declares.
void settle_captures(Graph& graph, const Graph& outer) {
  std::erase_if(graph.captures, [&](const Capture& capture) {
    const Value& from = outer.values[static_cast<size_t>(capture.outer)];
    Value& to = graph.values[static_cast<size_t>(capture.inner)];
    if (from.constant >= 0) {
      set_constant(graph, capture.inner, outer.constants[static_cast<size_t>(from.constant)]);
      return true;
    }
    if (to.dtype == DType::undefined) to.dtype = from.dtype;
    if (!to.has_shape && from.has_shape) {
      to.has_shape = true;
      to.shape = from.shape;
    }
    return false;
  });
}

Status no_strings(const Graph& graph, ValueId id, const std::string& reader) {
  const Constant* constant = graph.constant(id);
  HOTSET_FAIL_IF(constant && constant->tensor.dtype == DType::string, unsupported, "tensor %s, read by %s, has string elements",
                 quote(graph.values[static_cast<size_t>(id)].name).c_str(), reader.c_str());
  return {};
}

}  // namespace

void set_constant(Graph& graph, ValueId id, Constant constant) {
  Value& value = graph.values[static_cast<size_t>(id)];
  value.constant = static_cast<int>(graph.constants.size());
  value.dtype = constant.tensor.dtype;
  value.has_shape = true;
  value.shape.clear();
  for (const int64_t d : constant.tensor.shape.dims()) value.shape.push_back({d, {}});
  graph.constants.push_back(std::move(constant));
}

Status undefined_values(const Graph& graph, std::vector<char> undefined) {
  std::string text;
  const auto add = [&](ValueId id, const std::string& reader) {
    if (id == kNone || !undefined[static_cast<size_t>(id)]) return;
    undefined[static_cast<size_t>(id)] = false;
    text += (text.empty() ? "" : ", ") + quote(graph.values[static_cast<size_t>(id)].name) + " (" + reader + ")";
  };
  for (const Node& node : graph.nodes) {
    for (const ValueId id : node.inputs) add(id, "read by " + node.text());
    for (const ValueId id : node.captures) add(id, "read inside " + node.text());
  }
  for (const ValueId id : graph.outputs) add(id, "a graph output");
  for (size_t i = 0; i < undefined.size(); ++i) add(static_cast<ValueId>(i), "returned or read by a function");
  return fail(Code::invalid_model, "nothing makes: %s", text.c_str());
}

Status sort_nodes(Graph& graph) {
  bool sorted = true;
  for (size_t i = 0; i < graph.nodes.size() && sorted; ++i) {
    each_producer(graph, graph.nodes[i], [&](int32_t p) { sorted = sorted && static_cast<size_t>(p) < i; });
  }
  if (sorted) return {};

  // Of the nodes that can run, the one that comes first in the file runs first.
  const size_t n = graph.nodes.size();
  std::vector<int32_t> waiting(n, 0), n_readers(n + 1, 0);
  for (size_t i = 0; i < n; ++i) {
    each_producer(graph, graph.nodes[i], [&](int32_t p) {
      ++waiting[i];
      ++n_readers[static_cast<size_t>(p) + 1];
    });
  }
  std::vector<size_t> start(n + 1, 0);
  for (size_t i = 0; i < n; ++i) start[i + 1] = start[i] + static_cast<size_t>(n_readers[i + 1]);
  std::vector<int32_t> readers(start[n]);
  std::vector<size_t> fill(start.begin(), start.end() - 1);
  for (size_t i = 0; i < n; ++i) {
    each_producer(graph, graph.nodes[i], [&](int32_t p) { readers[fill[static_cast<size_t>(p)]++] = static_cast<int32_t>(i); });
  }
  std::priority_queue<size_t, std::vector<size_t>, std::greater<>> ready;
  for (size_t i = 0; i < n; ++i) {
    if (waiting[i] == 0) ready.push(i);
  }
  std::vector<Node> nodes;
  nodes.reserve(n);
  std::vector<int32_t> place(n, -1);
  while (!ready.empty()) {
    const size_t i = ready.top();
    ready.pop();
    place[i] = static_cast<int32_t>(nodes.size());
    nodes.push_back(std::move(graph.nodes[i]));
    for (size_t k = start[i]; k < start[i + 1]; ++k) {
      if (--waiting[static_cast<size_t>(readers[k])] == 0) ready.push(static_cast<size_t>(readers[k]));
    }
  }
  if (nodes.size() != n) return cycle(graph, waiting);
  graph.nodes = std::move(nodes);
  for (Value& value : graph.values) {
    if (value.producer >= 0) value.producer = place[static_cast<size_t>(value.producer)];
  }
  return {};
}

Status settle_constants(Graph& graph) {
  for (Node& node : graph.nodes) {
    for (const ValueId id : node.inputs) {
      if (graph.constant(id)) HOTSET_TRY(no_strings(graph, id, node.text()));
    }
    for (auto& [name, attribute] : node.attributes) {
      const auto* subgraph = std::get_if<std::shared_ptr<Graph>>(&attribute.value);
      if (!subgraph) continue;
      settle_captures(**subgraph, graph);
      HOTSET_TRY(settle_constants(**subgraph));
    }
    std::erase_if(node.captures, [&](ValueId id) { return graph.constant(id) != nullptr; });
  }
  for (const ValueId id : graph.outputs) HOTSET_TRY(no_strings(graph, id, "the caller"));
  return {};
}

}  // namespace hotset::model
