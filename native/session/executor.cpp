// SPDX-License-Identifier: Apache-2.0
// One run: bind buffers, run the nodes in order, hand over the outputs.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "session/session.h"

namespace hotset {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string expected_text(const model::Value& v) {
  std::string text = "[";
  for (size_t i = 0; i < v.shape.size(); ++i) {
    if (i) text += ",";
    text += v.shape[i].value >= 0 ? std::to_string(v.shape[i].value) : v.shape[i].name.empty() ? "?" : v.shape[i].name;
  }
  return text + "]";
}

}  // namespace

Status Session::check_inputs(RunState& state) const {
  const model::Graph& graph = program_->graph();
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const model::Value& declared = graph.values[graph.inputs[i]];
    HOTSET_FAIL_IF(!state.has_input[i], invalid_argument, "input '%s' is missing", declared.name.c_str());
    const Tensor& given = state.inputs[i];
    HOTSET_FAIL_IF(given.dtype != declared.dtype, invalid_argument, "input '%s': element type %s, expected %s", declared.name.c_str(),
                   dtype_name(given.dtype), dtype_name(declared.dtype));
    if (!declared.has_shape) continue;
    bool fits = static_cast<size_t>(given.shape.rank) == declared.shape.size();
    for (size_t d = 0; fits && d < declared.shape.size(); ++d)
      fits = declared.shape[d].value < 0 || declared.shape[d].value == given.shape.dim[d];
    HOTSET_FAIL_IF(!fits, invalid_argument, "input '%s': shape %s, expected %s", declared.name.c_str(), to_text(given.shape).c_str(),
                   expected_text(declared).c_str());
  }
  return {};
}

// Caller buffers may not overlap, but for an output over the input that its operator updates in place.
Status Session::check_overlaps(const RunState& state) const {
  const model::Graph& graph = program_->graph();
  for (size_t o = 0; o < state.outputs.size(); ++o) {
    const OutputSlot& slot = state.outputs[o];
    const char* const from = static_cast<const char*>(slot.result.data);
    if (!slot.requested || !slot.data || !from) continue;
    const char* const to = from + slot.result.bytes();
    const auto overlaps = [&](const void* data, size_t bytes) {
      const char* other = static_cast<const char*>(data);
      return other && other < to && from < other + bytes;
    };
    for (size_t i = 0; i < state.inputs.size(); ++i) {
      if (!overlaps(state.inputs[i].data, state.inputs[i].bytes())) continue;
      if (program_->in_place_inputs()[o] == static_cast<int>(i) && state.inputs[i].data == slot.data) continue;
      return fail(Code::invalid_argument, "the buffer of output '%s' overlaps input '%s', which its operator cannot update in place",
                  graph.values[graph.outputs[o]].name.c_str(), graph.values[graph.inputs[i]].name.c_str());
    }
    for (size_t p = 0; p < o; ++p)
      if (state.outputs[p].requested && state.outputs[p].data && overlaps(state.outputs[p].result.data, state.outputs[p].result.bytes()))
        return fail(Code::invalid_argument, "the buffers of outputs '%s' and '%s' overlap", graph.values[graph.outputs[p]].name.c_str(),
                    graph.values[graph.outputs[o]].name.c_str());
  }
  return {};
}

// Gives output `o` its memory once its shape is known.
Status Session::bind_output(RunState& state, int o) {
  OutputSlot& slot = state.outputs[o];
  const PlanValue& v = state.plan.value(graph().outputs[o]);
  slot.result.dtype = v.tensor.dtype;
  slot.result.shape = v.tensor.shape;
  if (slot.data) {
    const size_t element = std::clamp<size_t>(static_cast<size_t>(dtype_bits(v.tensor.dtype)) / 8, 1, 8);
    HOTSET_FAIL_IF(reinterpret_cast<uintptr_t>(slot.data) % element != 0, invalid_argument,
                   "output '%s': the buffer is not aligned to elements of %zu bytes", graph().values[graph().outputs[o]].name.c_str(),
                   element);
    HOTSET_FAIL_IF(slot.bytes < v.bytes, invalid_argument, "output '%s': the buffer has %zu bytes, shape %s of %s needs %zu",
                   graph().values[graph().outputs[o]].name.c_str(), slot.bytes, to_text(v.tensor.shape).c_str(), dtype_name(v.tensor.dtype),
                   v.bytes);
    slot.result.data = slot.data;
    return {};
  }
  if (Status status = own_output(state, o, v.bytes); !status.ok())
    return std::move(status).at("output '" + graph().values[graph().outputs[o]].name + "'");
  return {};
}

