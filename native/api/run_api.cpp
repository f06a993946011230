// SPDX-License-Identifier: Apache-2.0
// C entries of runs, bindings and sampling.
#include <cstdlib>

#include "api/handles.h"

using namespace hotset;
using namespace hotset::api;

namespace {

// again: whether the input may be set already.
Status set_input(const Session& session, RunState& state, const char* name, const hotset_tensor& tensor, bool again) {
  HOTSET_FAIL_IF(!name, invalid_argument, "an input name is NULL");
  const int i = session.input_index(name);
  HOTSET_FAIL_IF(i < 0, invalid_argument, "the model has no input '%s'", name);
  HOTSET_FAIL_IF(state.has_input[i] && !again, invalid_argument, "input '%s' is given twice", name);
  Status status = read_tensor(tensor, name, &state.inputs[i]);
  if (!status.ok()) return std::move(status).at("input");
  state.has_input[i] = 1;
  return {};
}

Status set_output(const Session& session, RunState& state, const char* name, const hotset_tensor* tensor, bool keep) {
  HOTSET_FAIL_IF(!name, invalid_argument, "an output name is NULL");
  const int o = session.output_index(name);
  HOTSET_FAIL_IF(o < 0, invalid_argument, "the model has no output '%s'", name);
  if (tensor) {
    HOTSET_FAIL_IF(tensor->struct_size < sizeof(hotset_tensor), invalid_argument,
                   "output '%s': struct_size is %u: set it to sizeof(hotset_tensor)", name, tensor->struct_size);
    HOTSET_FAIL_IF(tensor->device > HOTSET_CPU, unsupported, "output '%s': device %d; this build takes host memory", name, tensor->device);
    HOTSET_FAIL_IF(!tensor->data && tensor->bytes, invalid_argument, "output '%s': data is NULL but bytes is %zu", name, tensor->bytes);
  }
  OutputSlot& slot = state.outputs[o];
  HOTSET_FAIL_IF(slot.requested && !keep, invalid_argument, "output '%s' is asked for twice", name);
  slot.requested = true;
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

void describe(const Tensor& from, void* owner, hotset_tensor* out) {
  out->dtype = static_cast<int32_t>(from.dtype);
  out->device = HOTSET_CPU;
  out->device_id = 0;
  out->rank = from.shape.rank;
  for (int d = 0; d < HOTSET_MAX_RANK; ++d) out->shape[d] = d < from.shape.rank ? from.shape[d] : 0;
  for (int64_t& stride : out->strides) stride = 0;
  if (!out->data || out->owner) {
    std::free(out->owner);  // of an earlier run; inputs of this one may have lain there until now
    out->bytes = from.bytes();
    out->data = from.data;
    out->owner = owner;
  }
}

// After a failure: type and shape where they are known, and nothing allocated.
void describe_failed(const Tensor& from, hotset_tensor* out) {
  if (out->owner) {
    std::free(out->owner);
    out->owner = nullptr;
    out->data = nullptr;
    out->bytes = 0;
  }
  if (from.dtype == DType::undefined) return;
  out->dtype = static_cast<int32_t>(from.dtype);
  out->rank = from.shape.rank;
  for (int d = 0; d < HOTSET_MAX_RANK; ++d) out->shape[d] = d < from.shape.rank ? from.shape[d] : 0;
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
  return guard([&]() -> Status {
    HOTSET_FAIL_IF(!session, invalid_argument, "session is NULL");
    HOTSET_FAIL_IF((input_count && (!input_names || !inputs)) || (output_count && (!output_names || !outputs)), invalid_argument,
                   "an array of names or tensors is NULL");
    Session& s = *session->session;
    HOTSET_ASSIGN(auto state, s.acquire());
    Status status = [&]() -> Status {
      for (size_t i = 0; i < input_count; ++i) HOTSET_TRY(set_input(s, *state, input_names[i], inputs[i], false));
      for (size_t o = 0; o < output_count; ++o) HOTSET_TRY(set_output(s, *state, output_names[o], &outputs[o], false));
      return s.run(*state, run_options ? &run_options->control : nullptr);
    }();
    if (status.ok()) {
      for (size_t o = 0; o < output_count; ++o) {
        const OutputSlot& slot = state->outputs[s.output_index(output_names[o])];
        describe(slot.result, slot.owned, &outputs[o]);
      }
    } else {
      for (size_t o = 0; o < output_count; ++o) {
        const int index = output_names[o] ? s.output_index(output_names[o]) : -1;
        if (index >= 0 && outputs[o].struct_size >= sizeof(hotset_tensor)) describe_failed(state->outputs[index].result, &outputs[o]);
      }
    }
    s.release(std::move(state));
    return status;
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
    out->data = nullptr;
    describe(slot.result, nullptr, out);
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
    *out = new hotset_sampler{Sampler(c)};
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
    HOTSET_TRY(read_tensor(*logits, "logits", &t));
    HOTSET_FAIL_IF(t.dtype != DType::f32 && t.dtype != DType::f16 && t.dtype != DType::bf16, invalid_argument,
                   "logits: element type %s, expected a float", dtype_name(t.dtype));
    HOTSET_FAIL_IF(t.shape.rank == 0 || t.size() == 0, invalid_argument, "logits: shape %s is empty", to_text(t.shape).c_str());
    const int64_t n = t.shape[-1];
    const size_t row = t.bytes() / static_cast<size_t>(t.size()) * static_cast<size_t>(t.size() - n);
    return sampler->sampler.next(t.dtype, static_cast<const char*>(t.data) + row, n, out);
  });
}

}  // extern "C"
