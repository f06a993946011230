// SPDX-License-Identifier: Apache-2.0
// The reader on small hand-made models: structure, order, subgraphs, constants, and what it says about broken files.
#include "proto.h"

using namespace hotset::model;
using namespace proto;
using hotset::DType;

namespace {

std::string value_name(const Graph& g, ValueId id) { return id == kNone ? "" : g.values[static_cast<size_t>(id)].name; }
std::string ops(const Graph& g) {
  std::string text;
  for (const Node& n : g.nodes) text += (text.empty() ? "" : " ") + n.op_type;
  return text;
}
Message one_node(const Message& n) { return model(graph({{"x"}, {"y"}, {n}})); }

void test_wire() {
  const Message good = model(graph({{"x"}, {"y"}, {node("Relu", {"x"}, {"y"})}}));
  read(good);
  for (size_t n = 0; n < good.bytes.size(); ++n) {  // a cut file is never read as a whole one
    Message cut;
    cut.bytes = good.bytes.substr(0, n);
    auto result = try_read(cut);
    CHECK(!result.ok() || n > good.bytes.size() - 20);  // but for the opset of an unused domain at the end
  }
  EXPECT_FAILURE(try_read({}), invalid_model, "not an ONNX model: no graph in it");
  EXPECT_FAILURE(try_read({"not an onnx file"}), invalid_model, "not an ONNX model: malformed at byte");
  EXPECT_FAILURE(try_read(Message().tag(1, 3)), invalid_model, "malformed");                                     // a group
  EXPECT_FAILURE(try_read(Message().tag(1, 7)), invalid_model, "malformed");                                     // no such type
  EXPECT_FAILURE(try_read(Message().tag(0, 0).varint(1)), invalid_model, "malformed");                           // no field 0
  EXPECT_FAILURE(try_read(Message().add(1, "text")), invalid_model, "malformed");                                // ir_version as text
  EXPECT_FAILURE(try_read(Message().tag(7, 2).varint(~0ull)), invalid_model, "malformed");                       // longer than the file
  EXPECT_FAILURE(try_read(Message{std::string("\x08") + std::string(10, '\xff')}), invalid_model, "malformed");  // endless varint
  EXPECT_FAILURE(try_read(Message(good).add(7, graph({}))), invalid_model, "two graphs");
  EXPECT_FAILURE(try_read(one_node(Message().add(2, "y"))), invalid_model, "node 'y' has no operator type");
  EXPECT_FAILURE(try_read(one_node(node("R\xff", {"x"}, {"y"}))), invalid_model, "node 'y': a name in it is not UTF-8 text");
  EXPECT_FAILURE(try_read(one_node(node("R\n", {"x"}, {"z"}))), invalid_model, "nothing makes: 'y' (a graph output)");
  read(Message(good).number(1000, 5).fixed(1001, 1.0f).fixed(1002, 1.0).add(1003, "unknown fields are skipped"));
}

void test_opsets() {
  const Message g = graph({{"x"}, {"y"}, {node("Relu", {"x"}, {"y"}, "ai.onnx"), node("Odd", {"y"}, {"z"}, "com.microsoft")}});
  const auto m = read(model(g, {}, 28));
  CHECK(m->graph.nodes[0].opset == 28 && m->graph.nodes[0].domain.empty() && m->graph.nodes[1].opset == 1);
  CHECK(m->graph.nodes[0].name == "y" && m->graph.nodes[0].text() == "node 'y' (Relu)");
  EXPECT_FAILURE(try_read(model(g, {}, 29)), unsupported, "opset 29 of ai.onnx, supported: up to 28");
  EXPECT_FAILURE(try_read(model(g, {}, 0)), invalid_model, "opset 0 of domain 'ai.onnx'");
  EXPECT_FAILURE(try_read(Message().add(7, g)), invalid_model, "node 'y' (Relu): the model imports no opset of ai.onnx");
  EXPECT_FAILURE(try_read(Message(model(g)).add(8, opset("ai.onnx", 20))), invalid_model, "opsets 21 and 20 of domain 'ai.onnx'");
}

void test_values() {
  const Message relu = node("Relu", {"x"}, {"y"});
  EXPECT_FAILURE(try_read(model(graph({{"x"}, {"y"}, {relu, node("Exp", {"x"}, {"y"})}}))), invalid_model,
                 "node 'y' (Exp) makes 'y', which node 'y' (Relu) makes already");
  EXPECT_FAILURE(try_read(one_node(node("Split", {"x"}, {"y", "y"}))), invalid_model, "makes 'y', which itself makes already");
  EXPECT_FAILURE(try_read(one_node(node("Relu", {"x"}, {"x"}))), invalid_model, "makes 'x', which is a graph input already");
  EXPECT_FAILURE(try_read(model(graph({{"x"}, {"y"}, {relu}, {floats("y", {1})}}))), invalid_model,
                 "makes 'y', which is a constant already");
  EXPECT_FAILURE(try_read(model(graph({{"x", "x"}, {"y"}, {relu}}))), invalid_model, "two graph inputs are named 'x'");
  EXPECT_FAILURE(try_read(model(graph({{"x"}, {"y", "y"}, {relu}}))), invalid_model, "two graph outputs are named 'y'");
  EXPECT_FAILURE(try_read(model(graph({{"x"}, {"y"}, {relu}, {floats("w", {1}), floats("w", {1})}}))), invalid_model,
                 "two initializers are named 'w'");
  EXPECT_FAILURE(try_read(model(graph({{"x"}, {"y"}, {relu}, {floats("", {1})}}))), invalid_model, "an initializer has no name");
  EXPECT_FAILURE(try_read(model(graph({{}, {"y"}, {node("Sum", {"a", "b", "a"}, {"t"}, "", "first"), node("Add", {"t", "c"}, {"y"})}}))),
                 invalid_model,
                 "nothing makes: 'a' (read by node 'first' (Sum)), 'b' (read by node 'first' (Sum)), 'c' (read by node 'y' (Add))");

  // Inputs with an initializer are constants; absent inputs are kNone; names made of digits are sizes.
  Message g = graph({{"w"}, {"y"}, {node("Clip", {"x", "", "w", ""}, {"y", ""})}, {floats("w", {3})}});
  const auto dim = [](std::string_view name) { return Message().add(2, name); };
  const Message shape = Message().add(1, dim("batch")).add(1, dim("16")).add(1, Message().number(1, 4)).add(1, dim("-1")).add(1, Message());
  g.add(11, Message().add(1, "x").add(2, Message().add(1, Message().number(1, 10).add(2, shape))));
  const auto m = read(model(g));
  CHECK(m->graph.inputs.size() == 1);
  const Value& x = m->graph.values[static_cast<size_t>(m->graph.inputs[0])];
  CHECK(x.name == "x" && x.dtype == DType::f16 && x.is_input && x.has_shape && x.shape.size() == 5);
  CHECK(x.shape[0].name == "batch" && x.shape[0].value == -1 && x.shape[1].value == 16 && x.shape[1].name.empty() && x.shape[2].value == 4);
  CHECK(x.shape[3].name == "-1" && x.shape[3].value == -1 && x.shape[4].name.empty() && x.shape[4].value == -1);
  const Node& clip = m->graph.nodes[0];
  CHECK(clip.inputs.size() == 4 && clip.inputs[1] == kNone && clip.inputs[3] == kNone && clip.outputs[1] == kNone);
  const Constant* w = m->graph.constant(clip.inputs[2]);
  CHECK(w && w->tensor.shape.rank == 1 && w->tensor.as<uint8_t>()[3] == 0x40 &&
        m->graph.values[static_cast<size_t>(clip.inputs[2])].dtype == DType::f32);

  Message sequence = graph({{"x"}, {"y"}, {relu}});
  sequence.add(11, Message().add(1, "s").add(2, Message().add(4, Message())));
  EXPECT_FAILURE(try_read(model(sequence)), unsupported, "input 's' is a sequence; only tensors are supported");
  EXPECT_FAILURE(try_read(model(graph({{"x"}, {"y"}, {relu}}).add(15, Message()))), unsupported, "sparse initializers");
}

void test_order() {
  const auto unary = [](const char* op, const char* in, const char* out) { return node(op, {in}, {out}); };
  const auto m = read(model(graph(
      {{"x"}, {"y"}, {unary("D", "c", "y"), unary("A", "x", "a"), unary("C", "b", "c"), unary("Z", "x", "z"), unary("B", "a", "b")}})));
  CHECK(ops(m->graph) == "A Z B C D");
  for (size_t i = 0; i < m->graph.nodes.size(); ++i) {
    CHECK(m->graph.values[static_cast<size_t>(m->graph.nodes[i].outputs[0])].producer == static_cast<int>(i));
  }
  EXPECT_FAILURE(try_read(model(graph(
                     {{"x"}, {"y"}, {node("A", {"x", "c"}, {"a"}), unary("B", "a", "b"), unary("C", "b", "c"), unary("D", "c", "y")}}))),
                 invalid_model, "a cycle: node 'a' (A) reads from node 'c' (C) reads from node 'b' (B) reads from node 'a' (A)");
  EXPECT_FAILURE(try_read(model(graph({{"x"}, {"y"}, {node("A", {"y"}, {"y"})}}))), invalid_model,
                 "a cycle: node 'y' (A) reads from node 'y' (A)");
  // A subgraph's reading counts.
  const Message branch = graph({{}, {"r"}, {unary("Exp", "late", "r")}});
  const auto captured =
      read(model(graph({{"x"}, {"y"}, {with(node("If", {"x"}, {"y"}), {attribute("then_branch", branch)}), unary("A", "x", "late")}})));
  CHECK(ops(captured->graph) == "A If");
  const Message own = graph({{}, {"r"}, {unary("Exp", "y", "r")}});
  EXPECT_FAILURE(try_read(one_node(with(node("If", {"x"}, {"y"}), {attribute("then_branch", own)}))), invalid_model,
                 "a cycle: node 'y' (If)");
}

void test_subgraphs() {
  const Message inner = graph({{}, {"deep"}, {node("Sum", {"x", "w", "mid", "own"}, {"deep"})}});
  const Message middle =
      graph({{"own"}, {"m"}, {node("Abs", {"own"}, {"mid"}), with(node("If", {"own"}, {"m"}), {attribute("then_branch", inner)})}});
  const auto m = read(model(graph({{"x"}, {"y"}, {with(node("Loop", {"x"}, {"y"}), {attribute("body", middle)})}, {floats("w", {7})}})));
  const Node& loop = m->graph.nodes[0];
  const Graph& body = *loop.get_graph("body");
  CHECK(loop.captures.size() == 1 && value_name(m->graph, loop.captures[0]) == "x");  // not w, a constant
  CHECK(body.captures.size() == 1 && value_name(body, body.captures[0].inner) == "x" && body.captures[0].outer == loop.captures[0]);
  const Node& branch_node = body.nodes[1];
  const Graph& branch = *branch_node.get_graph("then_branch");
  CHECK(branch_node.captures.size() == 3 && branch.captures.size() == 3);
  for (const Capture& c : branch.captures) CHECK(value_name(branch, c.inner) == value_name(body, c.outer));
  const Constant* w = branch.constant(branch.nodes[0].inputs[1]);
  CHECK(w && w->tensor.data == m->graph.constants[0].tensor.data);
  CHECK(branch.values[static_cast<size_t>(branch.nodes[0].inputs[0])].dtype == DType::f32);

  const Message unknown = graph({{}, {"r"}, {node("Exp", {"nowhere"}, {"r"})}});
  EXPECT_FAILURE(try_read(one_node(with(node("If", {"x"}, {"y"}), {attribute("then_branch", unknown)}))), invalid_model,
                 "nothing makes: 'nowhere' (read inside node 'y' (If))");
  Message nested = node("If", {"x"}, {"y"});
  for (int i = 0; i < 500; ++i) nested = with(node("If", {"x"}, {"y"}), {attribute("then_branch", graph({{}, {"y"}, {nested}}))});
  EXPECT_FAILURE(try_read(one_node(nested)), unsupported, "nested deeper than 64");
}

void test_attributes() {
  Message n = node("Op", {"x"}, {"y"});
  n.add(5, attribute("int", -3));
  n.add(5, Message().add(1, "float").fixed(2, 0.5f));  // no type: the field tells it
  n.add(5, Message().add(1, "text").add(4, "linear").number(20, 3));
  n.add(5, Message().add(1, "ints").number(8, 1).add(8, Message().varint(2).varint(300)).number(20, 7));
  n.add(5, Message().add(1, "floats").fixed(7, 1.0f).add(7, Message().raw(2.0f)).number(20, 6));
  n.add(5, Message().add(1, "none").number(20, 7));
  n.add(5, Message().add(1, "texts").add(9, "a").add(9, "b").number(20, 8));
  n.add(5, tensor_attribute("tensor", floats("", {9})));
  n.add(5, Message().add(1, "exotic").add(10, floats("", {9})).number(20, 9));
  const auto m = read(one_node(n));
  const Node& node_read = m->graph.nodes[0];
  CHECK(node_read.get_int("int", 0) == -3 && node_read.get_float("float", 0) == 0.5f && node_read.get_string("text", "") == "linear");
  CHECK(*node_read.get_ints("ints") == (std::vector<int64_t>{1, 2, 300}) && *node_read.get_floats("floats") == (std::vector<float>{1, 2}));
  CHECK(node_read.get_ints("none")->empty() && node_read.get_tensor("tensor")->tensor.size() == 1);
  CHECK(std::get<std::vector<std::string>>(node_read.find("texts")->value)[1] == "b");
  CHECK(node_read.find("exotic")->value.index() == 0 && !node_read.find("absent"));
  CHECK(node_read.get_int("text", 5) == 5 && node_read.get_float("absent", 2.5f) == 2.5f && !node_read.get_graph("tensor"));
  EXPECT_FAILURE(try_read(one_node(with(node("Op", {"x"}, {"y"}), {attribute("a", 1), attribute("a", 2)}))), invalid_model,
                 "node 'y' (Op): attribute 'a' twice");
  EXPECT_FAILURE(try_read(one_node(with(node("Op", {"x"}, {"y"}), {reference("a", "b", 2)}))), invalid_model,
                 "node 'y' (Op): attribute 'a': refers to attribute 'b' of a function, outside of one");
  EXPECT_FAILURE(try_read(one_node(with(node("Op", {"x"}, {"y"}), {Message().add(1, "t").number(20, 4)}))), invalid_model,
                 "no tensor in it");
}

void test_constants() {
  const auto constant = [](std::string_view out, const Message& a) { return with(node("Constant", {}, {std::string(out)}), {a}); };
  const Message packed = Message().add(1, "value_floats").add(7, Message().raw(1.5f).raw(2.5f)).number(20, 6);
  const auto m = read(model(graph(
      {{"x"},
       {"y"},
       {constant("i", attribute("value_int", 7)), constant("is", Message().add(1, "value_ints").number(8, 4).number(20, 7)),
        constant("f", Message().add(1, "value_float").fixed(2, 0.25f).number(20, 1)), constant("fs", packed),
        constant("t", tensor_attribute("value", floats("", {8, 9}))),
        constant("s", Message().add(1, "value_string").add(4, "q").number(20, 3)), node("Op", {"i", "is", "f", "fs", "t", "x"}, {"y"})}})));
  CHECK(ops(m->graph) == "Op" && m->graph.nodes[0].outputs.size() == 1);
  const auto at = [&](int i) { return m->graph.constant(m->graph.nodes[0].inputs[static_cast<size_t>(i)])->tensor; };
  CHECK(at(0).dtype == DType::i64 && at(0).shape.rank == 0 && *at(0).as<int64_t>() == 7);
  CHECK(at(1).dtype == DType::i64 && at(1).shape == hotset::Shape{1} && *at(1).as<int64_t>() == 4);
  CHECK(at(2).dtype == DType::f32 && at(2).shape.rank == 0 && *at(2).as<float>() == 0.25f);
  CHECK(at(3).shape == hotset::Shape{2} && at(3).as<float>()[1] == 2.5f && at(4).shape == hotset::Shape{2});
  EXPECT_FAILURE(try_read(one_node(constant("y", Message().add(1, "sparse_value").number(20, 11)))), unsupported,
                 "node 'y' (Constant): attribute 'sparse_value', supported: value");
  EXPECT_FAILURE(try_read(one_node(node("Constant", {}, {"y"}))), invalid_model, "0 attributes and 1 outputs");
  EXPECT_FAILURE(
      try_read(model(
          graph({{"x"}, {"y"}, {constant("s", Message().add(1, "value_string").add(4, "q").number(20, 3)), node("Op", {"s"}, {"y"})}}))),
      unsupported, "tensor 's', read by node 'y' (Op), has string elements");
  const Message strings = tensor("s", 8, {2}).add(6, "a").add(6, "b");
  read(model(graph({{"x"}, {"y"}, {node("Relu", {"x"}, {"y"})}, {strings}})));
  EXPECT_FAILURE(try_read(model(graph({{"x"}, {"s"}, {node("Relu", {"x"}, {"y"})}, {strings}}))), unsupported,
                 "tensor 's', read by the caller");
  EXPECT_FAILURE(try_read(model(graph({{"x"}, {"y"}, {node("Relu", {"s"}, {"y"})}, {strings}}))), unsupported,
                 "tensor 's', read by node 'y' (Relu)");
}

}  // namespace

int main() {
  test_wire();
  test_opsets();
  test_values();
  test_order();
  test_subgraphs();
  test_attributes();
  test_constants();
  return 0;
}
