// SPDX-License-Identifier: Apache-2.0
// A loaded model that can run: options, threads, program, and the states of its runs.
#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "experts/expert_store.h"
#include "experts/profile.h"
#include "model/file_watch.h"
#include "session/device_state.h"
#include "session/options.h"
#include "session/plan.h"
#include "session/program.h"
#include "session/usage_options.h"

namespace hotset {

// What the host gave with the options: where messages and progress go.
struct Callbacks {
  int log_level = 4;  // hotset_log_level; 4 is off
  std::function<void(int level, const char* text)> log;
  std::function<bool(const char* stage, uint64_t done, uint64_t total)> progress;  // false: cancel
};

// Cancel flag and tag of a run.
struct RunControl {
  std::atomic<bool> cancelled{false};
  std::string tag;
};

// A graph output of one run. data == null: the session allocates into `owned`.
struct OutputSlot {
  bool requested = false;
  bool on_device = false;  // where the result is wanted
  void* data = nullptr;    // caller's buffer
  size_t bytes = 0;        // its size
  Tensor result;           // set by the run
  void* owned = nullptr;   // allocated by the run with std::malloc; the caller frees it
  bool keep = false;       // binding-owned buffer: `owned` (of owned_bytes) is used again when large enough
  size_t owned_bytes = 0;
  // The same of a session on a GPU: results in device memory, and host buffers of bindings, which are pinned.
  cuda::DeviceMemory device;
  cuda::PinnedMemory pinned;
};

// What the run states of a session hold together.
struct RunMemory {
  std::atomic<size_t> values{0};     // intermediate values
  std::atomic<size_t> workspace{0};  // of nodes
  std::atomic<size_t> packing{0};    // of nodes: weights in another form and tiles of products
  std::atomic<size_t> caches{0};     // buffers that bindings allocated: key and value caches
  std::atomic<size_t> outputs{0};    // and other results
  std::atomic<size_t> plans{0};      // shapes, places and pointers
  std::atomic<size_t> device_values{0}, device_workspace{0}, device_caches{0}, device_outputs{0};
  std::atomic<size_t> pinned{0};  // host values, staging and results of a session on a GPU
};

// A part of a RunMemory: what one holder has of it.
class Share {
 public:
  explicit Share(std::atomic<size_t>& total) : total_(total) {}
  ~Share() { set(0); }
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;
  void set(size_t bytes) {
    total_.fetch_add(bytes - bytes_, std::memory_order_relaxed);  // wraps around when it shrinks
    bytes_ = bytes;
  }

 private:
  std::atomic<size_t>& total_;
  size_t bytes_ = 0;
};

// Inputs, outputs and memory of one run at a time.
struct RunState {
  RunState(const Program& program, std::shared_ptr<RunMemory> memory);
  ~RunState();
  // Brings `memory` up to date with the buffers below; after they changed.
  void count_memory();
  void count_device_memory();
  Plan plan;
  std::vector<Tensor> inputs;  // by graph input; data set by the caller
  std::vector<char> has_input, input_on_device;
  std::vector<OutputSlot> outputs;  // by graph output
  // On a GPU the run comes after what this stream has to do and, if it may return early, that stream's later work after the run.
  cuda::Stream caller_stream = nullptr;  // the default stream
  bool returns_early = false;            // before the device is done, where no result is wanted in host memory
  AlignedBuffer arena;
  std::vector<AlignedBuffer> dynamic;  // values of steps whose shapes were not known before the run
  std::vector<Tensor*> in, out;        // scratch for dynamic steps
  uint64_t bound_layouts = 0;          // plan.n_layouts() of the layout that `arena` is bound to
  std::shared_ptr<RunMemory> memory;
  Share values_share, workspace_share, packing_share, caches_share, outputs_share, plan_share;
  Share device_values_share, device_workspace_share, device_caches_share, device_outputs_share, pinned_share;
  std::unique_ptr<DeviceState> device;   // null without a GPU; behind the slots whose memory its stream may be using
  bool buffers_changed = false;          // since count_memory
  int running = -1;                      // step in progress, for the text of what it throws
  std::vector<experts::RunUsage> usage;  // by expert layer
};

struct NodeTrace {
  int32_t step;
  int64_t start_ns, end_ns;
};

class Session {
 public:
  ~Session();
  static Result<std::unique_ptr<Session>> create(const std::string& path, const Options& options, const Callbacks& callbacks);
  static Result<std::unique_ptr<Session>> create_from_memory(const void* bytes, size_t n_bytes, const Options& options,
                                                             const Callbacks& callbacks);
  // For reports only: no page of a weight is read and nothing can run.
  static Result<std::unique_ptr<Session>> create_for_planning(const std::string& path, const Options& options);

