// SPDX-License-Identifier: Apache-2.0
// Prints what the reader makes of a model file as one JSON text; test_reader.py compares it with the onnx package.
//
// usage: test_reader_dump [--bytes | --plan] MODEL      (without arguments: skipped)
// --bytes reads the file into memory first, --plan does not map weights.
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "model/graph.h"

using namespace hotset;
using namespace hotset::model;

namespace {

std::string json(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x80) {
      out += format_text("\\u%04x", static_cast<unsigned>(static_cast<unsigned char>(c)));  // bytes as latin-1
    } else {
      out += c;
    }
  }
  return out + "\"";
}

template <class List, class F>
std::string array(const List& list, F&& item) {
  std::string out = "[";
  for (const auto& element : list) out += (out.size() > 1 ? "," : "") + item(element);
  return out + "]";
}

uint32_t crc32(const uint8_t* data, size_t n) {
  static const auto table = [] {
    std::vector<uint32_t> t(256);
    for (uint32_t i = 0; i < 256; ++i) {
      t[i] = i;
      for (int k = 0; k < 8; ++k) t[i] = t[i] & 1 ? 0xedb88320u ^ (t[i] >> 1) : t[i] >> 1;
    }
    return t;
  }();
  uint32_t crc = ~0u;
  for (size_t i = 0; i < n; ++i) crc = table[(crc ^ data[i]) & 255] ^ (crc >> 8);
  return ~crc;
}

std::string number(int64_t n) { return std::to_string(n); }

std::string dump(const Constant& c) {
  const Tensor& t = c.tensor;
  return format_text("{\"dtype\":%d,\"dims\":%s,\"crc\":%s,\"file\":%d,\"offset\":%" PRIu64 "}", static_cast<int>(t.dtype),
                     array(t.shape.dims(), number).c_str(), t.data ? std::to_string(crc32(t.as<uint8_t>(), t.bytes())).c_str() : "null",
                     c.file, c.offset);
}

std::string dump(const Graph& graph) {
  const auto name = [&](ValueId id) { return id == kNone ? "\"\"" : json(graph.values[id].name); };
  const auto declared = [&](ValueId id) {
    const Value& v = graph.values[id];
    const auto dim = [](const Dim& d) { return d.value >= 0 ? std::to_string(d.value) : json(d.name); };
    return "[" + json(v.name) + "," + std::to_string(static_cast<int>(v.dtype)) + "," +
           (v.has_shape ? array(v.shape, dim) : std::string("null")) + "]";
  };
  std::string out = "{\"inputs\":" + array(graph.inputs, declared) + ",\"outputs\":" + array(graph.outputs, declared);
  out += ",\"captures\":" + array(graph.captures, [&](const Capture& c) { return name(c.inner); }) + ",\"constants\":{";
  bool first = true;
  for (const Value& v : graph.values) {
    if (v.constant < 0) continue;
    out += (first ? "" : ",") + json(v.name) + ":" + dump(graph.constants[v.constant]);
    first = false;
  }
  out += "},\"nodes\":" + array(graph.nodes, [&](const Node& n) {
           std::string text = "{\"name\":" + json(n.name) + ",\"op\":" + json(n.op_type) + ",\"domain\":" + json(n.domain) +
                              ",\"opset\":" + std::to_string(n.opset) + ",\"inputs\":" + array(n.inputs, name) +
                              ",\"outputs\":" + array(n.outputs, name) + ",\"captures\":" + array(n.captures, name) + ",\"attributes\":{";
           bool first_attribute = true;
           for (const auto& [key, attribute] : n.attributes) {
             text += (first_attribute ? "" : ",") + json(key) + ":";
             first_attribute = false;
             const auto real = [](float f) { return format_text("\"%a\"", static_cast<double>(f)); };
             if (const auto* i = std::get_if<int64_t>(&attribute.value))
               text += number(*i);
             else if (const auto* f = std::get_if<float>(&attribute.value))
               text += real(*f);
             else if (const auto* s = std::get_if<std::string>(&attribute.value))
               text += json(*s);
             else if (const auto* ints = std::get_if<std::vector<int64_t>>(&attribute.value))
               text += array(*ints, number);
             else if (const auto* floats = std::get_if<std::vector<float>>(&attribute.value))
               text += array(*floats, real);
             else if (const auto* texts = std::get_if<std::vector<std::string>>(&attribute.value))
               text += array(*texts, json);
             else if (const auto* c = std::get_if<Constant>(&attribute.value))
               text += dump(*c);
             else if (const auto* g = std::get_if<std::shared_ptr<Graph>>(&attribute.value))
               text += dump(**g);
             else
               text += "null";
           }
           return text + "}}";
         });
  return out + "}";
}

// What a session would have kernels for: these functions of models are not inlined.
bool has_kernel(std::string_view domain, std::string_view op_type) {
  return domain == "com.microsoft" && (op_type == "MatMulNBits" || op_type.starts_with("Skip"));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::puts("a tool of test_reader.py: no model given");
    return 77;
  }
  ReadOptions options;
  options.has_kernel = has_kernel;
  options.map_weights = std::strcmp(argv[1], "--plan") != 0;
  const std::string path = argv[argc - 1];
  auto read = [&]() -> Result<std::unique_ptr<Model>> {
    if (std::strcmp(argv[1], "--bytes") != 0) return read_model(path, options);
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    return read_model_bytes(bytes.data(), bytes.size(), options);
  };
  auto result = read();
  if (!result.ok()) {
    const Status status = result.take_status();
    std::printf("{\"code\":%d,\"text\":%s}\n", static_cast<int>(status.code()), json(status.text()).c_str());
    return 0;
  }
  const Model& model = *result.value();
  const Metadata& meta = model.metadata;
  const auto pair = [](const auto& p) {
    return "[" + json(p.first) + "," +
           [](const auto& second) {
             if constexpr (std::is_same_v<std::decay_t<decltype(second)>, int64_t>)
               return number(second);
             else
               return json(second);
           }(p.second) +
           "]";
  };
  std::printf("{\"code\":0,\"producer\":%s,\"ir\":%" PRId64 ",\"opsets\":%s,\"properties\":%s,\"files\":%zu,\"graph\":%s}\n",
              json(meta.producer_name).c_str(), meta.ir_version, array(meta.opsets, pair).c_str(), array(meta.properties, pair).c_str(),
              model.files.size(), dump(model.graph).c_str());
  return 0;
}
