// SPDX-License-Identifier: Apache-2.0
// What an operator is to the executor: a factory that checks the node, and a kernel that infers shapes and runs.
//
// One operator is one file: a Kernel class, its factory, and a table at the end:
//
//     HOTSET_OPS(gather, {"", "Gather", 1, kLatest, make_gather, {2, 2}});
//
// The build finds files by the text HOTSET_OPS and lists them (tools/gen_op_table.py); the name is the file's stem.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "base/status.h"
#include "base/tensor.h"
#include "base/thread_pool.h"
#include "experts/tail_routes.h"
#include "experts/usage_counters.h"
#include "model/graph.h"

namespace hotset::experts {
class ExpertStore;
}

namespace hotset::ops {

enum class CpuActivation { by_node, exact, int8 };  // hotset.cpu_activation = auto | float | int8

// Session options that kernels read, fixed when the session is created.
struct OpConfig {
  CpuActivation cpu_activation = CpuActivation::by_node;
  int n_threads = 1;
  bool router_weights_norm = true;        // hotset.router_weights_norm
  bool cublaslt = true;                   // hotset.cublaslt=auto
  bool moe_decode_tc = true;              // not ep.cuda.disable_moe_gemv_tc
  bool qmoe_int3_tc = true;               // not ep.cuda.disable_qmoe_int3_tc
  experts::TailRule tail;                 // on only with hotset.approximate_on_cpu
  size_t working_bytes = 0;               // session.moe.offload.host_working_bytes; 0: not set
  experts::ExpertStore* store = nullptr;  // of the session; takes the expert weights that are constants
};

// The node at session creation. Types and constants are known here, shapes of constants too; other shapes are not.
class OpContext {
 public:
  using Warn = std::function<void(const std::string& node, const std::string& text)>;
  OpContext(const model::Graph& graph, const model::Node& node, const OpConfig& config, const Warn& warn)
      : graph_(graph), node_(node), config_(config), warn_(warn) {}
  const model::Node& node() const { return node_; }
  const OpConfig& config() const { return config_; }
  int n_inputs() const { return static_cast<int>(node_.inputs.size()); }
  int n_outputs() const { return static_cast<int>(node_.outputs.size()); }
  bool has_input(int i) const { return i < n_inputs() && node_.inputs[i] != model::kNone; }
  bool has_output(int i) const { return i < n_outputs() && node_.outputs[i] != model::kNone; }
  // The input as a constant of the model, or null. Its data pointer is null when only planning (no weights mapped).
  const Tensor* constant(int i) const {
    const model::Constant* c = i < n_inputs() ? graph_.constant(node_.inputs[i]) : nullptr;
    return c ? &c->tensor : nullptr;
  }
  // The input as the graph declares it, or null. Its type is undefined where the file does not say it.
  const model::Value* declared(int i) const { return has_input(i) ? &graph_.values[node_.inputs[i]] : nullptr; }
  DType declared_type(int i) const { return has_input(i) ? declared(i)->dtype : DType::undefined; }
  // Where it lies, or null when it is no constant of the model.
  const model::Constant* place(int i) const { return i < 0 || i >= n_inputs() ? nullptr : graph_.constant(node_.inputs[i]); }
  // A failure of this node: "node 'x' (Op): text".
#if defined(__GNUC__)
  __attribute__((format(printf, 3, 4)))
#endif
  Status fail(Code code, const char* format, ...) const;
  // To the session's log. The same text of further nodes is left out, so it names no node.
  void warn(const std::string& text) const {
    if (warn_) warn_(node_.text(), text);
  }

