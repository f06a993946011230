// SPDX-License-Identifier: Apache-2.0
// What a run holds of a GPU: a stream, memory on both sides, and graphs of the work that repeats.
//
// The steps of a run form segments: steps of the host, or work that goes to the stream one after the other. Only before a segment of
// the host, and at the end of the run, somebody waits.
//
//     host: ReduceSum, Sub │ stream: upload seqlens, Gather, MatMulNBits, … │ wait │ host: a node without device kernel │ stream: …
//
// A segment of the stream that comes again with the same shapes and addresses is captured as a graph the second time and launched as
// one from then on. What it uploads lies in pinned staging, which is filled anew before each launch.
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "cuda/device.h"
#include "cuda/graph.h"
#include "session/plan.h"

namespace hotset {

struct DeviceCounts {
  std::atomic<uint64_t> launches{0}, captures{0}, replays{0}, capture_failures{0}, waits{0}, uploaded_bytes{0}, downloaded_bytes{0};
};

class DeviceState {
 public:
  static Result<std::unique_ptr<DeviceState>> make(std::shared_ptr<cuda::Gpu> gpu, DeviceCounts* counts, bool use_graphs);

  // Memory for the plan's layout, in which its values are placed, and the segments of its steps.
  Status bind(Plan& plan);

  struct Segment {
    Segment(size_t from, bool of_host) : first(from), last(from), on_host(of_host) {}
    size_t first, last;  // of Plan::active()
    bool on_host;
    bool can_capture = true;
    std::vector<std::pair<const Tensor*, void*>> moving;  // in buffers of the caller, and where they were
    std::vector<const Plan::ActiveStep*> staged;          // uploads that start from staging
    uint64_t signature = 0;
    int n_same = 0;  // runs before this one that were like it
    cuda::CapturedGraph graph;
  };
  std::vector<Segment>& segments() { return segments_; }
  // Enqueues a segment of the stream: as a graph, or step by step after asking `go_on() -> Status` before each.
  template <class GoOn>
  Status run(Plan& plan, Segment& segment, GoOn&& go_on);
  // Enqueues one step of it.
  Status enqueue(Plan& plan, Plan::ActiveStep& active);
  Status launch(const Step& step, std::span<Tensor* const> in, std::span<Tensor* const> out, void* workspace);
  Status upload(void* to, const void* from, size_t bytes);
  Status download(void* to, const void* from, size_t bytes);
  Status copy_on_device(void* to, const void* from, size_t bytes);
  // What is enqueued from now on comes after the work that `stream` has now.
  Status come_after(cuda::Stream stream);
  // What `stream` gets from now on comes after what was enqueued.
  Status go_before(cuda::Stream stream);
  // Waits for all that was enqueued.
  Status wait();
  // The same after a failure. False: the device does not work any more.
  bool drain();

  // Host memory that holds a copy of graph input `i`, which the caller has in device memory.
  Result<void*> input_copy(int i, size_t bytes);
  // Device memory for a value of a step whose shapes were not known before the run; until the next forget().
  Result<void*> take(size_t bytes);
  void forget() { dynamic_.clear(); }

  const std::shared_ptr<cuda::Gpu>& gpu() const { return gpu_; }
  size_t values_bytes() const;  // device memory of values and workspace
  size_t pinned_bytes() const;

 private:
  DeviceState() = default;
  void find_segments(Plan& plan);
  void describe(Plan& plan, Segment& segment);
  bool is_like_before(Plan& plan, Segment& segment);
  Status capture(Plan& plan, Segment& segment);
  Status replay(Segment& segment);

  std::shared_ptr<cuda::Gpu> gpu_;
  DeviceCounts* counts_ = nullptr;
  bool use_graphs_ = true, pending_ = false;
  cuda::OwnStream stream_;
  cuda::OwnEvent callers_, ours_;  // points in the stream of the caller and in ours
  cuda::DeviceMemory arena_;
  cuda::PinnedMemory host_arena_;
  std::vector<cuda::PinnedMemory> input_copies_;
  std::vector<cuda::DeviceMemory> dynamic_;
  std::vector<Segment> segments_;
};

template <class GoOn>
Status DeviceState::run(Plan& plan, Segment& segment, GoOn&& go_on) {
  HOTSET_TRY(go_on(plan.active()[segment.first]));
  if (!is_like_before(plan, segment)) {
    segment.graph.drop();
    segment.n_same = 0;
  }
  if (use_graphs_ && segment.can_capture) {
    if (!segment.graph && segment.n_same > 0) HOTSET_TRY(capture(plan, segment));
    if (segment.graph) return replay(segment);
  }
  ++segment.n_same;
  for (size_t a = segment.first; a < segment.last; ++a) {
    HOTSET_TRY(go_on(plan.active()[a]));
    HOTSET_TRY(enqueue(plan, plan.active()[a]));
  }
  return {};
}

}  // namespace hotset
