// SPDX-License-Identifier: Apache-2.0
// Reads nodes and their attributes.
#include <algorithm>

#include "model/onnx_reader.h"

namespace hotset::model {
namespace {

// AttributeProto.AttributeType; field numbers of the values are beside them.
enum AttributeType : int64_t {
  kUndefined = 0,
  kFloat = 1,    // 2
  kInt = 2,      // 3
  kString = 3,   // 4
  kTensor = 4,   // 5
  kGraph = 5,    // 6
  kFloats = 6,   // 7
  kInts = 7,     // 8
  kStrings = 8,  // 9
};

// Files older than IR version 2 have no type: the field in use tells it.
int64_t type_of_field(uint32_t field) { return field >= 2 && field <= 9 ? static_cast<int64_t>(field) - 1 : int64_t{kUndefined}; }

template <class T>
Constant vector_constant(TensorReader& tensors, DType dtype, const std::vector<T>& values) {
  Constant constant;
  uint8_t* data = tensors.own(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(data, values.data(), values.size() * sizeof(T));
  constant.tensor = {data, dtype, Shape{static_cast<int64_t>(values.size())}};
  return constant;
}

template <class T>
Constant scalar_constant(TensorReader& tensors, DType dtype, T value) {
  Constant constant = vector_constant(tensors, dtype, std::vector<T>{value});
  constant.tensor.shape = Shape{};
  return constant;
}

}  // namespace

Status OnnxReader::read_node_fields(Bytes message, NodeFields* out) {
  WireReader r(message);
  while (r.next()) {
    switch (r.field()) {
      case 1:
        out->inputs.push_back(r.text());
        break;
      case 2:
        out->outputs.push_back(r.text());
        break;
      case 3:
        out->name = r.text();
        break;
      case 4:
        out->op_type = r.text();
        break;
      case 5:
        out->attributes.push_back(r.bytes());
        break;
      case 7:
        out->domain = r.text();
        break;
      case 8:
        out->overload = r.text();
        break;
      default:
        break;
    }
  }
  HOTSET_FAIL_IF(!r.ok(), invalid_model, "node %s: malformed node message", quote(out->name).c_str());
  if (out->domain == "ai.onnx") out->domain = "";
  bool valid = valid_text(out->name) && valid_text(out->op_type) && valid_text(out->domain);
  for (const std::string_view name : out->inputs) valid = valid && valid_text(name);
  for (const std::string_view name : out->outputs) {
    valid = valid && valid_text(name);
    if (out->name.empty()) out->name = name;
  }
  HOTSET_FAIL_IF(!valid, invalid_model, "node %s: a name in it is not UTF-8 text", quote(out->name).c_str());
  HOTSET_FAIL_IF(out->op_type.empty(), invalid_model, "node %s has no operator type", quote(out->name).c_str());
  return {};
}

Status OnnxReader::read_node(Bytes message, const Scope& scope) {
  NodeFields fields;
  HOTSET_TRY(read_node_fields(message, &fields));
  HOTSET_TRY(charge(scope, 256 + 16 * (fields.inputs.size() + fields.outputs.size())));
  Node node;
  node.name.assign(fields.name);
  node.op_type.assign(fields.op_type);
  node.domain.assign(fields.domain);
  node.inputs.reserve(fields.inputs.size());
  for (const std::string_view input : fields.inputs) node.inputs.push_back(refer(scope, input));
  for (const Bytes attribute_message : fields.attributes) {
    std::string_view name;
    Attribute attribute;
    bool present = true;
    if (Status status = read_attribute(attribute_message, scope, &name, &attribute, &present, &node.captures); !status.ok()) {
      return std::move(status).at(node.text() + ": attribute " + quote(name));
    }
    if (!present) continue;
    HOTSET_FAIL_IF(name.empty() || !valid_text(name), invalid_model, "%s: an attribute is named %s", node.text().c_str(),
                   quote(name).c_str());
    HOTSET_FAIL_IF(!node.attributes.emplace(name, std::move(attribute)).second, invalid_model, "%s: attribute %s twice",
                   node.text().c_str(), quote(name).c_str());
  }
  if (node.captures.size() > 1) {
    std::sort(node.captures.begin(), node.captures.end());
    node.captures.erase(std::unique(node.captures.begin(), node.captures.end()), node.captures.end());
  }
  if (fields.domain.empty() && fields.op_type == "Constant") {
    if (Status status = make_constant(node, fields, scope); !status.ok()) return std::move(status).at(node.text());
    return {};
  }
  Function* function = nullptr;
  HOTSET_TRY(find_function(fields, &function));
  if (function && !function->has_kernel) {
    if (Status status = inline_call(*function, node, fields, scope); !status.ok()) return std::move(status).at(node.text());
    return {};
  }
  return add_node(std::move(node), fields, scope);
}

Status OnnxReader::add_node(Node node, const NodeFields& fields, const Scope& scope) {
  const auto known = [&](const Opsets& opsets) {
    const auto it = opsets.find(fields.domain);
    if (it != opsets.end()) node.opset = static_cast<int>(it->second);
    return it != opsets.end();
  };
  // A function may leave out what its model imports.
  HOTSET_FAIL_IF(!known(scope.opsets) && !known(opsets_) && fields.domain.empty(), invalid_model,
                 "%s: the model imports no opset of ai.onnx", node.text().c_str());
  node.outputs.reserve(fields.outputs.size());
  for (const std::string_view output : fields.outputs) {
    ValueId id;
    HOTSET_TRY(define(scope, output, node, &id));
    node.outputs.push_back(id);
    if (id != kNone)
      scope.building.graph.values[static_cast<size_t>(id)].producer = static_cast<int32_t>(scope.building.graph.nodes.size());
  }
  if (scope.names) {
    scope.building.nodes.push_back({static_cast<int32_t>(scope.building.graph.nodes.size()), scope.call->function, scope.call->number, {}});
  }
  scope.building.graph.nodes.push_back(std::move(node));
  return {};
}

Status OnnxReader::define(const Scope& scope, std::string_view name, const Node& node, ValueId* out) {
  const Graph& graph = scope.building.graph;
  *out = kNone;
  HOTSET_FAIL_IF(scope.names && scope.call->function->inputs.contains(name), invalid_model, "%s makes %s, an input of its function",
                 node.text().c_str(), quote(name).c_str());
  *out = find_or_add(scope, name);
  if (*out == kNone) return {};
  const Value& value = graph.values[static_cast<size_t>(*out)];
  const char* other = value.is_input ? "a graph input" : value.constant >= 0 ? "a constant" : nullptr;
  HOTSET_FAIL_IF(other, invalid_model, "%s makes %s, which is %s already", node.text().c_str(), quote(name).c_str(), other);
  if (value.producer >= 0) {
    const bool same = static_cast<size_t>(value.producer) == graph.nodes.size();
    return fail(Code::invalid_model, "%s makes %s, which %s makes already", node.text().c_str(), quote(name).c_str(),
                same ? "itself" : graph.nodes[static_cast<size_t>(value.producer)].text().c_str());
  }
  return {};
}

Status OnnxReader::make_constant(const Node& node, const NodeFields& fields, const Scope& scope) {
  HOTSET_FAIL_IF(fields.outputs.size() != 1 || node.attributes.size() != 1, invalid_model,
                 "%zu attributes and %zu outputs, expected one of each", node.attributes.size(), fields.outputs.size());
  const auto& [name, attribute] = *node.attributes.begin();
  Constant constant;
  if (name == "value" && node.get_tensor(name)) {
    constant = *node.get_tensor(name);
  } else if (const auto* i = std::get_if<int64_t>(&attribute.value); i && name == "value_int") {
    constant = scalar_constant(tensors_, DType::i64, *i);
  } else if (const auto* f = std::get_if<float>(&attribute.value); f && name == "value_float") {
    constant = scalar_constant(tensors_, DType::f32, *f);
  } else if (const auto* ints = node.get_ints(name); ints && name == "value_ints") {
    constant = vector_constant(tensors_, DType::i64, *ints);
  } else if (const auto* floats = node.get_floats(name); floats && name == "value_floats") {
    constant = vector_constant(tensors_, DType::f32, *floats);
  } else if (name == "value_string" || name == "value_strings") {
    constant.tensor.dtype = DType::string;  // an error only if something reads it
  } else {
    return fail(Code::unsupported, "attribute %s, supported: value, value_int(s), value_float(s)", quote(name).c_str());
  }
  ValueId id;
  HOTSET_TRY(define(scope, fields.outputs[0], node, &id));
  if (id != kNone) set_constant(scope.building.graph, id, std::move(constant));
  return {};
}

Status OnnxReader::read_attribute(Bytes message, const Scope& scope, std::string_view* name, Attribute* out, bool* present,
                                  std::vector<ValueId>* captures) {
  int64_t type = kUndefined, guessed = kUndefined, i = 0;
  float f = 0;
  std::string_view s, reference;
  Bytes tensor, graph;
  bool has_tensor = false, has_graph = false;
  std::vector<float> floats;
  std::vector<int64_t> ints;
  std::vector<std::string> strings;
  WireReader r(message);
  while (r.next()) {
    if (const int64_t t = type_of_field(r.field())) guessed = t;
    switch (r.field()) {
      case 1:
        *name = r.text();
        break;
      case 2:
        f = r.f32();
        break;
      case 3:
        i = r.integer();
        break;
      case 4:
        s = r.text();
        break;
      case 5:
        tensor = r.bytes(), has_tensor = true;
        break;
      case 6:
        graph = r.bytes(), has_graph = true;
        break;
      case 7:
        r.each_fixed<float>([&](float v) { floats.push_back(v); });
        break;
      case 8:
        r.each_integer([&](int64_t v) { ints.push_back(v); });
        break;
      case 9:
        strings.emplace_back(r.text());
        break;
      case 20:
        type = r.integer();
        break;
      case 21:
        reference = r.text();
        break;
      default:
        break;
    }
  }
  HOTSET_FAIL_IF(!r.ok(), invalid_model, "malformed attribute message");
  HOTSET_TRY(charge(scope, s.size() + 8 * (floats.size() + ints.size()) + 32 * strings.size()));
  if (!reference.empty()) return bound_attribute(reference, scope, out, present);
  switch (type == kUndefined ? guessed : type) {
    case kFloat:
      out->value = f;
      break;
    case kInt:
      out->value = i;
      break;
    case kString:
      out->value = std::string(s);
      break;
    case kFloats:
      out->value = std::move(floats);
      break;
    case kInts:
      out->value = std::move(ints);
      break;
    case kStrings:
      out->value = std::move(strings);
      break;
    case kTensor: {
      HOTSET_FAIL_IF(!has_tensor, invalid_model, "no tensor in it");
      std::string_view tensor_name;
      Constant constant;
      HOTSET_TRY(read_tensor(tensor, scope, &tensor_name, &constant));
      out->value = std::move(constant);
      break;
    }
    case kGraph: {
      HOTSET_FAIL_IF(!has_graph, invalid_model, "no graph in it");
      std::shared_ptr<Graph> subgraph;
      HOTSET_TRY(read_subgraph(graph, scope, &subgraph, captures));
      out->value = std::move(subgraph);
      break;
    }
    default:
      break;
  }
  return {};
}

Status OnnxReader::read_subgraph(Bytes message, const Scope& scope, std::shared_ptr<Graph>* out, std::vector<ValueId>* captures) {
  HOTSET_FAIL_IF(scope.depth >= kMaxDepth, unsupported, "graphs and functions nested deeper than %d", kMaxDepth);
  *out = std::make_shared<Graph>();
  Building building{**out, {}, {}};
  HOTSET_TRY(read_graph(message, Scope{building, &scope, scope.opsets, scope.call, nullptr, scope.depth + 1}));
  for (const Capture& capture : (*out)->captures) captures->push_back(capture.outer);
  return {};
}

}  // namespace hotset::model
