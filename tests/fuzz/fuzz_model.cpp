// SPDX-License-Identifier: Apache-2.0
// Feeds bytes to the model reader: whatever they are, it returns a model or one line of text.
//
// Built and called as replay.h says.
#include "../model/proto.h"
#include "model/graph.h"
#include "replay.h"

using namespace hotset::model;

namespace {

// What later rooms rely on; touches both ends of every constant, so that a place outside its file shows.
uint64_t check_graph(const Graph& graph, int depth) {
  uint64_t sum = 0;
  const auto valid = [&](ValueId id) { return id >= kNone && id < static_cast<ValueId>(graph.values.size()); };
  std::vector<char> made(graph.values.size());
  for (const ValueId id : graph.inputs) made[static_cast<size_t>(id)] = true;
  for (const Capture& c : graph.captures) made[static_cast<size_t>(c.inner)] = true;
  for (size_t i = 0; i < graph.values.size(); ++i) {
    const Value& value = graph.values[i];
    CHECK(valid_text(value.name) && !value.name.empty() && graph.ids.find(value.name)->second == static_cast<ValueId>(i));
    if (value.constant >= 0) made[i] = true;
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    for (const auto* list : {&node.inputs, &node.captures}) {
      for (const ValueId id : *list) CHECK(valid(id) && (id == kNone || made[static_cast<size_t>(id)]));
    }
    for (const auto& [name, attribute] : node.attributes) {
      const auto* subgraph = std::get_if<std::shared_ptr<Graph>>(&attribute.value);
      if (!subgraph) continue;
      CHECK(depth < 100);
      for (const Capture& c : (*subgraph)->captures) CHECK(valid(c.outer) && made[static_cast<size_t>(c.outer)]);
      sum += check_graph(**subgraph, depth + 1);
    }
    for (const ValueId id : node.outputs) {
      CHECK(valid(id));
      if (id == kNone) continue;
      CHECK(!made[static_cast<size_t>(id)] && graph.values[static_cast<size_t>(id)].producer == static_cast<int32_t>(n));
      made[static_cast<size_t>(id)] = true;
    }
  }
  for (const ValueId id : graph.outputs) CHECK(id != kNone && valid(id) && made[static_cast<size_t>(id)]);
  for (const Constant& c : graph.constants) {
    const size_t n = c.tensor.data ? c.tensor.bytes() : 0;
    if (n) sum += c.tensor.as<uint8_t>()[0] + c.tensor.as<uint8_t>()[n - 1];
  }
  return sum;
}

bool has_kernel(std::string_view, std::string_view op_type) { return op_type.size() % 2 == 0; }

uint64_t run_one(const uint8_t* data, size_t n) {
  ReadOptions options;
  options.has_kernel = has_kernel;
  options.external_folder = fuzz::folder;
  auto result = read_model_bytes(data, n, options);
  if (result.ok()) return check_graph(result.value()->graph, 0);
  const std::string text = result.take_status().text();
  CHECK(valid_text(text) && text.find('\n') == std::string::npos && !text.empty());
  return 0;
}

std::string seed_model() {
  using namespace proto;
  const Message branch = graph({{}, {"b"}, {node("Sum", {"p", "t", "w"}, {"b"})}, {floats("w", {1, 2})}});
  const Message body = function(
      "Func", {"p", "q"}, {"r", "p"},
      {with(node("Abs", {"p", "q"}, {"t"}), {reference("k", "k", 2)}), with(node("If", {"p"}, {"r"}), {attribute("then_branch", branch)})},
      {attribute("k", 1)});
  return model(graph({{"x"},
                      {"y"},
                      {node("Func", {"x"}, {"h", "g"}, "local"), with(node("Constant", {}, {"c"}), {attribute("value_int", 1)}),
                       with(node("Loop", {"h", "w"}, {"z"}), {attribute("body", branch)}), node("Func", {"z", "t"}, {"p"}, "local"),
                       node("Add", {"p", "c", "g"}, {"y"})},
                      {floats("w", {1, 2, 3}), tensor("t", 7, {2}).number(7, 1).number(7, 2), floats("p0", {})}}),
               {body})
      .bytes;
}

}  // namespace

std::vector<std::string> fuzz::seeds() { return {seed_model()}; }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n) {
  run_one(data, n);
  return 0;
}
