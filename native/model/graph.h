// SPDX-License-Identifier: Apache-2.0
// A model as read from a file: nodes, values, places of weights. No shapes are computed here and no weight is copied.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/status.h"
#include "base/tensor.h"

namespace hotset::model {

using ValueId = int32_t;
inline constexpr ValueId kNone = -1;  // an optional input or output that is left out

// One dimension of a declared shape.
struct Dim {
  int64_t value = -1;  // -1: symbolic or unknown
  std::string name;    // of a symbolic dimension; a name made of digits has become a value
};

// Where the bytes of a constant lie. `tensor.data` points into a mapping or into memory that the Model owns.
struct Constant {
  Tensor tensor;
  int file = -1;        // index into Model::files; -1: bytes owned by the model (typed fields, Constant nodes, inline data)
  uint64_t offset = 0;  // in that file
};

struct Value {
  std::string name;
  DType dtype = DType::undefined;  // as declared; undefined when the file does not say
  bool has_shape = false;
  std::vector<Dim> shape;
  int constant = -1;   // index into Graph::constants
  int32_t producer = -1;  // node index
};

struct Graph;

// Attribute value. Tensors are constants of the graph that owns the node.
struct Attribute {
  std::variant<std::monostate, int64_t, float, std::string, std::vector<int64_t>, std::vector<float>, std::vector<std::string>,
               Constant, std::shared_ptr<Graph>>  // shared: copies of a node (inlined functions) read the same subgraph
      value;
};

struct Node {
  std::string name, op_type, domain;  // domain "" is ai.onnx
  int opset = 1;                      // version of its domain in force for this node
  std::vector<ValueId> inputs, outputs;
  std::map<std::string, Attribute, std::less<>> attributes;

  const Attribute* find(std::string_view key) const {
    const auto it = attributes.find(key);
    return it == attributes.end() ? nullptr : &it->second;
  }
  // The attribute, or `otherwise` when it is absent or of another type.
  int64_t get_int(std::string_view key, int64_t otherwise) const;
  float get_float(std::string_view key, float otherwise) const;
  std::string get_string(std::string_view key, std::string_view otherwise) const;
  const std::vector<int64_t>* get_ints(std::string_view key) const;
  const std::vector<float>* get_floats(std::string_view key) const;
  const Constant* get_tensor(std::string_view key) const;
  const Graph* get_graph(std::string_view key) const;
  // "node 'name' (OpType)" for messages.
  std::string text() const;
};

struct Graph {
  std::string name;
  std::vector<Value> values;
  std::vector<Constant> constants;
  std::vector<Node> nodes;               // in an order in which every value is made before it is read
  std::vector<ValueId> inputs, outputs;  // inputs without those that have an initializer
  std::unordered_map<std::string, ValueId> ids;

  const Constant* constant(ValueId id) const {
    return id == kNone || values[id].constant < 0 ? nullptr : &constants[values[id].constant];
  }
};

// One mapped file. Mapped read-only and shared: pages are the page cache's, never a private copy.
class MappedFile {
 public:
  static Result<std::shared_ptr<MappedFile>> open(const std::string& utf8_path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  const uint8_t* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  const std::string& path() const { return path_; }
  // Tells the system that this range will not be read again soon; its pages may go. Whole pages inside the range only.
  void drop_pages(uint64_t offset, uint64_t length) const;

 private:
  MappedFile() = default;
  const uint8_t* data_ = nullptr;
  uint64_t bytes_ = 0;
  std::string path_;
#if defined(_WIN32)
  void* mapping_ = nullptr;
#endif
};

struct Metadata {
  std::string producer_name, producer_version, domain, doc_string, graph_doc_string;
  int64_t ir_version = 0, model_version = 0;
  std::vector<std::pair<std::string, int64_t>> opsets;
  std::vector<std::pair<std::string, std::string>> properties;
};

struct Model {
  Graph graph;
  Metadata metadata;
  std::vector<std::shared_ptr<MappedFile>> files;       // [0] the .onnx file when it was mapped, then external data
  std::vector<std::unique_ptr<uint8_t[]>> owned;        // decoded typed fields, copied model bytes
  // External data whose bytes are not mapped (plan only): constants have a null data pointer then.
  bool weights_mapped = true;
};

struct ReadOptions {
  std::string external_folder;  // for models given as bytes; empty: the folder of the model file
  bool map_weights = true;      // false: check presence and length of external data only
  // Asked whether (domain, op type) has a kernel: local functions without one are inlined, with one their body is ignored.
  bool (*has_kernel)(std::string_view domain, std::string_view op_type) = nullptr;
};

Result<std::unique_ptr<Model>> read_model(const std::string& utf8_path, const ReadOptions& options);
Result<std::unique_ptr<Model>> read_model_bytes(const void* bytes, size_t n_bytes, const ReadOptions& options);

}  // namespace hotset::model
