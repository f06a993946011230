// SPDX-License-Identifier: Apache-2.0
// Reads ModelProto into a Model. Inside the room only: others call read_model.
//
// There is no tree of messages in between: nodes are built straight from their bytes, in the scope they stand in. A function
// body is read again for each call, in a scope that binds its formal names.
#pragma once
#include "model/external_data.h"
#include "model/graph.h"
#include "model/tensor_proto.h"
#include "model/wire.h"

namespace hotset::model {

class OnnxReader {
 public:
  OnnxReader(Model& model, Bytes bytes, ExternalData& external, const ReadOptions& options)
      : model_(model), bytes_(bytes), options_(options), tensors_(model, external) {}
  Status read();

 private:
  static constexpr int kMaxDepth = 64;  // subgraphs in subgraphs, functions in functions

  using Attributes = std::map<std::string, Attribute, std::less<>>;
  using Opsets = std::unordered_map<std::string_view, int64_t>;

  struct Function {
    Bytes message;
    std::string_view domain, name;
    bool has_kernel = false;
    bool parsed = false;  // the rest, at the first call
    bool active = false;  // being inlined
    std::unordered_map<std::string_view, size_t> inputs;
    std::vector<std::string_view> outputs;
    std::vector<Bytes> defaults, nodes;
    Opsets opsets;
  };

  // One inlined call.
  struct Call {
    const Function* function;
    int number;  // unique, part of the names
    Attributes attributes;
  };

  // A graph while its nodes are read.
  struct Building {
    Graph& graph;
    // Values and nodes from function bodies, whose names wait until all names of the graph are known.
    struct Unnamed {
      int32_t id;
      const Function* function;
      int call;
      std::string_view name;
    };
    std::vector<Unnamed> values, nodes;
  };

  // What names mean where a node stands: in a graph (names null), or in a function body.
  struct Scope {
    Building& building;
    const Scope* outer;  // of a subgraph; function bodies see nothing outside
    const Opsets& opsets;
    const Call* call = nullptr;
    std::unordered_map<std::string_view, ValueId>* names = nullptr;
    int depth = 0;
  };

  // A node's fields, attributes not yet read.
  struct NodeFields {
    std::string_view name, op_type, domain, overload;
    std::vector<std::string_view> inputs, outputs;
    std::vector<Bytes> attributes;
  };

  Status read_function_names();
  Status read_opset(Bytes message, Opsets* out);
  Status read_graph(Bytes message, const Scope& scope);
  Status read_initializer(Bytes message, const Scope& scope);
  Status read_input(Bytes message, const Scope& scope);
  Status read_output(Bytes message, const Scope& scope);
  Status read_value_info(Bytes message, const Scope& scope);
  Status finish_graph(const Scope& scope);

  Status read_node(Bytes message, const Scope& scope);
  Status read_node_fields(Bytes message, NodeFields* out);
  Status read_attribute(Bytes message, const Scope& scope, std::string_view* name, Attribute* out, bool* present,
                        std::vector<ValueId>* captures);
  Status read_subgraph(Bytes message, const Scope& scope, std::shared_ptr<Graph>* out, std::vector<ValueId>* captures);
  Status read_tensor(Bytes message, const Scope& scope, std::string_view* name, Constant* out);
  Status make_constant(const Node& node, const NodeFields& fields, const Scope& scope);
  Status add_node(Node node, const NodeFields& fields, const Scope& scope);

  // functions.cpp
  Status find_function(const NodeFields& fields, Function** out);
  Status parse_function(Function& function);
  Status inline_call(Function& function, Node& node, const NodeFields& fields, const Scope& scope);
  void name_inlined(Building& building);
  Status bound_attribute(std::string_view name, const Scope& scope, Attribute* out, bool* present);
  // Counts what inlining multiplies; a small file must not fill the memory.
  Status charge(const Scope& scope, uint64_t bytes);

  ValueId new_value(const Scope& scope, std::string_view name);
  ValueId find_or_add(const Scope& scope, std::string_view name);  // kNone for ""
  ValueId refer(const Scope& scope, std::string_view name);        // the same for a name that is read
  Status define(const Scope& scope, std::string_view name, const Node& node, ValueId* out);

  Model& model_;
  Bytes bytes_;
  const ReadOptions& options_;
  TensorReader tensors_;
  Opsets opsets_;
  std::vector<Bytes> function_messages_;
  std::unordered_map<std::string, Function> functions_;  // by domain, name and overload
  int n_calls_ = 0;
  uint64_t inlined_bytes_ = 0;
};

// Graph building that needs no file (graph_build.cpp).
//
// Makes a value a constant, with the tensor's type and shape.
void set_constant(Graph& graph, ValueId id, Constant constant);
// The failure that names all values marked in `undefined`, with a reader of each.
Status undefined_values(const Graph& graph, std::vector<char> undefined);
// Puts nodes into an order in which every value is made before it is read; the file's order if that is one. Fails on a cycle.
Status sort_nodes(Graph& graph);
// Turns captures of constants into constants of the subgraphs, all levels down, and refuses strings that are read.
Status settle_constants(Graph& graph);

}  // namespace hotset::model
