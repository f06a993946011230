// SPDX-License-Identifier: Apache-2.0
// Inlining of local functions.
#include <set>

#include "proto.h"

using namespace hotset::model;
using namespace proto;

namespace {

const Message kUseTwice =
    function("Twice", {"a", "b"}, {"r", "spare"},
             {with(node("Scale", {"a", "b"}, {"t"}), {reference("factor", "factor", 2), reference("axis", "axis", 2)}),
              node("Add", {"t", "t"}, {"r"}), node("Neg", {"t"}, {"spare"})},
             {attribute("axis", -1)});

Message call(std::string_view name, const Names& in, const Names& out) { return node(name, in, out, "local", "call_" + out[0]); }

void test_call() {
  const auto m = read(model(graph({{"x"},
                                   {"y"},
                                   {with(call("Twice", {"x"}, {"h"}), {attribute("factor", 5)}), call("Twice", {"h", "x"}, {"y", "z"}),
                                    node("Use", {"z", "Twice_0/t_0"}, {"u"}), node("Relu", {"x"}, {"Twice_0/t_0"})}}),
                            {kUseTwice}));
  const Graph& g = m->graph;
  CHECK(g.nodes.size() == 8);
  const Node& first = g.nodes[0];
  CHECK(first.op_type == "Scale" && first.name == "Twice_0/t" && first.opset == 18 && first.inputs[1] == kNone);
  CHECK(first.get_int("factor", 0) == 5 && first.get_int("axis", 0) == -1);
  const Node& second = g.nodes[3];
  CHECK(second.op_type == "Scale" && !second.find("factor") && second.inputs[0] == g.nodes[1].outputs[0] &&
        second.inputs[1] == g.inputs[0]);
  CHECK(g.values[static_cast<size_t>(g.outputs[0])].producer == 4);
  std::set<std::string> names;
  for (size_t i = 0; i < g.values.size(); ++i) {
    CHECK(names.insert(g.values[i].name).second && !g.values[i].name.empty() &&
          g.ids.find(g.values[i].name)->second == static_cast<int>(i));
  }
  CHECK(g.nodes[6].op_type == "Relu" && g.nodes[7].op_type == "Use" && g.nodes[7].inputs[0] == g.nodes[5].outputs[0]);
}

void test_kernel_wins() {
  ReadOptions options;
  options.has_kernel = [](std::string_view domain, std::string_view op) { return domain == "local" && op == "Twice"; };
  const Message broken = function("Twice", {"a", "b"}, {"r"}, {Message().tag(1, 3)});  // with a kernel the body is not looked at
  const auto m = read(model(graph({{"x"}, {"y"}, {call("Twice", {"x"}, {"y"})}}), {broken}), options);
  CHECK(m->graph.nodes.size() == 1 && m->graph.nodes[0].op_type == "Twice");
  EXPECT_FAILURE(try_read(model(graph({{"x"}, {"y"}, {call("Twice", {"x"}, {"y"})}}), {broken})), invalid_model,
                 "node 'call_y' (Twice): node '': malformed node");
}

void test_nested() {
  const Message outer = function("Outer", {"p"}, {"q", "p"},
                                 {with(call("Twice", {"p", "p"}, {"s"}), {reference("factor", "f", 2)}), node("Exp", {"s"}, {"q"})});
  const auto m =
      read(model(graph({{"x"}, {"y", "same"}, {with(call("Outer", {"x"}, {"y", "same"}), {attribute("f", 3)})}}), {outer, kUseTwice}));
  const Graph& g = m->graph;
  CHECK(g.nodes.size() == 5 && g.nodes[0].op_type == "Identity" && g.nodes[1].get_int("factor", 0) == 3);

  // A subgraph in a body sees the body's names: formal inputs, left-out ones too, and attributes.
  const Message branch = graph({{}, {"b"}, {with(node("Sum", {"p", "missing", "t"}, {"b"}), {reference("k", "k", 2)})}});
  const Message body = function("Cond", {"p", "missing"}, {"q"},
                                {node("Abs", {"p"}, {"t"}), with(node("If", {"p"}, {"q"}), {attribute("then_branch", branch)})});
  const auto c = read(model(graph({{"x"}, {"y"}, {with(call("Cond", {"x"}, {"y"}), {attribute("k", 4)})}}), {body}));
  const Node& if_node = c->graph.nodes[1];
  const Graph& inside = *if_node.get_graph("then_branch");
  CHECK(inside.captures.size() == 2 && if_node.captures.size() == 2 && inside.nodes[0].inputs[1] == kNone &&
        inside.nodes[0].get_int("k", 0) == 4);
  CHECK(inside.captures[0].outer == c->graph.inputs[0] || inside.captures[1].outer == c->graph.inputs[0]);
}

void test_refusals() {
  const auto with_function = [](const Message& f, const Names& in = {"x"}, const Names& out = {"y"}) {
    return try_read(model(graph({{"x"}, {out[0]}, {call("F", in, out)}}), {f}));
  };
  const Message relu = node("Relu", {"a"}, {"r"});
  EXPECT_FAILURE(with_function(function("F", {"a"}, {"r"}, {call("F", {"a"}, {"r"})})), unsupported,
                 "node 'call_r' (F): the function calls itself");
  EXPECT_FAILURE(with_function(function("F", {"a"}, {"r"}, {relu}), {"x", "x"}), invalid_model, "2 inputs, its function has 1");
  EXPECT_FAILURE(with_function(function("F", {"a"}, {"r"}, {relu}), {"x"}, {"y", "z"}), invalid_model, "2 outputs, its function has 1");
  EXPECT_FAILURE(with_function(function("F", {"a"}, {"r"}, {})), invalid_model, "nothing makes: 'y'");
  EXPECT_FAILURE(
      with_function(function("F", {"a"}, {"r"}, {node("Add", {"x", "lost"}, {"r"})})), invalid_model,
      "nothing makes: 'F_0/x' (read by node 'F_0/r' (Add)), 'F_0/lost' (read by node 'F_0/r' (Add))");  // bodies see nothing outside
  EXPECT_FAILURE(with_function(function("F", {"a"}, {"r"}, {node("Relu", {"a"}, {"a"}), relu})), invalid_model,
                 "makes 'a', an input of its function");
  EXPECT_FAILURE(with_function(function("F", {"a", "a"}, {"r"}, {relu})), invalid_model, "two inputs or two outputs");
  EXPECT_FAILURE(with_function(function("F", {"a", "b"}, {"b"}, {})), invalid_model, "returns its input 'b', which the call leaves out");
  EXPECT_FAILURE(try_read(model(graph({{"x"}, {"y"}, {call("F", {"x"}, {"y"})}}),
                                {function("F", {"a"}, {"r"}, {relu}), function("F", {"a"}, {"r"}, {relu})})),
                 invalid_model, "two functions are named 'F'");

  // Each function calls the next one twice: 2^40 nodes from a few hundred bytes.
  std::vector<Message> bomb;
  for (int i = 0; i < 40; ++i) {
    const std::string next = "F" + std::to_string(i + 1);
    bomb.push_back(function("F" + std::to_string(i), {"a"}, {"r"}, {call(next, {"a"}, {"t"}), call(next, {"t"}, {"r"})}));
  }
  bomb.push_back(function("F40", {"a"}, {"r"}, {relu}));
  EXPECT_FAILURE(try_read(model(graph({{"x"}, {"y"}, {call("F0", {"x"}, {"y"})}}), bomb)), unsupported, "node 'call_y' (F0)");
  std::vector<Message> chain;
  for (int i = 0; i < 1000; ++i)
    chain.push_back(function("F" + std::to_string(i), {"a"}, {"r"}, {call("F" + std::to_string(i + 1), {"a"}, {"r"})}));
  EXPECT_FAILURE(try_read(model(graph({{"x"}, {"y"}, {call("F0", {"x"}, {"y"})}}), chain)), unsupported, "nested deeper than 64");
}

}  // namespace

int main() {
  test_call();
  test_kernel_wins();
  test_nested();
  test_refusals();
  return 0;
}
