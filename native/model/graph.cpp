// SPDX-License-Identifier: Apache-2.0
// Attribute access of nodes, names in messages.
#include "model/graph.h"

namespace hotset::model {
namespace {

template <class T>
const T* get(const Node& node, std::string_view key) {
  const Attribute* attribute = node.find(key);
  return attribute ? std::get_if<T>(&attribute->value) : nullptr;
}

// Length of the UTF-8 sequence that `text` begins with; 0 if it is none. NUL does not count.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t b = byte(0);
  if (b < 0x80) return b ? 1 : 0;
  const size_t n = b >= 0xf0 ? 4 : b >= 0xe0 ? 3 : 2;
  if (b < 0xc2 || b > 0xf4 || text.size() < n) return 0;
  for (size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const uint8_t second = byte(1);
  const bool overlong = (b == 0xe0 && second < 0xa0) || (b == 0xf0 && second < 0x90);
  const bool outside = (b == 0xed && second >= 0xa0) || (b == 0xf4 && second >= 0x90);
  return overlong || outside ? 0 : n;
}

}  // namespace

int64_t Node::get_int(std::string_view key, int64_t otherwise) const {
  const auto* value = get<int64_t>(*this, key);
  return value ? *value : otherwise;
}

float Node::get_float(std::string_view key, float otherwise) const {
  const auto* value = get<float>(*this, key);
  return value ? *value : otherwise;
}

std::string Node::get_string(std::string_view key, std::string_view otherwise) const {
  const auto* value = get<std::string>(*this, key);
  return value ? *value : std::string(otherwise);
}

const std::vector<int64_t>* Node::get_ints(std::string_view key) const { return get<std::vector<int64_t>>(*this, key); }
const std::vector<float>* Node::get_floats(std::string_view key) const { return get<std::vector<float>>(*this, key); }
const Constant* Node::get_tensor(std::string_view key) const { return get<Constant>(*this, key); }

const Graph* Node::get_graph(std::string_view key) const {
  const auto* value = get<std::shared_ptr<Graph>>(*this, key);
  return value ? value->get() : nullptr;
}

std::string Node::text() const {
  std::string type = quote(op_type);
  return "node " + quote(name) + " (" + type.substr(1, type.size() - 2) + ")";
}

std::string quote(std::string_view name) {
  constexpr size_t kLongest = 200;
  std::string text = "'";
  while (!name.empty()) {
    const size_t n = utf8_length(name);
    const bool shown = n > 1 || (n == 1 && name[0] >= ' ' && name[0] != 0x7f);
    if (text.size() + n > kLongest) {
      text += "...";
      break;
    }
    text += shown ? name.substr(0, n) : "?";
    name.remove_prefix(n ? n : 1);
  }
  return text + "'";
}

namespace {

constexpr size_t kBlock = 16;  // what the allocator keeps beside each block

size_t block(size_t bytes) { return bytes ? bytes + kBlock : 0; }
size_t heap_bytes(const std::string& text) { return text.capacity() > std::string().capacity() ? block(text.capacity()) : 0; }
template <class T>
size_t heap_bytes(const std::vector<T>& list) {
  return block(list.capacity() * sizeof(T));
}

size_t heap_bytes(const Attribute& attribute) {
  if (const auto* text = std::get_if<std::string>(&attribute.value)) return heap_bytes(*text);
  if (const auto* ints = std::get_if<std::vector<int64_t>>(&attribute.value)) return heap_bytes(*ints);
  if (const auto* floats = std::get_if<std::vector<float>>(&attribute.value)) return heap_bytes(*floats);
  if (const auto* graph = std::get_if<std::shared_ptr<Graph>>(&attribute.value)) return structure_bytes(**graph);
  return 0;
}

}  // namespace

size_t structure_bytes(const Graph& graph) {
  constexpr size_t kMapLinks = 4 * sizeof(void*) + kBlock;  // beside the pair in a node of a map
  size_t n = sizeof(graph) + heap_bytes(graph.values) + heap_bytes(graph.constants) + heap_bytes(graph.nodes) + heap_bytes(graph.captures);
  n += heap_bytes(graph.inputs) + heap_bytes(graph.outputs) + graph.ids.bucket_count() * sizeof(void*);
  for (const auto& [name, id] : graph.ids) n += sizeof(name) + sizeof(id) + kMapLinks + heap_bytes(name);
  for (const Value& v : graph.values) {
    n += heap_bytes(v.name) + heap_bytes(v.shape);
    for (const Dim& d : v.shape) n += heap_bytes(d.name);
  }
  for (const Node& node : graph.nodes) {
    n += heap_bytes(node.name) + heap_bytes(node.op_type) + heap_bytes(node.domain) + heap_bytes(node.inputs) + heap_bytes(node.outputs);
    n += heap_bytes(node.captures) + heap_bytes(node.guards);
    for (const auto& [key, attribute] : node.attributes)
      n += sizeof(key) + sizeof(attribute) + kMapLinks + heap_bytes(key) + heap_bytes(attribute);
  }
  return n;
}

bool valid_text(std::string_view text) {
  while (!text.empty()) {
    const size_t n = utf8_length(text);
    if (n == 0) return false;
    text.remove_prefix(n);
  }
  return true;
}

}  // namespace hotset::model
