// SPDX-License-Identifier: Apache-2.0
// Shapes and memory of one run: made for one set of input shapes, kept, and redone only where an input shape changed.
//
// One block of memory serves all intermediate values of a run:
//
//     0            workspace_bytes                                             arena_bytes
//     | workspace  | value a        | value b | free | value c            |
//       (one node      placed by lifetime: a value's bytes are reused after its last reader
//       at a time)
//
// Values that are views share the place of what they view; requested outputs live in the caller's buffers; small values
// that shapes depend on are computed here and hold their content in the plan.
//
// A session on a GPU has two such blocks, one on each side; a value lies in the block of its side. Behind the values of the host's
// block lies staging: what copies to the device start from when the source is not in the block, because the caller's memory and the
// plan's are not pinned and move.
#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

#include "session/program.h"

namespace hotset {

enum class Place : uint8_t { none, constant, input, known, arena, output, view };

struct PlanValue {
  Tensor tensor;  // data is set for every place but `none` while a run executes
  Place place = Place::none;
  bool is_known = false;  // content below is valid
  int32_t view_of = -1;   // value whose memory this one is part of, by the operator's alias()
  size_t view_offset = 0;
  int32_t overwrites = -1;  // value this one may be written over
  int32_t output = -1;      // graph output index when requested
  int32_t root = -1;        // the value whose place is used; itself unless a view
  size_t root_offset = 0;
  int32_t last_reader = -1;
  size_t bytes = 0, offset = 0;              // in the arena
  std::vector<std::byte> content, previous;  // of a known value; previous: before the last inference
  Tensor known_tensor;                       // view of content, for inference
};

class Plan {
 public:
  static constexpr size_t kMaxBytes = size_t{1} << 47;  // of one value, and of all together: what can be addressed
  explicit Plan(const Program& program);

  // Input `i` of the graph: type, shape, and data when the program needs its content for shapes. `on_device`: where the caller has
  // it in device memory, else null; its content is in tensor.data too where Placement::host_reads_input.
  Status set_input(int i, const Tensor& tensor, void* on_device = nullptr);
  // `on_device`: the caller wants it in device memory.
  void set_requested(int output, bool requested, bool on_device = false);
  // Infers what changed and lays out memory when sizes changed. Cheap when nothing did.
  Status prepare();

  struct ActiveStep {
    int32_t step;
    ops::RunContext context;
    void* staging = nullptr;  // of an upload whose source is not in the arena
    size_t staging_offset = kNoStaging;
  };
  static constexpr size_t kNoStaging = ~size_t{0};
  // Larger inputs are copied to the device from where the caller has them.
  static constexpr size_t kMostStaged = size_t{1} << 20;
  // Steps with something to compute, up to first_dynamic().
  std::vector<ActiveStep>& active() { return active_; }
  // First step whose shapes need the content of a value that is computed by the run; steps().size() if none.
  int first_dynamic() const { return first_dynamic_; }
  // Infers step `s` with all inputs computed; outputs get shapes. For steps from first_dynamic() on.
  Status infer_dynamic(int s);
  // Whether a requested output needs step `s` of the dynamic part, and the branch it stands in is the one that runs.
  bool runs_dynamic(int s);

  size_t arena_bytes() const { return arena_bytes_; }
  size_t workspace_bytes(int s) const { return workspace_[s]; }
  // Of the arena, what nodes use while they run; of that, at most, weights in another form and tiles of products.
  size_t workspace_bytes() const { return workspace_max_; }
  size_t packing_bytes() const { return std::min(packing_, workspace_max_); }
  size_t device_arena_bytes() const { return device_arena_bytes_; }
  size_t device_workspace_bytes() const { return device_workspace_max_; }
  // Points every value of the arenas, their views and the active steps' workspace at blocks of memory.
  void bind_arena(void* memory, void* device_memory = nullptr);
  // Views of inputs and outputs follow their roots; call after input and output data pointers were set.
  void bind_views();

  // Host memory of the plan itself: shapes, places, known contents.
  size_t structure_bytes() const;

  PlanValue& value(int32_t id) { return values_[id]; }
  const Program& program() const { return program_; }
  // (output index, value) pairs of requested outputs that must be copied after the run (constants, inputs, views).
  const std::vector<std::pair<int, int32_t>>& copies() const { return copies_; }
  uint64_t n_inferred() const { return n_inferred_; }
  uint64_t n_layouts() const { return n_layouts_; }
  // Changes when a launch of the device would differ in more than the addresses of inputs and outputs.
  uint64_t signature() const { return n_layouts_ + n_host_changes_; }
  bool is_on_device(int32_t id) const { return program_.on_device(id); }
  // Whether an upload has nothing to do, because the caller has its input in device memory.
  bool is_bound_copy(const Step& step) const;
  // Infers a step whose inputs are all constants; used to fold. *deferred: it cannot be folded.
  Status infer_constant(const Step& step, bool* deferred);
  size_t constant_workspace_bytes() const { return workspace_constant_; }
  void set_constant(int32_t id, const Tensor& tensor);

 private:
  friend class StepInfer;
  enum class Branch { taken, not_taken, unknown };
  Branch branch_of(const Step& step, bool dynamic);
  Status infer_step(const Step& step, size_t* workspace, bool dynamic, bool* deferred);
  Status evaluate(const Step& step, size_t workspace);
  const Tensor* known(int32_t id, bool dynamic);
  Status layout();  // layout.cpp, with its steps in order:
  void find_live_steps();
  void place_values();
  void find_last_readers();
  void place_outputs();
  void join_overwritten();
  Status assign_offsets();
  void list_active_steps();

  const Program& program_;
  std::vector<PlanValue> values_;
  std::vector<char> dirty_;  // by value: type, shape or known content changed since its readers were inferred
  std::vector<size_t> workspace_;
  std::vector<char> inferred_, live_, skipped_, runs_;  // by step; skipped: in a branch that does not run; runs: computes something
  std::vector<ActiveStep> active_;
  std::vector<Tensor*> pointers_;
  std::vector<std::pair<int, int32_t>> copies_;
  std::vector<int32_t> io_views_;
  std::vector<char> requested_, wanted_on_device_;  // by graph output
  std::vector<char> bound_on_device_;               // by value: an input that the caller has in device memory
  int first_dynamic_ = 0;
  bool layout_dirty_ = true, any_dirty_ = true;
  size_t arena_bytes_ = 0, workspace_max_ = 0, workspace_constant_ = 0, packing_ = 0;
  size_t device_arena_bytes_ = 0, device_workspace_max_ = 0;
  uint64_t n_inferred_ = 0, n_layouts_ = 0, n_host_changes_ = 0;
  struct Before {
    DType dtype;
    Shape shape;
    bool is_known;
    int32_t view_of, overwrites;
    size_t view_offset;
  };
  std::vector<Before> before_;
  struct {
    std::vector<Tensor> inputs, outputs;
    std::vector<Tensor*> in, out;
  } scratch_;
  ThreadPool inline_pool_{1};
};

}  // namespace hotset