  const Program& program() const { return *program_; }
  const model::Graph& graph() const { return program_->graph(); }
  const Options& options() const { return options_; }
  int input_index(std::string_view name) const;  // -1 when unknown
  int output_index(std::string_view name) const;

  // A state for one run; give it back with release(). Fails after fork().
  Result<std::unique_ptr<RunState>> acquire();
  void release(std::unique_ptr<RunState> state);

  // Runs with what `state` holds. On failure buffers allocated by the run are freed again.
  Status run(RunState& state, const RunControl* control);

  struct Stats {
    std::atomic<uint64_t> runs{0}, failed_runs{0}, nodes{0}, inferences{0}, layouts{0};
  };
  const Stats& stats() const { return stats_; }
  const RunMemory& memory() const { return *memory_; }
  const experts::ExpertStore& store() const { return store_; }
  // Of successful runs, by expert layer of the program.
  const experts::UsageCounters& usage() const { return usage_; }
  const UsageOptions& usage_options() const { return usage_options_; }
  // Routes per token of every expert, as a profile that later sessions can start from.
  Status save_profile(const std::string& path) const;
  std::vector<NodeTrace> last_trace(std::string* tag) const;
  int n_threads() const { return pool_->size(); }
  // Null without a GPU.
  const cuda::Gpu* gpu() const { return gpu_.get(); }
  const DeviceCounts& device_counts() const { return device_counts_; }

 private:
  Session() = default;
  static Result<std::unique_ptr<Session>> finish(std::unique_ptr<model::Model> model, const Options& options, const Callbacks& callbacks,
                                                 bool planning);
  void log(int level, const std::string& text) const;
  void watch_files();
  Status check_inputs(RunState& state) const;
  Status bind_output(RunState& state, int output);
  Status own_output(RunState& state, int output, size_t bytes);
  Status set_inputs(RunState& state);
  Status bind_memory(RunState& state);
  Status copy_outputs(RunState& state);
  Status check_overlaps(const RunState& state) const;
  Status run_steps(RunState& state, const RunControl* control, std::vector<NodeTrace>* trace);
  Status run_dynamic(RunState& state, int s, const RunControl* control);
  Status take_dynamic(RunState& state, int32_t id);
  // device_executor.cpp:
  Status open_device(const Options& options);
  Status finish_device(bool planning);
  Status broken() const;
  Status copy_inputs_to_host(RunState& state);
  Status run_segments(RunState& state, const RunControl* control, std::vector<NodeTrace>* trace);
  Status run_dynamic_on_device(RunState& state, const Step& step, size_t workspace);
  Status copy_output(RunState& state, int output, const Tensor& value, bool from_device);
  void check_device(RunState& state, const Status& status) noexcept;
  Status execute(RunState& state, const RunControl* control);
  std::string place(const RunState& state) const;

  Options options_;
  Callbacks callbacks_;
  std::shared_ptr<cuda::Gpu> gpu_;
  DeviceCounts device_counts_;
  mutable std::mutex broken_mutex_;
  std::string broken_;  // the failure after which the device does not work any more; "" while it does
  std::atomic<bool> is_broken_{false};
  std::unique_ptr<ThreadPool> pool_;
  experts::UsageCounters usage_;
  experts::ExpertStore store_;  // behind the counters that it asks
  std::unique_ptr<Program> program_;
  model::FileWatch watch_;
  std::unordered_map<std::string_view, int> input_names_, output_names_;
  std::shared_ptr<RunMemory> memory_ = std::make_shared<RunMemory>();
  std::mutex states_mutex_;
  std::vector<std::unique_ptr<RunState>> states_;
  Stats stats_;
  // expert_usage.cpp:
  std::string beside_model(const std::string& path) const;
  std::vector<experts::ProfileNode> profile_nodes() const;
  Status start_usage();
  void save_counters() const noexcept;
  void commit_usage(RunState& state, bool succeeded) noexcept;
  void log_usage(const RunState& state);
  UsageOptions usage_options_;
  std::atomic<bool> warned_negative_{false};
  bool trace_ = false;
  int64_t process_ = 0;
  mutable std::mutex trace_mutex_;
  std::vector<NodeTrace> trace_events_;
  std::string trace_tag_;
};

}  // namespace hotset