// A buffer of the session for output `o`.
Status Session::own_output(RunState& state, int o, size_t bytes) {
  OutputSlot& slot = state.outputs[o];
  if (slot.on_device) {
    if (!slot.keep || slot.device.bytes() < bytes || !slot.device.address()) {
      slot.device.give();
      state.buffers_changed = true;
      const bool is_cache = program_->in_place_inputs()[o] >= 0;
      HOTSET_ASSIGN(slot.device, cuda::DeviceMemory::take(gpu_, bytes, is_cache ? cuda::Purpose::caches : cuda::Purpose::outputs,
                                                          is_cache ? "a cache" : "a result"));
    }
    slot.result.data = slot.device.data();
    return {};
  }
  if (gpu_ && slot.keep) {
    if (slot.pinned.bytes() < bytes || !slot.pinned.data()) {
      slot.pinned.give();
      state.buffers_changed = true;
      HOTSET_ASSIGN(slot.pinned, cuda::PinnedMemory::take(gpu_, bytes, "a result"));
    }
    slot.result.data = slot.pinned.data();
    return {};
  }
  if (!slot.keep || slot.owned_bytes < bytes || !slot.owned) {
    std::free(slot.owned);
    state.buffers_changed = true;
    slot.owned_bytes = std::max<size_t>(bytes, 1);
    slot.owned = std::malloc(slot.owned_bytes);
    if (!slot.owned) {
      slot.owned_bytes = 0;
      return fail(Code::out_of_memory, "cannot allocate %zu bytes", bytes);
    }
  }
  slot.result.data = slot.owned;
  return {};
}

// Memory for a value that a step with shapes decided by the run makes.
Status Session::take_dynamic(RunState& state, int32_t id) {
  PlanValue& v = state.plan.value(id);
  if (program_->on_device(id)) {
    HOTSET_ASSIGN(v.tensor.data, state.device->take(v.bytes));
    return {};
  }
  state.dynamic.emplace_back(std::max<size_t>(v.bytes, 1));
  v.tensor.data = state.dynamic.back().data();
  return {};
}

Status Session::run_dynamic(RunState& state, int s, const RunControl* control) {
  Plan& plan = state.plan;
  HOTSET_TRY(plan.infer_dynamic(s));
  const Step& step = program_->steps()[s];
  state.in.clear();
  state.out.clear();
  bool runs = false;
  for (model::ValueId id : step.inputs) state.in.push_back(id == model::kNone ? nullptr : &plan.value(id).tensor);
  for (model::ValueId id : step.outputs) {
    state.out.push_back(id == model::kNone ? nullptr : &plan.value(id).tensor);
    if (id == model::kNone) continue;
    PlanValue& v = plan.value(id);
    if (v.is_known) {
      v.tensor.data = v.content.data();
    } else if (v.view_of >= 0) {
      v.tensor.data = static_cast<std::byte*>(plan.value(v.view_of).tensor.data) + v.view_offset;
    } else if (v.output >= 0 && state.outputs[v.output].on_device == program_->on_device(id)) {
      HOTSET_TRY(bind_output(state, v.output));
      v.tensor.data = state.outputs[v.output].result.data;
      runs |= v.bytes > 0;
    } else if (!plan.is_bound_copy(step)) {
      HOTSET_TRY(take_dynamic(state, id));
      runs |= v.bytes > 0;
    }
  }
  Status status;
  if (runs && step.kind != StepKind::host) {
    status = run_dynamic_on_device(state, step, plan.workspace_bytes(s));
  } else if (runs) {
    if (state.device) HOTSET_TRY(state.device->wait());
    const AlignedBuffer workspace(plan.workspace_bytes(s));
    experts::RunUsage* const usage = step.expert_layer < 0 ? nullptr : &state.usage[static_cast<size_t>(step.expert_layer)];
    status = step.kernel->run({state.in, state.out, workspace.data(), pool_.get(), usage, control ? &control->cancelled : nullptr});
  }
  if (!status.ok()) return std::move(status).at(program_->node(step).text());
  // A requested output that the operator left as a view or known content, or that lies on the other side, is copied.
  for (model::ValueId id : step.outputs) {
    if (id == model::kNone) continue;
    PlanValue& v = plan.value(id);
    if (v.output < 0 || (!v.is_known && v.view_of < 0 && state.outputs[v.output].on_device == program_->on_device(id))) continue;
    HOTSET_TRY(bind_output(state, v.output));
    if (v.bytes) HOTSET_TRY(copy_output(state, v.output, v.tensor, program_->on_device(id)));
  }
  return {};
}

