// SPDX-License-Identifier: Apache-2.0
// C entries of runs, bindings and sampling.
#include <cstdlib>

#include "api/handles.h"
#include "api/tensors.h"

using namespace hotset;
using namespace hotset::api;

namespace {

// again: whether the input may be set already.
Status set_input(const Session& session, RunState& state, const char* name, const hotset_tensor& tensor, bool again) {
  HOTSET_FAIL_IF(!name, invalid_argument, "an input name is NULL");
  const int i = session.input_index(name);
  HOTSET_FAIL_IF(i < 0, invalid_argument, "the model has no input '%s'", name);
  HOTSET_FAIL_IF(state.has_input[i] && !again, invalid_argument, "input '%s' is given twice", name);
  bool on_device = false;
  Status status = read_tensor(tensor, name, &state.inputs[i]);
  if (status.ok()) status = read_place(tensor, session.gpu(), name, &on_device);
  if (!status.ok()) return std::move(status).at("input");
  state.has_input[i] = 1;
  state.input_on_device[i] = on_device;
  return {};
}

Status set_output(const Session& session, RunState& state, const char* name, const hotset_tensor* tensor, bool keep) {
  HOTSET_FAIL_IF(!name, invalid_argument, "an output name is NULL");
  const int o = session.output_index(name);
  HOTSET_FAIL_IF(o < 0, invalid_argument, "the model has no output '%s'", name);
  bool on_device = false;
  if (tensor) {
    HOTSET_FAIL_IF(tensor->struct_size < sizeof(hotset_tensor), invalid_argument,
                   "output '%s': struct_size is %u: set it to sizeof(hotset_tensor)", name, tensor->struct_size);
    HOTSET_FAIL_IF(!tensor->data && tensor->bytes, invalid_argument, "output '%s': data is NULL but bytes is %zu", name, tensor->bytes);
    if (Status status = read_place(*tensor, session.gpu(), name, &on_device); !status.ok()) return std::move(status).at("output");
  }
  OutputSlot& slot = state.outputs[o];
  HOTSET_FAIL_IF(slot.requested && !keep, invalid_argument, "output '%s' is asked for twice", name);
  slot.requested = true;
  slot.on_device = on_device;
  slot.keep = keep;
  const bool is_ours = tensor && tensor->owner;  // allocated by an earlier run: it is replaced, not written
  slot.data = tensor && !is_ours ? tensor->data : nullptr;
  slot.bytes = tensor && !is_ours ? tensor->bytes : 0;
  return {};
}

// Holds the binding for one call.
class InUse {
 public:
  explicit InUse(const hotset_binding* binding) : binding_(const_cast<hotset_binding*>(binding)) {
    if (binding_ && binding_->busy.exchange(true, std::memory_order_acquire)) binding_ = nullptr;
  }
  ~InUse() {
    if (binding_) binding_->busy.store(false, std::memory_order_release);
  }
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;
  bool held() const { return binding_ != nullptr; }

