// SPDX-License-Identifier: Apache-2.0
// Memory, copies, launches and graphs of one run on a GPU.
#include "session/device_state.h"

#include <cstring>

namespace hotset {

Result<std::unique_ptr<DeviceState>> DeviceState::make(std::shared_ptr<cuda::Gpu> gpu, DeviceCounts* counts, bool use_graphs) {
  std::unique_ptr<DeviceState> state(new DeviceState);
  HOTSET_ASSIGN(state->stream_, cuda::OwnStream::make(gpu));
  HOTSET_ASSIGN(state->callers_, cuda::OwnEvent::make(gpu));
  HOTSET_ASSIGN(state->ours_, cuda::OwnEvent::make(gpu));
  state->gpu_ = std::move(gpu);
  state->counts_ = counts;
  state->use_graphs_ = use_graphs;
  return state;
}

Status DeviceState::bind(Plan& plan) {
  segments_.clear();  // their graphs go before the memory that they know
  if (arena_.bytes() < plan.device_arena_bytes()) {
    arena_.give();
    HOTSET_ASSIGN(arena_, cuda::DeviceMemory::take(gpu_, plan.device_arena_bytes(), cuda::Purpose::values,
                                                   "the values and the workspace of this run"));
  }
  if (host_arena_.bytes() < plan.arena_bytes()) {
    host_arena_.give();
    HOTSET_ASSIGN(host_arena_, cuda::PinnedMemory::take(gpu_, plan.arena_bytes(), "host values of this run"));
  }
  plan.bind_arena(host_arena_.data(), arena_.data());
  find_segments(plan);
  return {};
}

void DeviceState::find_segments(Plan& plan) {
  const std::vector<Plan::ActiveStep>& active = plan.active();
  for (size_t a = 0; a < active.size(); ++a) {
    const bool on_host = plan.program().steps()[active[a].step].kind == StepKind::host;
    if (segments_.empty() || segments_.back().on_host != on_host) segments_.emplace_back(a, on_host);
    segments_.back().last = a + 1;
  }
  for (Segment& segment : segments_)
    if (!segment.on_host) describe(plan, segment);
}

// What may differ from run to run within one layout, and whether a graph can follow it.
void DeviceState::describe(Plan& plan, Segment& segment) {
  for (size_t a = segment.first; a < segment.last; ++a) {
    const Plan::ActiveStep& active = plan.active()[a];
    const Step& step = plan.program().steps()[active.step];
    const auto is_callers = [&](model::ValueId id) {
      const int32_t root = plan.value(id).root;
      return root >= 0 && (plan.value(root).place == Place::input || plan.value(root).place == Place::output);
    };
    const auto watch = [&](const std::vector<model::ValueId>& ids) {
      for (model::ValueId id : ids)
        if (id != model::kNone && is_callers(id)) segment.moving.emplace_back(&plan.value(id).tensor, nullptr);
    };
    if (step.kind == StepKind::upload) {
      if (active.staging) segment.staged.push_back(&active);
      // Memory of the caller is not pinned: a copy from there waits, which a graph cannot.
      if (!active.staging && is_callers(step.inputs[0])) segment.can_capture = false;
    } else {
      watch(step.inputs);
      for (model::ValueId id : step.inputs) {  // the signature knows about constants and what shapes depend on, not about others
        if (!step.reads_host_content || id == model::kNone || plan.is_on_device(id)) continue;
        const int32_t root = plan.value(id).root;
        if (root >= 0 && plan.value(root).place != Place::constant && !plan.value(root).is_known) segment.can_capture = false;
      }
    }
    watch(step.outputs);
    if (step.kind == StepKind::download && is_callers(step.outputs[0])) segment.can_capture = false;
  }
}

bool DeviceState::is_like_before(Plan& plan, Segment& segment) {
  bool same = segment.signature == plan.signature();
  segment.signature = plan.signature();
  for (auto& [tensor, seen] : segment.moving) {
    same &= tensor->data == seen;
    seen = tensor->data;
  }
  return same;
}

// What cannot be captured runs step by step, where a failure is reported that is not the capture's.
Status DeviceState::capture(Plan& plan, Segment& segment) {
  auto graph = cuda::CapturedGraph::capture(gpu_, stream_.get(), [&]() -> Status {
    for (size_t a = segment.first; a < segment.last; ++a) HOTSET_TRY(enqueue(plan, plan.active()[a]));
    return {};
  });
  if (!graph.ok()) {
    segment.can_capture = false;
    counts_->capture_failures.fetch_add(1, std::memory_order_relaxed);
    return {};
  }
  segment.graph = std::move(graph.value());
  counts_->captures.fetch_add(1, std::memory_order_relaxed);
  return {};
}

Status DeviceState::replay(Segment& segment) {
  for (const Plan::ActiveStep* active : segment.staged) {
    const Tensor& source = *active->context.inputs[0];
    std::memcpy(active->staging, source.data, source.bytes());
  }
  pending_ = true;
  HOTSET_TRY(segment.graph.launch(stream_.get()));
  counts_->replays.fetch_add(1, std::memory_order_relaxed);
  return {};
}

Status DeviceState::enqueue(Plan& plan, Plan::ActiveStep& active) {
  const Step& step = plan.program().steps()[active.step];
  if (step.kind == StepKind::device) {
    if (Status status = launch(step, active.context.inputs, active.context.outputs, active.context.workspace); !status.ok())
      return std::move(status).at(plan.program().node(step).text());
    return {};
  }
  const Tensor &from = *active.context.inputs[0], &to = *active.context.outputs[0];
  const size_t bytes = from.bytes();
  Status status;
  if (step.kind == StepKind::download) {
    status = download(to.data, from.data, bytes);
  } else if (active.staging) {
    std::memcpy(active.staging, from.data, bytes);
    status = upload(to.data, active.staging, bytes);
  } else {
    status = upload(to.data, from.data, bytes);
  }
  return std::move(status).at(plan.program().node(step).text());
}

Status DeviceState::launch(const Step& step, std::span<Tensor* const> in, std::span<Tensor* const> out, void* workspace) {
  pending_ = true;
  counts_->launches.fetch_add(1, std::memory_order_relaxed);
  return step.device->launch({*gpu_, stream_.get(), in, out, workspace, reinterpret_cast<void*>(step.state)});
}

Status DeviceState::upload(void* to, const void* from, size_t bytes) {
  if (!bytes) return {};
  pending_ = true;
  counts_->uploaded_bytes.fetch_add(bytes, std::memory_order_relaxed);
  return gpu_->check(cuda::driver().memcpy_htod_async(reinterpret_cast<uint64_t>(to), from, bytes, stream_.get()), "cuMemcpyHtoDAsync");
}

Status DeviceState::download(void* to, const void* from, size_t bytes) {
  if (!bytes) return {};
  pending_ = true;
  counts_->downloaded_bytes.fetch_add(bytes, std::memory_order_relaxed);
  return gpu_->check(cuda::driver().memcpy_dtoh_async(to, reinterpret_cast<uint64_t>(from), bytes, stream_.get()), "cuMemcpyDtoHAsync");
}

Status DeviceState::copy_on_device(void* to, const void* from, size_t bytes) {
  if (!bytes || to == from) return {};
  pending_ = true;
  return gpu_->check(
      cuda::driver().memcpy_dtod_async(reinterpret_cast<uint64_t>(to), reinterpret_cast<uint64_t>(from), bytes, stream_.get()),
      "cuMemcpyDtoDAsync");
}

Status DeviceState::come_after(cuda::Stream stream) {
  HOTSET_TRY(callers_.record(stream));
  return gpu_->check(cuda::driver().stream_wait_event(stream_.get(), callers_.get(), 0), "cuStreamWaitEvent");
}

Status DeviceState::go_before(cuda::Stream stream) {
  HOTSET_TRY(ours_.record(stream_.get()));
  return gpu_->check(cuda::driver().stream_wait_event(stream, ours_.get(), 0), "cuStreamWaitEvent");
}

Status DeviceState::wait() {
  if (!pending_) return {};
  counts_->waits.fetch_add(1, std::memory_order_relaxed);
  HOTSET_TRY(stream_.synchronize());
  pending_ = false;
  return {};
}

bool DeviceState::drain() {
  pending_ = false;
  return stream_.synchronize().ok();
}

Result<void*> DeviceState::input_copy(int i, size_t bytes) {
  if (input_copies_.size() <= static_cast<size_t>(i)) input_copies_.resize(static_cast<size_t>(i) + 1);
  cuda::PinnedMemory& memory = input_copies_[static_cast<size_t>(i)];
  if (memory.bytes() < bytes) {
    memory.give();
    HOTSET_ASSIGN(memory, cuda::PinnedMemory::take(gpu_, bytes, "the host's copy of an input"));
  }
  return static_cast<void*>(memory.data());
}

Result<void*> DeviceState::take(size_t bytes) {
  HOTSET_ASSIGN(cuda::DeviceMemory memory,
                cuda::DeviceMemory::take(gpu_, bytes, cuda::Purpose::values, "a value whose size the run decides"));
  dynamic_.push_back(std::move(memory));
  return dynamic_.back().data();
}

size_t DeviceState::values_bytes() const {
  size_t n = arena_.bytes();
  for (const cuda::DeviceMemory& memory : dynamic_) n += memory.bytes();
  return n;
}

size_t DeviceState::pinned_bytes() const {
  size_t n = host_arena_.bytes();
  for (const cuda::PinnedMemory& memory : input_copies_) n += memory.bytes();
  return n;
}

}  // namespace hotset
