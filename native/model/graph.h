// SPDX-License-Identifier: Apache-2.0
// A model as read from a file: nodes, values, places of weights. No shapes are computed here and no weight is copied.
//
// Subgraphs (the branches of If, the body of Loop and Scan) are Graphs of their own, held by an attribute of their node. A value
// that a subgraph reads from outside is a value of the subgraph without producer, listed in Graph::captures with the value of
// the enclosing graph that it stands for. A capture reaches one level: for a value from two levels up the graph between
// captures it as well. Captured constants are plain constants of the subgraph, not captures.
//
// Local functions without a kernel are inlined: their nodes and values belong to the calling graph, under new names.
// Constant nodes have become constants.
#pragma once
#include <cstdint>
#include <functional>
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

// Where the bytes of a constant lie. `tensor.data` points into a mapping or into memory that the Model owns. Files align nothing:
// the address may be odd. Data of 0 elements are never null. Strings are not kept: such constants have no data and no reader.
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
  int constant = -1;      // index into Graph::constants
  int32_t producer = -1;  // node index; -1: a constant, an input, a capture
  bool is_input = false;  // of its graph
};

struct Graph;

// Attribute value; nothing for the kinds that no operator here has (lists of tensors or graphs, sparse tensors, types).
struct Attribute {
  std::variant<std::monostate, int64_t, float, std::string, std::vector<int64_t>, std::vector<float>, std::vector<std::string>, Constant,
               std::shared_ptr<Graph>>  // shared, so that nodes can be copied: copies read the same subgraph
      value;
};

struct Node {
  std::string name, op_type, domain;  // domain "" is ai.onnx; a node without name is called as its first output
  int opset = 1;                      // version of its domain in force for this node
  // Where the file has it: Graph::nodes[index] of the graph "main", or of a subgraph, "main/<index>/<length>:<attribute>".
  std::string scope;
  int32_t index = -1;
  std::vector<ValueId> inputs, outputs;
  std::vector<ValueId> captures;  // what its subgraphs read of this graph, each value once: inputs in all but name
  // The node runs only when each of these booleans has this value: it stood in a branch of an If that was dissolved.
  std::vector<std::pair<ValueId, bool>> guards;
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

struct Capture {
  ValueId inner, outer;  // value of this graph, value of the enclosing graph
};

// Lets names be looked up without making a string.
struct NameHash {
  using is_transparent = void;
  size_t operator()(std::string_view name) const { return std::hash<std::string_view>()(name); }
};

struct Graph {
  std::string name;
  std::vector<Value> values;
  std::vector<Constant> constants;
  std::vector<Node> nodes;               // in an order in which every value is made before it is read
  std::vector<ValueId> inputs, outputs;  // inputs without those that have an initializer
  std::vector<Capture> captures;         // of a subgraph
  std::unordered_map<std::string, ValueId, NameHash, std::equal_to<>> ids;

  const Constant* constant(ValueId id) const { return id == kNone || values[id].constant < 0 ? nullptr : &constants[values[id].constant]; }
};

// One mapped file. Mapped read-only and shared: pages are the page cache's, never a private copy.
// What tells a file from another of the same name. On Windows its size alone.
struct FileIdentity {
  uint64_t device = 0, number = 0;  // number: of its inode
  uint64_t bytes = 0;

  bool operator==(const FileIdentity&) const = default;
};

class MappedFile {
 public:
  // With `map` false only its size is read. A missing or unreadable file, or a folder: not_found.
  static Result<std::shared_ptr<MappedFile>> open(const std::string& utf8_path, bool map = true);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  const uint8_t* data() const { return data_; }  // null when empty or not mapped
  uint64_t bytes() const { return identity_.bytes; }
  const FileIdentity& identity() const { return identity_; }
  const std::string& path() const { return path_; }
  // Tells the system that this range will not be read again soon; its pages may go. Whole pages inside the range only.
  void drop_pages(uint64_t offset, uint64_t length) const;
  // Starts bringing the range into memory, without waiting for it.
  void will_need(uint64_t offset, uint64_t length) const;

 private:
  MappedFile() = default;
  FileIdentity identity_;
  const uint8_t* data_ = nullptr;
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

// The model keeps alive what its constants point at.
struct Model {
  Graph graph;
  Metadata metadata;
  std::vector<std::shared_ptr<MappedFile>> files;  // [0] the .onnx file if model_mapped, then external data
  bool model_mapped = false;                       // read from a path: inline raw data lie in files[0]
  std::vector<std::unique_ptr<uint8_t[]>> owned;   // decoded typed fields, copied model bytes
  uint64_t owned_bytes = 0;                        // of all of them
  // External data whose bytes are not mapped (plan only): constants have a null data pointer then.
  bool weights_mapped = true;
};

struct ReadOptions {
  std::string external_folder;  // of the data files; empty: the folder of the model file (bytes: no data files)
  bool map_weights = true;      // false: check presence and length of external data only
  // Asked whether (domain, op type) has a kernel: local functions without one are inlined, with one their body is ignored.
  bool (*has_kernel)(std::string_view domain, std::string_view op_type) = nullptr;
};

// The highest opset of ai.onnx that is read. Other domains may have any.
inline constexpr int kMaxOpset = 28;

// Reads a model and checks its structure: every value made once and before it is read, every constant complete. Whether an
// operator has a kernel is not checked here. Statuses: not_found (the model or a data file), invalid_model, unsupported (opset,
// element type, rank, sparse and string tensors, recursive functions).
Result<std::unique_ptr<Model>> read_model(const std::string& utf8_path, const ReadOptions& options);
// The same from memory, which is copied.
Result<std::unique_ptr<Model>> read_model_bytes(const void* bytes, size_t n_bytes, const ReadOptions& options);

// Host memory of nodes, values, names and attributes, within a few tens of percent; contents of constants are not in it.
size_t structure_bytes(const Graph& graph);

// 'name' for messages: control characters and broken UTF-8 become '?', long names are cut.
std::string quote(std::string_view name);
// Whether it is UTF-8 without NUL, as all names of a Model are.
bool valid_text(std::string_view text);

}  // namespace hotset::model