 private:
  hotset_binding* binding_;
};

#define HOTSET_USE(binding)                                        \
  HOTSET_FAIL_IF(!(binding), invalid_argument, "binding is NULL"); \
  const InUse in_use(binding);                                     \
  HOTSET_FAIL_IF(!in_use.held(), invalid_state, "the binding is in use by another thread")

void describe_type(const Tensor& from, hotset_tensor* out) {
  out->dtype = static_cast<int32_t>(from.dtype);
  out->rank = from.shape.rank;
  for (int d = 0; d < HOTSET_MAX_RANK; ++d) out->shape[d] = d < from.shape.rank ? from.shape[d] : 0;
}

void describe(const Session& session, const OutputSlot& slot, hotset_tensor* out) {
  describe_type(slot.result, out);
  out->device = slot.on_device ? HOTSET_CUDA : HOTSET_CPU;
  out->device_id = slot.on_device ? session.gpu()->index() : 0;
  for (int64_t& stride : out->strides) stride = 0;
}

// Hands a result over: what the run allocated becomes the caller's.
Status give_result(const Session& session, OutputSlot& slot, hotset_tensor* out) {
  const bool is_ours = !out->data || out->owner;
  std::unique_ptr<SharedDeviceMemory> memory;
  if (is_ours && slot.on_device) memory = std::make_unique<SharedDeviceMemory>(std::move(slot.device));
  if (is_ours) {
    free_owner(out->device, out->owner);  // of an earlier run; inputs of this one may have lain there until now
    out->bytes = slot.result.bytes();
    out->data = slot.result.data;
    out->owner = slot.on_device ? static_cast<void*>(memory.release()) : std::exchange(slot.owned, nullptr);
  }
  describe(session, slot, out);
  return {};
}

// After a failure: type and shape where they are known, and nothing allocated.
void describe_failed(const Tensor& from, hotset_tensor* out) {
  if (out->owner) hotset_tensor_free(out);
  if (from.dtype != DType::undefined) describe_type(from, out);
}

// Where the run's work stands in the order of a stream of the caller.
void set_order(RunState& state, void* stream, bool returns_early) {
  state.caller_stream = static_cast<cuda::Stream>(stream);
  state.returns_early = returns_early;
}

struct Arguments {
  const char* const* input_names;
  const hotset_tensor* inputs;
  size_t input_count;
  const char* const* output_names;
  hotset_tensor* outputs;
  size_t output_count;
};

Status run_once(hotset_session* session, hotset_run_options* run_options, const Arguments& a, void* stream, bool returns_early) {
  HOTSET_FAIL_IF(!session, invalid_argument, "session is NULL");
  HOTSET_FAIL_IF((a.input_count && (!a.input_names || !a.inputs)) || (a.output_count && (!a.output_names || !a.outputs)), invalid_argument,
                 "an array of names or tensors is NULL");
  Session& s = *session->session;
  HOTSET_FAIL_IF(returns_early && !s.gpu(), unsupported, "the session computes on the CPU: it has no place in the order of a CUDA stream");
  HOTSET_ASSIGN(auto state, s.acquire());
  set_order(*state, stream, returns_early);
  Status status = [&]() -> Status {
    for (size_t i = 0; i < a.input_count; ++i) HOTSET_TRY(set_input(s, *state, a.input_names[i], a.inputs[i], false));
    for (size_t o = 0; o < a.output_count; ++o) HOTSET_TRY(set_output(s, *state, a.output_names[o], &a.outputs[o], false));
    HOTSET_TRY(s.run(*state, run_options ? &run_options->control : nullptr));
    for (size_t o = 0; o < a.output_count; ++o)
      HOTSET_TRY(give_result(s, state->outputs[s.output_index(a.output_names[o])], &a.outputs[o]));
    return {};
  }();
  if (!status.ok()) {
    for (size_t o = 0; o < a.output_count; ++o) {
      const int index = a.output_names[o] ? s.output_index(a.output_names[o]) : -1;
      if (index >= 0 && a.outputs[o].struct_size >= sizeof(hotset_tensor)) describe_failed(state->outputs[index].result, &a.outputs[o]);
    }
  }
  s.release(std::move(state));
  return status;
}

}  // namespace