Status Session::run_steps(RunState& state, const RunControl* control, std::vector<NodeTrace>* trace) {
  const auto cancelled = [&] { return control && control->cancelled.load(std::memory_order_relaxed); };
  if (state.device) HOTSET_TRY(run_segments(state, control, trace));
  for (Plan::ActiveStep& active : state.device ? std::span<Plan::ActiveStep>() : std::span(state.plan.active())) {
    if (cancelled()) return fail(Code::cancelled, "the run was cancelled");
    const int64_t start = trace ? now_ns() : 0;
    state.running = active.step;
    active.context.cancelled = control ? &control->cancelled : nullptr;
    if (Status status = program_->steps()[active.step].kernel->run(active.context); !status.ok())
      return std::move(status).at(program_->node(program_->steps()[active.step]).text());
    if (trace) trace->push_back({active.step, start, now_ns()});
  }
  state.dynamic.clear();
  if (state.device) state.device->forget();
  for (int s = state.plan.first_dynamic(); s < static_cast<int>(program_->steps().size()); ++s) {
    if (!state.plan.runs_dynamic(s)) continue;
    if (cancelled()) return fail(Code::cancelled, "the run was cancelled");
    const int64_t start = trace ? now_ns() : 0;
    state.running = s;
    HOTSET_TRY(run_dynamic(state, s, control));
    if (trace) trace->push_back({s, start, now_ns()});
  }
  return {};
}

// Whether a run reads or writes memory of the caller that work of the caller's stream may be using.
static bool uses_device_memory(const RunState& state) {
  if (state.returns_early || std::count(state.input_on_device.begin(), state.input_on_device.end(), 1)) return true;
  return std::any_of(state.outputs.begin(), state.outputs.end(),
                     [](const OutputSlot& slot) { return slot.requested && slot.on_device && slot.data; });
}

Status Session::set_inputs(RunState& state) {
  if (state.device) {
    HOTSET_TRY(state.device->wait());  // for an earlier run that returned before the device was done: memory is used again
    if (uses_device_memory(state)) HOTSET_TRY(state.device->come_after(state.caller_stream));
    HOTSET_TRY(copy_inputs_to_host(state));
  }
  for (size_t i = 0; i < state.inputs.size(); ++i) {
    Tensor tensor = state.inputs[i];
    void* const on_device = state.input_on_device[i] ? tensor.data : nullptr;
    if (on_device) {
      const bool is_read = program_->placement()->host_reads_input[i];
      tensor.data = nullptr;
      if (is_read) {
        HOTSET_ASSIGN(tensor.data, state.device->input_copy(static_cast<int>(i), tensor.bytes()));
      }
    }
    HOTSET_TRY(state.plan.set_input(static_cast<int>(i), tensor, on_device));
  }
  return {};
}

