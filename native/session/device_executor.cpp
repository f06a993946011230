// SPDX-License-Identifier: Apache-2.0
// The parts of a session and of a run that concern a GPU.
#include <charconv>
#include <cstring>

#include "cuda/fatbins.h"
#include "session/session.h"

namespace hotset {
namespace {

constexpr int kLogInfo = 1, kLogWarning = 2;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Status Session::open_device(const Options& options) {
  const int index = options.device_index();
  if (index < 0) return {};
  auto gpu = cuda::Gpu::open(index);
  if (!gpu.ok()) return gpu.take_status().at("option 'hotset.device'");
  HOTSET_FAIL_IF(cuda::kFatbinCount == 0, unsupported, "option 'hotset.device': this build of hotset has no device code");
  gpu_ = std::move(gpu.value());
  return {};
}

// Once the program is there: what stays on the host is reported, what the device needs goes there.
Status Session::finish_device(bool planning) {
  std::string list;
  size_t n = 0;
  for (const Step& step : program_->steps()) {
    if (!step.is_fallback) continue;
    if (n++ < 4) list += (list.empty() ? "" : "; ") + program_->node(step).text() + ": " + step.on_host;
  }
  if (n > 4) list += "; and " + std::to_string(n - 4) + " more";
  HOTSET_FAIL_IF(n && !planning && options_.get_bool("session.disable_cpu_ep_fallback"), unsupported,
                 "session.disable_cpu_ep_fallback is 1, but %zu nodes have no device kernel: %s", n, list.c_str());
  if (n) log(kLogWarning, format_text("%zu nodes run on the CPU: ", n) + list);
  if (planning) return {};
  const auto progress = [this](uint64_t done, uint64_t total) {
    return !callbacks_.progress || callbacks_.progress("upload", done, total);
  };
  HOTSET_TRY(program_->upload_constants(*pool_, progress));
  const Placement& p = *program_->placement();
  log(kLogInfo, format_text("%s holds %zu bytes of weights and %zu bytes of experts", gpu_->info().name.c_str(), p.weights.bytes(),
                            p.experts.bytes()));
  return {};
}

// Content that shapes, or nodes on the host, depend on.
Status Session::copy_inputs_to_host(RunState& state) {
  for (size_t i = 0; i < state.inputs.size(); ++i) {
    if (!state.input_on_device[i] || !program_->placement()->host_reads_input[i]) continue;
    const Tensor& from = state.inputs[i];
    HOTSET_ASSIGN(void* const to, state.device->input_copy(static_cast<int>(i), from.bytes()));
    HOTSET_TRY(state.device->download(to, from.data, from.bytes()));
  }
  return state.device->wait();
}

Status Session::run_segments(RunState& state, const RunControl* control, std::vector<NodeTrace>* trace) {
  DeviceState& device = *state.device;
  const auto go_on = [&](const Plan::ActiveStep& active) -> Status {
    HOTSET_FAIL_IF(control && control->cancelled.load(std::memory_order_relaxed), cancelled, "the run was cancelled");
    state.running = active.step;
    return {};
  };
  for (DeviceState::Segment& segment : device.segments()) {
    if (!segment.on_host && !trace) {
      HOTSET_TRY(device.run(state.plan, segment, go_on));
      continue;
    }
    for (size_t a = segment.first; a < segment.last; ++a) {
      Plan::ActiveStep& active = state.plan.active()[a];
      HOTSET_TRY(go_on(active));
      if (segment.on_host) HOTSET_TRY(device.wait());
      const int64_t start = trace ? now_ns() : 0;
      if (segment.on_host) {
        const Step& step = program_->steps()[active.step];
        active.context.cancelled = control ? &control->cancelled : nullptr;
        if (Status status = step.kernel->run(active.context); !status.ok()) return std::move(status).at(program_->node(step).text());
      } else {
        HOTSET_TRY(device.enqueue(state.plan, active));
        HOTSET_TRY(device.wait());  // so that the time is the node's
      }
      if (trace) trace->push_back({active.step, start, now_ns()});
    }
  }
  return {};
}

// A copy or a launch of a step of the dynamic part, whose inputs and outputs are in `state.in` and `state.out`.
Status Session::run_dynamic_on_device(RunState& state, const Step& step, size_t workspace_bytes) {
  DeviceState& device = *state.device;
  if (step.kind == StepKind::upload) return device.upload(state.out[0]->data, state.in[0]->data, state.in[0]->bytes());
  if (step.kind == StepKind::download) return device.download(state.out[0]->data, state.in[0]->data, state.in[0]->bytes());
  HOTSET_ASSIGN(void* const workspace, device.take(workspace_bytes));
  return device.launch(step, state.in, state.out, workspace);
}

// Copies a value to the buffer of output `o`, on whichever sides they lie. Copies of the device are only enqueued.
Status Session::copy_output(RunState& state, int o, const Tensor& value, bool from_device) {
  const OutputSlot& slot = state.outputs[o];
  const size_t bytes = value.bytes();
  if (from_device) {
    return slot.on_device ? state.device->copy_on_device(slot.result.data, value.data, bytes)
                          : state.device->download(slot.result.data, value.data, bytes);
  }
  if (slot.on_device) return state.device->upload(slot.result.data, value.data, bytes);
  std::memmove(slot.result.data, value.data, bytes);
  return {};
}

// After a failed run: waits for what it left in the stream, so that nobody's buffers are written later, and finds out whether
// the device still works.
void Session::check_device(RunState& state, const Status& status) noexcept {
  const cuda::Current current(*gpu_);
  if (state.device->drain()) return;
  const std::lock_guard lock(broken_mutex_);
  try {
    if (broken_.empty()) broken_ = status.text();
  } catch (const std::bad_alloc&) {  // unusable all the same
  }
  is_broken_.store(true, std::memory_order_release);
}

Status Session::broken() const {
  const std::lock_guard lock(broken_mutex_);
  return Status(Code::device,
                "the session is unusable: the device failed in an earlier run (" + broken_ + "); it works again in a new process");
}

}  // namespace hotset
