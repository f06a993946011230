// SPDX-License-Identifier: Apache-2.0
// Local functions: a call without a kernel is replaced by the function's body.
#include "model/onnx_reader.h"

namespace hotset::model {
namespace {

constexpr int kMaxCalls = 1 << 18;
constexpr uint64_t kMaxInlinedBytes = uint64_t{1} << 30;

std::string function_key(std::string_view domain, std::string_view name, std::string_view overload) {
  std::string key(domain);
  key += '\0';
  key += name;
  key += '\0';
  return key += overload;
}

}  // namespace

Status OnnxReader::read_function_names() {
  for (const Bytes message : function_messages_) {
    Function function;
    function.message = message;
    std::string_view overload;
    WireReader r(message);
    while (r.next()) {
      if (r.field() == 1) function.name = r.text();
      if (r.field() == 10) function.domain = r.text();
      if (r.field() == 13) overload = r.text();
    }
    HOTSET_FAIL_IF(!r.ok(), invalid_model, "function %s: malformed function message", quote(function.name).c_str());
    if (function.domain == "ai.onnx") function.domain = "";
    function.has_kernel = options_.has_kernel && options_.has_kernel(function.domain, function.name);
    std::string key = function_key(function.domain, function.name, overload);
    const std::string_view name = function.name;
    HOTSET_FAIL_IF(!functions_.emplace(std::move(key), std::move(function)).second, invalid_model, "two functions are named %s",
                   quote(name).c_str());
  }
  return {};
}

Status OnnxReader::find_function(const NodeFields& fields, Function** out) {
  if (functions_.empty()) return {};
  const auto it = functions_.find(function_key(fields.domain, fields.op_type, fields.overload));
  if (it != functions_.end()) *out = &it->second;
  return {};
}

Status OnnxReader::parse_function(Function& function) {
  if (function.parsed) return {};
  bool unique = true, valid = true;
  std::unordered_map<std::string_view, size_t> outputs;
  WireReader r(function.message);
  while (r.next()) {
    switch (r.field()) {
      case 4: {
        const std::string_view name = r.text();
        valid = valid && !name.empty() && valid_text(name);
        unique = function.inputs.emplace(name, function.inputs.size()).second && unique;
        break;
      }
      case 5: {
        const std::string_view name = r.text();
        valid = valid && !name.empty() && valid_text(name);
        unique = outputs.emplace(name, outputs.size()).second && unique;
        function.outputs.push_back(name);
        break;
      }
      case 7:
        function.nodes.push_back(r.bytes());
        break;
      case 9:
        HOTSET_TRY(read_opset(r.bytes(), &function.opsets));
        break;
      case 11:
        function.defaults.push_back(r.bytes());
        break;
      default:
        break;
    }
  }
  HOTSET_FAIL_IF(!r.ok(), invalid_model, "malformed function message");
  HOTSET_FAIL_IF(!valid, invalid_model, "an input or output of the function has no name");
  HOTSET_FAIL_IF(!unique, invalid_model, "two inputs or two outputs of the function have one name");
  function.parsed = true;
  return {};
}

Status OnnxReader::inline_call(Function& function, Node& node, const NodeFields& fields, const Scope& scope) {
  HOTSET_FAIL_IF(function.active, unsupported, "the function calls itself");
  HOTSET_FAIL_IF(scope.depth >= kMaxDepth, unsupported, "graphs and functions nested deeper than %d", kMaxDepth);
  HOTSET_FAIL_IF(n_calls_ >= kMaxCalls, unsupported, "more than %d calls of functions", kMaxCalls);
  HOTSET_TRY(parse_function(function));
  while (!node.inputs.empty() && node.inputs.back() == kNone) node.inputs.pop_back();
  HOTSET_FAIL_IF(node.inputs.size() > function.inputs.size(), invalid_model, "%zu inputs, its function has %zu", node.inputs.size(),
                 function.inputs.size());
  HOTSET_FAIL_IF(fields.outputs.size() > function.outputs.size(), invalid_model, "%zu outputs, its function has %zu", fields.outputs.size(),
                 function.outputs.size());

  std::unordered_map<std::string_view, ValueId> names;
  Call call{&function, n_calls_++, std::move(node.attributes)};
  const Scope inner{scope.building, nullptr, function.opsets, &call, &names, scope.depth + 1};
  const Scope no_graphs{scope.building, nullptr, function.opsets, &call, &names, kMaxDepth};
  for (const Bytes message : function.defaults) {
    std::string_view name;
    Attribute attribute;
    bool present = true;
    if (Status status = read_attribute(message, no_graphs, &name, &attribute, &present, nullptr); !status.ok()) {
      return std::move(status).at("default of attribute " + quote(name));
    }
    if (present) call.attributes.emplace(name, std::move(attribute));
  }
  HOTSET_TRY(charge(inner, 32 * (function.inputs.size() + function.outputs.size() + function.defaults.size())));
  for (const auto& [name, i] : function.inputs) names.emplace(name, i < node.inputs.size() ? node.inputs[i] : kNone);
  for (size_t i = 0; i < fields.outputs.size(); ++i) {
    if (fields.outputs[i].empty()) continue;
    const auto passed = function.inputs.find(function.outputs[i]);
    if (passed == function.inputs.end()) {
      ValueId id;
      HOTSET_TRY(define(scope, fields.outputs[i], node, &id));
      names.emplace(function.outputs[i], id);
      continue;
    }
    NodeFields identity;  // a function may return its input
    identity.outputs = {fields.outputs[i]};
    Node copy;
    copy.name = node.name;
    copy.op_type = "Identity";
    copy.inputs = {names[passed->first]};
    HOTSET_FAIL_IF(copy.inputs[0] == kNone, invalid_model, "the function returns its input %s, which the call leaves out",
                   quote(passed->first).c_str());
    HOTSET_TRY(add_node(std::move(copy), identity, scope));
  }
  function.active = true;
  for (const Bytes message : function.nodes) HOTSET_TRY(read_node(message, inner));
  function.active = false;
  return {};
}

Status OnnxReader::bound_attribute(std::string_view name, const Scope& scope, Attribute* out, bool* present) {
  HOTSET_FAIL_IF(!scope.call, invalid_model, "refers to attribute %s of a function, outside of one", quote(name).c_str());
  const auto it = scope.call->attributes.find(name);
  *present = it != scope.call->attributes.end();
  if (!*present) return {};
  HOTSET_FAIL_IF(std::holds_alternative<std::shared_ptr<Graph>>(it->second.value), unsupported, "a graph handed to a function");
  uint64_t bytes = 0;
  if (const auto* ints = std::get_if<std::vector<int64_t>>(&it->second.value)) bytes = ints->size() * 8;
  if (const auto* floats = std::get_if<std::vector<float>>(&it->second.value)) bytes = floats->size() * 4;
  if (const auto* text = std::get_if<std::string>(&it->second.value)) bytes = text->size();
  if (const auto* texts = std::get_if<std::vector<std::string>>(&it->second.value)) {
    for (const std::string& t : *texts) bytes += 32 + t.size();
  }
  HOTSET_TRY(charge(scope, bytes));
  *out = it->second;
  return {};
}

Status OnnxReader::charge(const Scope& scope, uint64_t bytes) {
  if (!scope.call) return {};
  inlined_bytes_ += bytes;
  HOTSET_FAIL_IF(inlined_bytes_ > kMaxInlinedBytes, unsupported, "the inlined functions need more than 1 GiB");
  return {};
}

// "Function_3/inner", made unique among all names of the graph.
void OnnxReader::name_inlined(Building& building) {
  Graph& graph = building.graph;
  const auto prefix = [](const Building::Unnamed& u) { return std::string(u.function->name) + "_" + std::to_string(u.call) + "/"; };
  int n_taken = 0;
  for (const Building::Unnamed& unnamed : building.values) {
    const std::string name = prefix(unnamed) + std::string(unnamed.name);
    std::string unique = name;
    while (!graph.ids.emplace(unique, unnamed.id).second) unique = name + "_" + std::to_string(n_taken++);
    graph.values[static_cast<size_t>(unnamed.id)].name = std::move(unique);
  }
  for (const Building::Unnamed& unnamed : building.nodes) {
    Node& node = graph.nodes[static_cast<size_t>(unnamed.id)];
    node.name = prefix(unnamed) + node.name;
  }
}

}  // namespace hotset::model