// Memory for the values of a new layout.
Status Session::bind_memory(RunState& state) {
  Plan& plan = state.plan;
  state.buffers_changed = true;
  if (state.device) {
    HOTSET_TRY(state.device->bind(plan));
  } else {
    if (state.arena.bytes() < plan.arena_bytes()) {
      state.arena = AlignedBuffer();  // the old block goes first: nothing in it outlives a run
      try {
        state.arena = AlignedBuffer(plan.arena_bytes());
      } catch (const std::bad_alloc&) {
        return fail(Code::out_of_memory, "cannot allocate %zu bytes for the values of this run", plan.arena_bytes());
      }
    }
    plan.bind_arena(state.arena.data());
  }
  for (Plan::ActiveStep& active : plan.active()) {
    active.context.pool = pool_.get();
    const int32_t layer = program_->steps()[active.step].expert_layer;
    active.context.usage = layer < 0 ? nullptr : &state.usage[static_cast<size_t>(layer)];
  }
  state.bound_layouts = plan.n_layouts();  // only now: a run whose memory was refused is laid out and must be bound later
  return {};
}

// Results that did not come about in their buffers.
Status Session::copy_outputs(RunState& state) {
  for (const auto& [o, id] : state.plan.copies()) {
    const PlanValue& v = state.plan.value(id);
    if (v.place == Place::none) HOTSET_TRY(bind_output(state, o));
    if (v.bytes) HOTSET_TRY(copy_output(state, o, v.tensor, program_->on_device(id)));
  }
  if (!state.device) return {};
  bool is_wanted_on_host = false;
  for (const OutputSlot& slot : state.outputs) is_wanted_on_host |= slot.requested && !slot.on_device;
  if (!state.returns_early || is_wanted_on_host) HOTSET_TRY(state.device->wait());
  return state.returns_early ? state.device->go_before(state.caller_stream) : Status();
}

Status Session::execute(RunState& state, const RunControl* control) {
  Plan& plan = state.plan;
  std::optional<cuda::Current> current;
  if (gpu_) current.emplace(*gpu_);
  HOTSET_TRY(watch_.check());
  HOTSET_TRY(check_inputs(state));
  HOTSET_TRY(set_inputs(state));
  for (size_t o = 0; o < state.outputs.size(); ++o)
    plan.set_requested(static_cast<int>(o), state.outputs[o].requested, state.outputs[o].on_device);
  const uint64_t inferred = plan.n_inferred(), layouts = plan.n_layouts();
  HOTSET_TRY(plan.prepare());
  stats_.inferences.fetch_add(plan.n_inferred() - inferred, std::memory_order_relaxed);
  stats_.layouts.fetch_add(plan.n_layouts() - layouts, std::memory_order_relaxed);
  if (plan.n_layouts() != state.bound_layouts) HOTSET_TRY(bind_memory(state));
  const model::Graph& graph = program_->graph();
  for (size_t o = 0; o < state.outputs.size(); ++o) {
    if (!state.outputs[o].requested) continue;
    PlanValue& v = plan.value(graph.outputs[o]);
    if (v.place == Place::none) continue;  // made by a dynamic step, bound there
    HOTSET_TRY(bind_output(state, static_cast<int>(o)));
  }
  for (size_t o = 0; o < state.outputs.size(); ++o) {
    if (!state.outputs[o].requested) continue;
    const PlanValue& v = plan.value(graph.outputs[o]);
    if (v.place == Place::none || v.root < 0) continue;
    PlanValue& root = plan.value(v.root);
    if (root.place == Place::output && root.output == static_cast<int>(o)) root.tensor.data = state.outputs[o].result.data;
  }
  HOTSET_TRY(check_overlaps(state));
  plan.bind_views();

  std::vector<NodeTrace> events;
  HOTSET_TRY(run_steps(state, control, trace_ ? &events : nullptr));
  if (state.buffers_changed || plan.first_dynamic() < static_cast<int>(program_->steps().size())) state.count_memory();
  HOTSET_TRY(copy_outputs(state));
  stats_.runs.fetch_add(1, std::memory_order_relaxed);
  stats_.nodes.fetch_add(plan.active().size() + program_->steps().size() - static_cast<size_t>(plan.first_dynamic()),
                         std::memory_order_relaxed);
  if (trace_) {
    const std::lock_guard lock(trace_mutex_);
    trace_events_ = std::move(events);
    trace_tag_ = control ? control->tag : std::string();
  }
  return {};
}

}  // namespace hotset