extern "C" {

hotset_status hotset_run_options_create(hotset_run_options** out) {
  return guard([&]() -> Status {
    HOTSET_FAIL_IF(!out, invalid_argument, "out is NULL");
    *out = new hotset_run_options;
    return {};
  });
}

void hotset_run_options_free(hotset_run_options* run_options) { delete run_options; }

hotset_status hotset_run_options_set_tag(hotset_run_options* run_options, const char* tag) {
  return guard([&]() -> Status {
    HOTSET_FAIL_IF(!run_options || !tag, invalid_argument, "run_options or tag is NULL");
    run_options->control.tag = tag;
    return {};
  });
}

hotset_status hotset_cancel(hotset_run_options* run_options) {
  return guard([&]() -> Status {
    HOTSET_FAIL_IF(!run_options, invalid_argument, "run_options is NULL");
    run_options->control.cancelled.store(true, std::memory_order_relaxed);
    return {};
  });
}

hotset_status hotset_run_options_reset(hotset_run_options* run_options) {
  return guard([&]() -> Status {
    HOTSET_FAIL_IF(!run_options, invalid_argument, "run_options is NULL");
    run_options->control.cancelled.store(false, std::memory_order_relaxed);
    return {};
  });
}

hotset_status hotset_run(hotset_session* session, hotset_run_options* run_options, const char* const* input_names,
                         const hotset_tensor* inputs, size_t input_count, const char* const* output_names, hotset_tensor* outputs,
                         size_t output_count) {
  return guard([&] {
    return run_once(session, run_options, {input_names, inputs, input_count, output_names, outputs, output_count}, nullptr, false);
  });
}

hotset_status hotset_run_async(hotset_session* session, hotset_run_options* run_options, const char* const* input_names,
                               const hotset_tensor* inputs, size_t input_count, const char* const* output_names, hotset_tensor* outputs,
                               size_t output_count, void* cuda_stream) {
  return guard([&] {
    return run_once(session, run_options, {input_names, inputs, input_count, output_names, outputs, output_count}, cuda_stream, true);
  });
}

hotset_status hotset_binding_create(hotset_binding** out, hotset_session* session) {
  return guard([&]() -> Status {
    HOTSET_FAIL_IF(!out || !session, invalid_argument, "out or session is NULL");
    *out = nullptr;
    HOTSET_ASSIGN(auto state, session->session->acquire());
    *out = new hotset_binding{session->session.get(), std::move(state), {}};
    return {};
  });
}

void hotset_binding_free(hotset_binding* binding) { delete binding; }

hotset_status hotset_binding_set_input(hotset_binding* binding, const char* name, const hotset_tensor* tensor) {
  return guard([&]() -> Status {
    HOTSET_FAIL_IF(!tensor, invalid_argument, "tensor is NULL");
    HOTSET_USE(binding);
    return set_input(*binding->session, *binding->state, name, *tensor, true);
  });
}

hotset_status hotset_binding_set_output(hotset_binding* binding, const char* name, const hotset_tensor* tensor) {
  return guard([&]() -> Status {
    HOTSET_USE(binding);
    return set_output(*binding->session, *binding->state, name, tensor, true);
  });
}

hotset_status hotset_binding_drop_output(hotset_binding* binding, const char* name) {
  return guard([&]() -> Status {
    HOTSET_FAIL_IF(!name, invalid_argument, "name is NULL");
    HOTSET_USE(binding);
    const int o = binding->session->output_index(name);
    HOTSET_FAIL_IF(o < 0, invalid_argument, "the model has no output '%s'", name);
    binding->state->outputs[o].requested = false;
    binding->state->outputs[o].data = nullptr;
    return {};
  });
}

hotset_status hotset_binding_clear(hotset_binding* binding) {
  return guard([&]() -> Status {
    HOTSET_USE(binding);
    for (char& has : binding->state->has_input) has = 0;
    for (OutputSlot& slot : binding->state->outputs) {
      slot.requested = false;
      slot.data = nullptr;
    }
    return {};
  });
}

hotset_status hotset_binding_run(hotset_binding* binding, hotset_run_options* run_options) {
  return guard([&]() -> Status {
    HOTSET_USE(binding);
    set_order(*binding->state, nullptr, false);
    return binding->session->run(*binding->state, run_options ? &run_options->control : nullptr);
  });
}

hotset_status hotset_binding_run_async(hotset_binding* binding, hotset_run_options* run_options, void* cuda_stream) {
  return guard([&]() -> Status {
    HOTSET_USE(binding);
    HOTSET_FAIL_IF(!binding->session->gpu(), unsupported, "the session computes on the CPU: it has no place in the order of a CUDA stream");
    set_order(*binding->state, cuda_stream, true);
    return binding->session->run(*binding->state, run_options ? &run_options->control : nullptr);
  });
}

hotset_status hotset_binding_output(const hotset_binding* binding, const char* name, hotset_tensor* out) {
  return guard([&]() -> Status {
    HOTSET_FAIL_IF(!name || !out, invalid_argument, "name or out is NULL");
    HOTSET_USE(binding);
    HOTSET_FAIL_IF(out->struct_size < sizeof(hotset_tensor), invalid_argument, "struct_size is %u: set it to sizeof(hotset_tensor)",
                   out->struct_size);
    const int o = binding->session->output_index(name);
    HOTSET_FAIL_IF(o < 0, invalid_argument, "the model has no output '%s'", name);
    const OutputSlot& slot = binding->state->outputs[o];
    HOTSET_FAIL_IF(!slot.requested || !slot.result.data, invalid_argument, "output '%s' has no result: bind it and run first", name);
    describe(*binding->session, slot, out);
    out->data = slot.result.data;
    out->bytes = slot.result.bytes();
    out->owner = nullptr;
    return {};
  });
}

hotset_status hotset_binding_take_output(hotset_binding* binding, const char* name, hotset_tensor* out) {
  return guard([&]() -> Status {
    HOTSET_FAIL_IF(!name || !out, invalid_argument, "name or out is NULL");
    HOTSET_USE(binding);
    HOTSET_FAIL_IF(out->struct_size < sizeof(hotset_tensor), invalid_argument, "struct_size is %u: set it to sizeof(hotset_tensor)",
                   out->struct_size);
    const int o = binding->session->output_index(name);
    HOTSET_FAIL_IF(o < 0, invalid_argument, "the model has no output '%s'", name);
    OutputSlot& slot = binding->state->outputs[o];
    HOTSET_FAIL_IF(!slot.requested || !slot.result.data, invalid_argument, "output '%s' has no result: bind it and run first", name);
    HOTSET_FAIL_IF(!slot.on_device || !slot.device.address() || slot.result.data != slot.device.data(), unsupported,
                   "output '%s' is no device memory that the binding allocated", name);
    out->data = nullptr;
    out->owner = nullptr;
    HOTSET_TRY(give_result(*binding->session, slot, out));
    slot.result.data = nullptr;
    binding->state->buffers_changed = true;
    return {};
  });
}

hotset_status hotset_sampler_create(hotset_sampler** out, const hotset_sampler_config* config) {
  return guard([&]() -> Status {
    HOTSET_FAIL_IF(!out || !config, invalid_argument, "out or config is NULL");
    HOTSET_FAIL_IF(config->struct_size < sizeof(hotset_sampler_config), invalid_argument,
                   "struct_size is %u: set it to sizeof(hotset_sampler_config)", config->struct_size);
    *out = nullptr;
    const auto or_off = [](float x) { return x == 0.0f ? 1.0f : x; };  // zero-initialised
    const Sampler::Config c{.do_sample = config->do_sample != 0,
                            .top_k = config->top_k,
                            .top_p = or_off(config->top_p),
                            .temperature = config->temperature,
                            .repetition_penalty = or_off(config->repetition_penalty),
                            .seed = config->seed};
    HOTSET_TRY(Sampler::check(c));
    *out = new hotset_sampler{Sampler(c), {}};
    return {};
  });
}

void hotset_sampler_free(hotset_sampler* sampler) { delete sampler; }

hotset_status hotset_sampler_accept(hotset_sampler* sampler, const int64_t* tokens, size_t token_count) {
  return guard([&]() -> Status {
    HOTSET_FAIL_IF(!sampler || (token_count && !tokens), invalid_argument, "sampler or tokens is NULL");
    return sampler->sampler.accept(tokens, token_count);
  });
}

hotset_status hotset_sampler_next(hotset_sampler* sampler, const hotset_tensor* logits, int64_t* out) {
  return guard([&]() -> Status {
    HOTSET_FAIL_IF(!sampler || !logits || !out, invalid_argument, "sampler, logits or out is NULL");
    Tensor t;
    hotset_tensor place = *logits;
    const bool on_gpu = place.struct_size >= offsetof(hotset_tensor, owner) && place.device == HOTSET_CUDA;
    if (on_gpu) place.device = HOTSET_CPU;  // the checks are the same
    HOTSET_TRY(read_tensor(place, "logits", &t));
    bool on_device = false;
    HOTSET_TRY(read_place(place, nullptr, "logits", &on_device));
    HOTSET_FAIL_IF(t.dtype != DType::f32 && t.dtype != DType::f16 && t.dtype != DType::bf16, invalid_argument,
                   "logits: element type %s, expected a float", dtype_name(t.dtype));
    HOTSET_FAIL_IF(t.shape.rank == 0 || t.size() == 0, invalid_argument, "logits: shape %s is empty", to_text(t.shape).c_str());
    const int64_t n = t.shape[-1];
    const size_t row = t.bytes() / static_cast<size_t>(t.size()) * static_cast<size_t>(t.size() - n);
    const char* const last = static_cast<const char*>(t.data) + row;
    if (on_gpu) return sampler->on_gpu.next(sampler->sampler, logits->device_id, t.dtype, last, n, out);
    return sampler->sampler.next(t.dtype, last, n, out);
  });
}

}  // extern "C"
