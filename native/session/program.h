// SPDX-License-Identifier: Apache-2.0
// A model made ready to execute: kernels in order, constants folded. Shared by all runs, read-only while they run.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "model/graph.h"
#include "ops/op.h"

namespace hotset {

struct Step {
  std::unique_ptr<ops::Kernel> kernel;
  int32_t node = -1;  // index into the graph's nodes
  std::vector<model::ValueId> inputs, outputs;
  uint32_t shape_inputs = 0;
  int32_t expert_layer = -1;  // index into Program::expert_layers()
};

// A buffer with the alignment kernels expect. Huge pages are asked for when it is large.
class AlignedBuffer {
 public:
  static constexpr size_t kAlignment = 64;
  AlignedBuffer() = default;
  // Throws std::bad_alloc.
  explicit AlignedBuffer(size_t bytes);
  void* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(void* p) const;
  };
  std::unique_ptr<void, Free> data_;
  size_t bytes_ = 0;
};

class Program {
 public:
  struct Settings {
    ops::OpConfig config;
    bool fuse = true;
    bool run_constants = true;                     // false when only planning: nothing is computed
    std::function<void(const std::string&)> warn;  // each text once
  };
  static Result<std::unique_ptr<Program>> build(std::unique_ptr<model::Model> model, const Settings& settings, ThreadPool& pool);

  const model::Graph& graph() const { return model_->graph; }
  const model::Model& model() const { return *model_; }
  const ops::OpConfig& config() const { return config_; }
  const std::vector<Step>& steps() const { return steps_; }
  // Steps whose routes are counted, in order.
  const std::vector<int32_t>& expert_layers() const { return expert_layers_; }
  const model::Node& node(const Step& step) const { return graph().nodes[step.node]; }
  // Content of a constant value; data is null for a lazy one before prepare_lazy and when weights are not mapped.
  const Tensor* constant(model::ValueId id) const { return is_constant_[id] ? &constants_[id] : nullptr; }
  // True when shapes depend on the content of the value.
  bool needed(model::ValueId id) const { return needed_[id]; }
  // For each graph output, the graph input whose buffer may be bound to it as well, or -1.
  const std::vector<int>& in_place_inputs() const { return in_place_inputs_; }
  // Operators without a kernel, each once; empty but when only planning.
  const std::vector<std::string>& missing_operators() const { return missing_; }
  size_t n_nodes_in_file() const { return n_nodes_in_file_; }
  size_t folded_bytes() const { return folded_bytes_; }

  // Computes the weights-only values that were too large to compute at creation, once. Their sources' pages are dropped.
  Status prepare_lazy(ThreadPool& pool);
  bool is_prepared() const { return lazy_done_.load(std::memory_order_acquire); }
  // Host memory of the graph and of the program's own tables.
  size_t structure_bytes() const;
  // Bytes that folded constants take once prepare_lazy has run.
  size_t folded_bound() const { return folded_bound_; }

 private:
  Program() = default;
  void align_constants();
  Status create_kernels(const Settings& settings);
  void mark_needed();
  void find_in_place();
  Status fold(const Settings& settings, ThreadPool& pool);
  Status run_lazy(Step& step, ThreadPool& pool);

  std::unique_ptr<model::Model> model_;
  ops::OpConfig config_;
  std::vector<Step> steps_;
  std::vector<Step> lazy_;
  std::vector<std::string> missing_;
  size_t n_lazy_done_ = 0;
  std::vector<Tensor> constants_;
  std::vector<char> is_constant_, needed_;
  std::vector<int> in_place_inputs_;
  std::vector<int32_t> expert_layers_;
  std::vector<AlignedBuffer> folded_;
  size_t n_nodes_in_file_ = 0, folded_bytes_ = 0, folded_bound_ = 0;
  std::mutex lazy_mutex_;
  std::atomic<bool> lazy_done_{false};
};

}  // namespace hotset
