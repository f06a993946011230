// SPDX-License-Identifier: Apache-2.0
// Reads the model message and its graphs; nodes are in onnx_node.cpp, local functions in functions.cpp.
#include "model/onnx_reader.h"

#include <algorithm>
#include <cinttypes>
#include <climits>
#include <cstring>

#include "model/value_info.h"

namespace hotset::model {
namespace {

Status read_property(Bytes message, std::vector<std::pair<std::string, std::string>>* out) {
  WireReader r(message);
  auto& [key, value] = out->emplace_back();
  while (r.next()) {
    if (r.field() == 1) HOTSET_TRY(copy_text(r.text(), "metadata", &key));
    if (r.field() == 2) HOTSET_TRY(copy_text(r.text(), "metadata", &value));
  }
  return r.ok() ? Status() : malformed("metadata");
}

}  // namespace

Status OnnxReader::read() {
  Metadata& meta = model_.metadata;
  Bytes graph;
  bool has_graph = false;
  WireReader r(bytes_);
  while (r.next()) {
    switch (r.field()) {
      case 1:
        meta.ir_version = r.integer();
        break;
      case 2:
        HOTSET_TRY(copy_text(r.text(), "producer name", &meta.producer_name));
        break;
      case 3:
        HOTSET_TRY(copy_text(r.text(), "producer version", &meta.producer_version));
        break;
      case 4:
        HOTSET_TRY(copy_text(r.text(), "model domain", &meta.domain));
        break;
      case 5:
        meta.model_version = r.integer();
        break;
      case 6:
        HOTSET_TRY(copy_text(r.text(), "doc string", &meta.doc_string));
        break;
      case 7:
        HOTSET_FAIL_IF(has_graph, invalid_model, "not an ONNX model: two graphs");
        graph = r.bytes();
        has_graph = true;
        break;
      case 8:
        HOTSET_TRY(read_opset(r.bytes(), &opsets_));
        break;
      case 14:
        HOTSET_TRY(read_property(r.bytes(), &meta.properties));
        break;
      case 25:
        function_messages_.push_back(r.bytes());
        break;
      default:
        break;
    }
  }
  HOTSET_FAIL_IF(!r.ok(), invalid_model, "not an ONNX model: malformed at byte %zu", static_cast<size_t>(r.position() - bytes_.data()));
  HOTSET_FAIL_IF(!has_graph, invalid_model, "not an ONNX model: no graph in it");
  for (const auto& [domain, version] : opsets_) meta.opsets.emplace_back(domain, version);
  std::sort(meta.opsets.begin(), meta.opsets.end());
  HOTSET_TRY(read_function_names());

  Building building{model_.graph, {}, {}};
  HOTSET_TRY(read_graph(graph, Scope{building, nullptr, opsets_}));
  return settle_constants(model_.graph);
}

Status OnnxReader::read_opset(Bytes message, Opsets* out) {
  std::string_view domain;
  int64_t version = 0;
  WireReader r(message);
  while (r.next()) {
    if (r.field() == 1) domain = r.text();
    if (r.field() == 2) version = r.integer();
  }
  if (!r.ok()) return malformed("opset");
  HOTSET_FAIL_IF(!valid_text(domain), invalid_model, "opset domain %s is not UTF-8 text", quote(domain).c_str());
  if (domain == "ai.onnx") domain = "";
  const std::string shown(domain.empty() ? "ai.onnx" : domain);
  HOTSET_FAIL_IF(version < 1 || version > INT_MAX, invalid_model, "opset %" PRId64 " of domain %s", version, quote(shown).c_str());
  HOTSET_FAIL_IF(domain.empty() && version > kMaxOpset, unsupported, "opset %" PRId64 " of ai.onnx, supported: up to %d", version,
                 kMaxOpset);
  const auto [it, added] = out->emplace(domain, version);
  HOTSET_FAIL_IF(!added && it->second != version, invalid_model, "opsets %" PRId64 " and %" PRId64 " of domain %s are both imported",
                 it->second, version, quote(shown).c_str());
  return {};
}

// Nodes come first in a serialised graph and refer to what follows: the other fields are read before them.
Status OnnxReader::read_graph(Bytes message, const Scope& scope) {
  Graph& graph = scope.building.graph;
  const bool is_main = !scope.outer && !scope.call;
  std::vector<Bytes> nodes, initializers, inputs, outputs, value_infos;
  WireReader r(message);
  while (r.next()) {
    switch (r.field()) {
      case 1:
        nodes.push_back(r.bytes());
        break;
      case 2:
        HOTSET_TRY(copy_text(r.text(), "graph name", &graph.name));
        break;
      case 5:
        initializers.push_back(r.bytes());
        break;
      case 10:
        if (is_main) HOTSET_TRY(copy_text(r.text(), "doc string", &model_.metadata.graph_doc_string));
        break;
      case 11:
        inputs.push_back(r.bytes());
        break;
      case 12:
        outputs.push_back(r.bytes());
        break;
      case 13:
        value_infos.push_back(r.bytes());
        break;
      case 15:
        return fail(Code::unsupported, "sparse initializers are not supported");
      default:
        break;
    }
  }
  if (!r.ok()) return malformed("graph");
  HOTSET_TRY(charge(scope, 256 * (initializers.size() + inputs.size() + outputs.size() + value_infos.size())));

  const size_t n_values = initializers.size() + inputs.size() + outputs.size() + nodes.size();
  graph.values.reserve(n_values);
  graph.ids.reserve(n_values);
  graph.constants.reserve(initializers.size());
  graph.nodes.reserve(nodes.size());
  for (const Bytes m : initializers) HOTSET_TRY(read_initializer(m, scope));
  for (const Bytes m : inputs) HOTSET_TRY(read_input(m, scope));
  for (const Bytes m : outputs) HOTSET_TRY(read_output(m, scope));
  if (is_main) {
    std::vector<ValueId> ids = graph.outputs;
    std::sort(ids.begin(), ids.end());
    const auto twice = std::adjacent_find(ids.begin(), ids.end());
    HOTSET_FAIL_IF(twice != ids.end(), invalid_model, "two graph outputs are named %s",
                   quote(graph.values[static_cast<size_t>(*twice)].name).c_str());
  }
  for (const Bytes m : nodes) HOTSET_TRY(read_node(m, scope));
  for (const Bytes m : value_infos) HOTSET_TRY(read_value_info(m, scope));
  return finish_graph(scope);
}

Status OnnxReader::read_tensor(Bytes message, const Scope& scope, std::string_view* name, Constant* out) {
  const uint64_t before = tensors_.owned_bytes();
  HOTSET_TRY(tensors_.read(message, name, out));
  return charge(scope, tensors_.owned_bytes() - before);
}

Status OnnxReader::read_initializer(Bytes message, const Scope& scope) {
  Graph& graph = scope.building.graph;
  Constant constant;
  std::string_view name;
  if (Status status = read_tensor(message, scope, &name, &constant); !status.ok()) {
    return std::move(status).at("tensor " + quote(name));
  }
  HOTSET_FAIL_IF(name.empty(), invalid_model, "an initializer has no name");
  HOTSET_FAIL_IF(!valid_text(name), invalid_model, "tensor name %s is not UTF-8 text", quote(name).c_str());
  HOTSET_FAIL_IF(graph.ids.contains(name), invalid_model, "two initializers are named %s", quote(name).c_str());
  set_constant(graph, new_value(scope, name), std::move(constant));
  return {};
}

Status OnnxReader::read_input(Bytes message, const Scope& scope) {
  Graph& graph = scope.building.graph;
  Declared declared;
  HOTSET_TRY(read_declared(message, &declared));
  HOTSET_FAIL_IF(declared.name.empty(), invalid_model, "a graph input has no name");
  HOTSET_FAIL_IF(!valid_text(declared.name), invalid_model, "input name %s is not UTF-8 text", quote(declared.name).c_str());
  const ValueId id = find_or_add(scope, declared.name);
  Value& value = graph.values[static_cast<size_t>(id)];
  if (value.constant >= 0) return {};  // its default cannot be overridden: a constant
  HOTSET_FAIL_IF(value.is_input, invalid_model, "two graph inputs are named %s", quote(declared.name).c_str());
  HOTSET_FAIL_IF(declared.kind, unsupported, "input %s is %s; only tensors are supported", quote(declared.name).c_str(), declared.kind);
  value.is_input = true;
  declare(declared, &value);
  graph.inputs.push_back(id);
  return {};
}

Status OnnxReader::read_output(Bytes message, const Scope& scope) {
  Graph& graph = scope.building.graph;
  Declared declared;
  HOTSET_TRY(read_declared(message, &declared));
  HOTSET_FAIL_IF(declared.name.empty(), invalid_model, "a graph output has no name");
  HOTSET_FAIL_IF(!valid_text(declared.name), invalid_model, "output name %s is not UTF-8 text", quote(declared.name).c_str());
  const ValueId id = refer(scope, declared.name);
  HOTSET_FAIL_IF(id == kNone, invalid_model, "graph output %s is an input left out by the caller", quote(declared.name).c_str());
  declare(declared, &graph.values[static_cast<size_t>(id)]);
  graph.outputs.push_back(id);
  return {};
}

// Declarations of values that no node mentions are left alone.
Status OnnxReader::read_value_info(Bytes message, const Scope& scope) {
  Declared declared;
  HOTSET_TRY(read_declared(message, &declared));
  Graph& graph = scope.building.graph;
  if (const auto it = graph.ids.find(declared.name); it != graph.ids.end())
    declare(declared, &graph.values[static_cast<size_t>(it->second)]);
  return {};
}

// Values that nothing makes are captures in a subgraph and mistakes in the main graph and in function bodies.
Status OnnxReader::finish_graph(const Scope& scope) {
  Graph& graph = scope.building.graph;
  std::vector<char> undefined(graph.values.size());
  bool any = false;
  for (size_t i = 0; i < graph.values.size(); ++i) {
    const Value& value = graph.values[i];
    if (value.producer >= 0 || value.constant >= 0 || value.is_input) continue;
    const bool from_outside = scope.outer && !value.name.empty();
    if (const ValueId outer = from_outside ? refer(*scope.outer, value.name) : kNone; outer != kNone) {
      graph.captures.push_back({static_cast<ValueId>(i), outer});
    } else {
      undefined[i] = true;
      any = true;
    }
  }
  name_inlined(scope.building);
  if (any) return undefined_values(graph, std::move(undefined));
  return sort_nodes(graph);
}

ValueId OnnxReader::new_value(const Scope& scope, std::string_view name) {
  Graph& graph = scope.building.graph;
  const ValueId id = static_cast<ValueId>(graph.values.size());
  Value& value = graph.values.emplace_back();
  if (scope.names) {
    scope.building.values.push_back({id, scope.call->function, scope.call->number, name});
    scope.names->emplace(name, id);
  } else {
    value.name.assign(name);
    graph.ids.emplace(value.name, id);
  }
  return id;
}

ValueId OnnxReader::find_or_add(const Scope& scope, std::string_view name) {
  if (name.empty()) return kNone;
  if (scope.names) {
    const auto it = scope.names->find(name);
    return it != scope.names->end() ? it->second : new_value(scope, name);
  }
  const auto& ids = scope.building.graph.ids;
  const auto it = ids.find(name);
  return it != ids.end() ? it->second : new_value(scope, name);
}

// A subgraph in a function body may read a formal input that the caller left out: then it reads nothing.
ValueId OnnxReader::refer(const Scope& scope, std::string_view name) {
  if (!scope.names && scope.outer && scope.call && !scope.building.graph.ids.contains(name)) {
    for (const Scope* s = scope.outer; s; s = s->outer) {
      if (s->names) {
        const auto it = s->names->find(name);
        if (it != s->names->end() && it->second == kNone) return kNone;
      } else if (s->building.graph.ids.contains(name)) {
        break;
      }
    }
  }
  return find_or_add(scope, name);
}

namespace {

Status read_bytes(Model& model, Bytes bytes, const std::string& folder, const std::string& path, const ReadOptions& options) {
  ExternalData external(model, folder, path, options.map_weights);
  model.weights_mapped = options.map_weights;
  return OnnxReader(model, bytes, external, options).read();
}

}  // namespace

Result<std::unique_ptr<Model>> read_model(const std::string& utf8_path, const ReadOptions& options) {
  HOTSET_ASSIGN(std::shared_ptr<MappedFile> file, MappedFile::open(utf8_path));
  const Bytes bytes(file->data(), static_cast<size_t>(file->bytes()));
  auto model = std::make_unique<Model>();
  model->files.push_back(std::move(file));
  model->model_mapped = true;
  std::string folder = options.external_folder;
  if (folder.empty()) {
#if defined(_WIN32)
    const size_t slash = utf8_path.find_last_of("/\\");
#else
    const size_t slash = utf8_path.rfind('/');
#endif
    folder = slash == std::string::npos ? "." : utf8_path.substr(0, slash + 1);
  }
  if (Status status = read_bytes(*model, bytes, folder, utf8_path, options); !status.ok()) {
    return std::move(status).at(quote(utf8_path));
  }
  return model;
}

Result<std::unique_ptr<Model>> read_model_bytes(const void* bytes, size_t n_bytes, const ReadOptions& options) {
  auto model = std::make_unique<Model>();
  model->owned.push_back(std::make_unique_for_overwrite<uint8_t[]>(n_bytes ? n_bytes : 1));
  model->owned_bytes += n_bytes;
  uint8_t* copy = model->owned.back().get();
  if (n_bytes) std::memcpy(copy, bytes, n_bytes);
  if (Status status = read_bytes(*model, Bytes(copy, n_bytes), options.external_folder, "", options); !status.ok()) {
    return std::move(status).at("model");
  }
  return model;
}

}  // namespace hotset::model