 private:
  const model::Graph& graph_;
  const model::Node& node_;
  const OpConfig& config_;
  const Warn& warn_;
};

// Shape inference for one set of input shapes. The planner implements it.
class InferContext {
 public:
  virtual ~InferContext() = default;
  virtual bool has_input(int i) const = 0;
  virtual bool has_output(int i) const = 0;     // false for an output nobody names
  virtual DType dtype(int i) const = 0;         // of input i
  virtual const Shape& shape(int i) const = 0;  // of input i
  // Content of input i if it is known now (a constant, or derived from shapes), else null. Only inputs in
  // Kernel::shape_inputs() may be asked for. When it is null, return defer(i): the node is inferred again right before it
  // runs, when all inputs exist.
  virtual const Tensor* known(int i) const = 0;
  virtual Status defer(int i) = 0;
  virtual void set_output(int i, DType dtype, const Shape& shape) = 0;
  // Output `out` is the same memory as input `in`, from `byte_offset` on; run() does nothing for it.
  virtual void alias(int out, int in, size_t byte_offset = 0) = 0;
  // Output `out` may be written over input `in` (same size) if nobody else needs that input: element i of the output
  // depends on nothing of the input but element i.
  virtual void may_overwrite(int out, int in) = 0;
  // Content of output `out` (set_output comes first), for operators that know it without their inputs' content (Shape).
  virtual void* provide(int out) = 0;
  // Scratch for run(), 64-byte aligned, content undefined; `packing` of it are weights in another form and tiles of products, for
  // the report.
  virtual void set_workspace(size_t bytes, size_t packing = 0) = 0;
  virtual int n_threads() const = 0;
};

// One run of one node.
struct RunContext {
  std::span<Tensor* const> inputs;   // null where absent
  std::span<Tensor* const> outputs;  // null where nobody names it
  void* workspace;
  ThreadPool* pool;
  experts::RunUsage* usage = nullptr;            // of a kernel with experts(); null when nobody counts
  const std::atomic<bool>* cancelled = nullptr;  // of the run; null when it cannot be cancelled

  const Tensor* input(int i) const { return static_cast<size_t>(i) < inputs.size() ? inputs[i] : nullptr; }
  Tensor* output(int i) const { return static_cast<size_t>(i) < outputs.size() ? outputs[i] : nullptr; }
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  // Several threads may infer and run one kernel at once: no member changes after the factory.
  // Checks shapes and sets every named output. Texts need not name the node: the caller adds it.
  virtual Status infer(InferContext& context) const = 0;
  virtual Status run(const RunContext& context) const = 0;
  // Bit i: shapes or kernel choice depend on the content of input i.
  virtual uint32_t shape_inputs() const { return 0; }
  // False when run() and the outputs never depend on the content of any input (Shape, Size).
  virtual bool reads_content() const { return true; }
  // Input whose buffer the caller may also bind as the buffer of output `out` (present K/V over past K/V), or -1. run()
  // then sees equal data pointers.
  virtual int in_place_input(int out) const {
    (void)out;
    return -1;
  }
  // Number of experts whose routes run() adds to RunContext::usage; 0: the operator has none, or their number is not known
  // before a run.
  virtual int64_t experts() const { return 0; }
  // The number of its experts in OpConfig::store, or -1.
  virtual int store_layer() const { return -1; }
  // What computes the node, for reports: the instruction set of its kernels, as cpu_level_name has it ("scalar": loops that any
  // CPU runs), or "view" where nothing is computed.
  virtual std::string_view implementation() const { return "scalar"; }
};

using Factory = Result<std::unique_ptr<Kernel>> (*)(const OpContext& context);

inline constexpr int kLatest = 1 << 20;

// How many inputs and outputs a node may have. The first `required` inputs must be there; a factory checks what is required
// beyond them.
struct Arity {
  int required = -1, inputs = -1, outputs = 1;  // at most
  bool first_output = true;                     // must be named
};
inline constexpr int kAny = 1 << 20;

struct OpEntry {
  std::string_view domain, op_type;
  int since, until;  // opset versions served, inclusive
  Factory create;
  Arity arity;
};

struct OpList {
  const OpEntry* entries;
  size_t count;
};

// Defines the table of one file; `stem` is the file's name without .cpp:  HOTSET_OPS(gather, {...}, {...})
#define HOTSET_OPS(stem, ...)                                 \
  static constexpr OpEntry kEntries_##stem[] = {__VA_ARGS__}; \
  extern const OpList ops_##stem;                             \
  const OpList ops_##stem = {kEntries_##stem, sizeof(kEntries_##stem) / sizeof(kEntries_##stem[0])}

// Before the factory is called: the node's numbers of inputs and outputs, and the kinds of its attributes.
Status check_signature(const OpEntry& entry, const OpContext& context);
// The entry that serves an operator, or null. *known is set when the operator exists in another opset version.
const OpEntry* find_op(std::string_view domain, std::string_view op_type, int opset, bool* known);
bool has_kernel(std::string_view domain, std::string_view op_type);

}  // namespace hotset::ops
