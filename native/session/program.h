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
#include "ops/device_kernel.h"
#include "ops/op.h"
#include "session/placement.h"

namespace hotset {

enum class StepKind : uint8_t {
  host,      // Kernel::run
  device,    // DeviceKernel::launch, or nothing for a view
  upload,    // copies a host value to the device
  download,  // and back
};

struct Step {
  std::unique_ptr<ops::Kernel> kernel;
  int32_t node = -1;  // index into the graph's nodes
  std::vector<model::ValueId> inputs, outputs;
  uint32_t shape_inputs = 0;
  int32_t expert_layer = -1;  // index into Program::expert_layers()
  // Of a session on a GPU:
  StepKind kind = StepKind::host;
  bool reads_host_content = false;  // launch() looks at inputs in host memory
  bool is_fallback = false;         // on the host for want of a device kernel, not because it belongs there
  std::unique_ptr<ops::DeviceKernel> device;
  uint64_t state = 0;   // device address of what the kernel keeps
  std::string on_host;  // why it runs on the host
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
    std::shared_ptr<cuda::Gpu> gpu;                // null: everything runs on the host
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
  // What runs where; null without a GPU.
  const Placement* placement() const { return placement_.get(); }
  bool on_device(model::ValueId id) const { return placement_ && placement_->on_device[id]; }
  size_t n_nodes_in_file() const { return n_nodes_in_file_; }
  size_t folded_bytes() const { return folded_bytes_; }

  // Computes the weights-only values that were too large to compute at creation, once. Their sources' pages are dropped.
  Status prepare_lazy(ThreadPool& pool);
  bool is_prepared() const { return lazy_done_.load(std::memory_order_acquire); }
  // Takes device memory for the constants that the GPU reads, fills it, and lets the device kernels prepare. `progress` gets the
  // bytes that are through and all of them, and returns false to stop.
  Status upload_constants(ThreadPool& pool, const std::function<bool(uint64_t done, uint64_t total)>& progress);
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
  Status place(const Settings& settings);  // placement.cpp
  Status prepare_device_kernels(size_t state_bytes, size_t largest_state);
  friend class Placer;

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
  std::unique_ptr<Placement> placement_;
  size_t n_nodes_in_file_ = 0, folded_bytes_ = 0, folded_bound_ = 0;
  std::mutex lazy_mutex_;
  std::atomic<bool> lazy_done_{false};
};

}  // namespace hotset
