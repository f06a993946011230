// SPDX-License-Identifier: Apache-2.0
// Writes ONNX messages for the reader's tests, well-formed or not.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/graph.h"

#define CHECK(condition)                                                  \
  do {                                                                    \
    if (!(condition)) {                                                   \
      std::printf("%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                       \
    }                                                                     \
  } while (0)

namespace proto {

struct Message {
  std::string bytes;

  Message& varint(uint64_t v) {
    for (; v >= 0x80; v >>= 7) bytes += static_cast<char>(v | 0x80);
    bytes += static_cast<char>(v);
    return *this;
  }
  Message& tag(uint32_t field, uint32_t type) { return varint(field << 3 | type); }
  Message& add(uint32_t field, std::string_view text) {
    tag(field, 2).varint(text.size());
    bytes += text;
    return *this;
  }
  Message& add(uint32_t field, const Message& message) { return add(field, message.bytes); }
  Message& number(uint32_t field, int64_t v) { return tag(field, 0).varint(static_cast<uint64_t>(v)); }
  template <class T>
  Message& fixed(uint32_t field, T v) {
    tag(field, sizeof v == 4 ? 5 : 1);
    return raw(v);
  }
  template <class T>
  Message& raw(T v) {
    char b[sizeof v];
    std::memcpy(b, &v, sizeof v);
    bytes.append(b, sizeof v);
    return *this;
  }
};

using Names = std::vector<std::string>;

inline Message node(std::string_view op, const Names& inputs, const Names& outputs, std::string_view domain = "",
                    std::string_view name = "") {
  Message m;
  for (const auto& i : inputs) m.add(1, i);
  for (const auto& o : outputs) m.add(2, o);
  m.add(3, name).add(4, op);
  return domain.empty() ? m : m.add(7, domain);
}
inline Message attribute(std::string_view name, int64_t v) { return Message().add(1, name).number(3, v).number(20, 2); }
inline Message attribute(std::string_view name, const Message& graph) { return Message().add(1, name).add(6, graph).number(20, 5); }
inline Message tensor_attribute(std::string_view name, const Message& tensor) {
  return Message().add(1, name).add(5, tensor).number(20, 4);
}
inline Message reference(std::string_view name, std::string_view of, int type) {
  return Message().add(1, name).number(20, type).add(21, of);
}
inline Message with(Message node, const std::vector<Message>& attributes) {
  for (const auto& a : attributes) node.add(5, a);
  return node;
}

inline Message tensor(std::string_view name, int dtype, const std::vector<int64_t>& dims) {
  Message m;
  for (const int64_t d : dims) m.number(1, d);
  return m.number(2, dtype).add(8, name);
}
inline Message floats(std::string_view name, const std::vector<float>& values) {
  Message raw;
  for (const float v : values) raw.raw(v);
  return tensor(name, 1, {static_cast<int64_t>(values.size())}).add(9, raw);
}
inline Message external(Message tensor, std::string_view location, std::string_view offset = "", std::string_view length = "") {
  tensor.add(13, Message().add(1, "location").add(2, location));
  if (!offset.empty()) tensor.add(13, Message().add(1, "offset").add(2, offset));
  if (!length.empty()) tensor.add(13, Message().add(1, "length").add(2, length));
  return tensor.number(14, 1);
}
inline Message value(std::string_view name, int dtype = 1) {
  return Message().add(1, name).add(2, Message().add(1, Message().number(1, dtype)));
}

struct GraphFields {
  Names inputs, outputs;
  std::vector<Message> nodes, initializers = {};
};
inline Message graph(const GraphFields& g) {
  Message m;
  for (const auto& n : g.nodes) m.add(1, n);
  m.add(2, "g");
  for (const auto& t : g.initializers) m.add(5, t);
  for (const auto& i : g.inputs) m.add(11, value(i));
  for (const auto& o : g.outputs) m.add(12, value(o));
  return m;
}
inline Message opset(std::string_view domain, int64_t version) { return Message().add(1, domain).number(2, version); }
inline Message model(const Message& graph, const std::vector<Message>& functions = {}, int64_t version = 21) {
  Message m;
  m.number(1, 10).add(7, graph).add(8, opset("", version)).add(8, opset("com.microsoft", 1));
  for (const auto& f : functions) m.add(25, f);
  return m;
}
inline Message function(std::string_view name, const Names& inputs, const Names& outputs, const std::vector<Message>& nodes,
                        const std::vector<Message>& defaults = {}) {
  Message m;
  m.add(1, name);
  for (const auto& i : inputs) m.add(4, i);
  for (const auto& o : outputs) m.add(5, o);
  for (const auto& n : nodes) m.add(7, n);
  m.add(9, opset("", 18)).add(10, "local");
  for (const auto& d : defaults) m.add(11, d);
  return m;
}

inline hotset::Result<std::unique_ptr<hotset::model::Model>> try_read(const Message& m, const hotset::model::ReadOptions& options = {}) {
  return hotset::model::read_model_bytes(m.bytes.data(), m.bytes.size(), options);
}

inline std::unique_ptr<hotset::model::Model> read(const Message& m, const hotset::model::ReadOptions& options = {}) {
  auto result = try_read(m, options);
  if (!result.ok()) std::printf("%s\n", result.take_status().text().c_str());
  CHECK(result.ok());
  return std::move(result.value());
}

inline void expect_failure(hotset::Result<std::unique_ptr<hotset::model::Model>> result, hotset::Code code, std::string_view text,
                           const char* file, int line) {
  const hotset::Status status = result.ok() ? hotset::Status() : result.take_status();
  if (status.code() == code && status.text().find(text) != std::string::npos && status.text().find('\n') == std::string::npos) return;
  std::printf("%s:%d: expected %d with '%.*s', got %d: %s\n", file, line, static_cast<int>(code), static_cast<int>(text.size()),
              text.data(), static_cast<int>(status.code()), status.text().c_str());
  std::exit(1);
}
#define EXPECT_FAILURE(result, code, text) ::proto::expect_failure(result, hotset::Code::code, text, __FILE__, __LINE__)

}  // namespace proto
