// SPDX-License-Identifier: Apache-2.0
// Checks and run of a mixture-of-experts node.
#include "ops/moe_kernel.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "cpu_avx/convert.h"

namespace hotset::ops {
namespace {

using experts::ActivationKind;
using experts::MatrixForm;
using experts::Pairing;

struct ActivationName {
  std::string_view name;
  ActivationKind kind;
};
constexpr ActivationName kActivations[] = {
    {"relu", ActivationKind::relu},   {"relu2", ActivationKind::relu2},       {"gelu", ActivationKind::gelu},
    {"silu", ActivationKind::silu},   {"identity", ActivationKind::identity}, {"swiglu", ActivationKind::swiglu},
    {"geglu", ActivationKind::geglu},
};

constexpr size_t round_up_64(size_t n) { return (n + 63) & ~size_t{63}; }

bool is_activation_type(DType t) { return t == DType::f32 || t == DType::f16 || t == DType::bf16; }

Status check_flag(const OpContext& context, const char* name, bool* out) {
  const int64_t value = context.node().get_int(name, 0);
  if (value != 0 && value != 1)
    return context.fail(Code::invalid_model, "attribute %s is %lld, expected 0 or 1", name, static_cast<long long>(value));
  *out = value != 0;
  return {};
}

// What one run needs besides the layer's own workspace.
struct Workspace {
  size_t table, fetch, at_hand, ids, weights, router_rows, layer, total;

  Workspace(const experts::ExpertLayer& l, int64_t n_tokens, int n_threads) {
    size_t at = 0;
    const auto place = [&at](size_t bytes) {
      const size_t here = at;
      at += round_up_64(bytes);
      return here;
    };
    const size_t routes = static_cast<size_t>(n_tokens * l.k), n_experts = static_cast<size_t>(l.n_experts);
    table = place(n_experts * sizeof(experts::ExpertBytes));
    fetch = place(experts::StoreFetch::workspace_bytes(std::min(l.n_experts, n_tokens * l.k)));
    at_hand = place(n_experts);
    ids = place(routes * sizeof(int32_t));
    weights = place(routes * sizeof(float));
    router_rows = place(static_cast<size_t>(n_threads) * 2 * n_experts * sizeof(float));  // float32 logits and weights of a token
    layer = place(experts::expert_layer_workspace(l, n_tokens, n_threads));
    total = at;
  }
};

const uint8_t* bytes_of(const RunContext& context, int input) {
  const Tensor* tensor = input < 0 ? nullptr : context.input(input);
  return tensor ? tensor->as<const uint8_t>() : nullptr;
}

}  // namespace

Status read_moe_attributes(const OpContext& context, MoeAttributes* out) {
  const model::Node& node = context.node();
  const std::string activation = node.get_string("activation_type", "relu");
  const auto* found =
      std::find_if(std::begin(kActivations), std::end(kActivations), [&](const ActivationName& a) { return a.name == activation; });
  if (found == std::end(kActivations))
    return context.fail(Code::invalid_model, "attribute activation_type is '%s', supported: relu relu2 gelu silu identity swiglu geglu",
                        activation.c_str());
  out->activation.kind = found->kind;

  const int64_t fusion = node.get_int("swiglu_fusion", 0);
  if (fusion < 0 || fusion > 2)
    return context.fail(Code::invalid_model, "attribute swiglu_fusion is %lld, expected 0, 1 or 2", static_cast<long long>(fusion));
  if (out->activation.kind == ActivationKind::geglu && fusion == 0)
    return context.fail(Code::invalid_model, "activation_type geglu needs swiglu_fusion 1 or 2");
  out->fusion = static_cast<int>(fusion);

  out->activation.alpha = node.get_float("activation_alpha", 1.0f);
  out->activation.beta = node.get_float("activation_beta", 0.0f);
  out->activation.limit = node.get_float("swiglu_limit", out->activation.limit);
  if (std::isnan(out->activation.limit) || out->activation.limit < 0)
    return context.fail(Code::invalid_model, "attribute swiglu_limit is %g, expected 0 or more",
                        static_cast<double>(out->activation.limit));
  HOTSET_TRY(check_flag(context, "swiglu_limit_after_activation", &out->activation.limit_after));
  HOTSET_TRY(check_flag(context, "normalize_routing_weights", &out->normalize));
  HOTSET_TRY(check_flag(context, "use_sparse_mixer", &out->sparse_mixer));
  if (out->activation.limit_after && out->activation.kind != ActivationKind::swiglu)
    return context.fail(Code::invalid_model, "swiglu_limit_after_activation 1 needs activation_type swiglu");

  out->k = node.get_int("k", 1);
  if (out->k < 1) return context.fail(Code::invalid_model, "attribute k is %lld, expected at least 1", static_cast<long long>(out->k));
  if (out->sparse_mixer && out->k != 2)
    return context.fail(Code::invalid_model, "use_sparse_mixer 1 needs k 2, got %lld", static_cast<long long>(out->k));
  if (node.get_int("num_shared_experts", 0) != 0) return context.fail(Code::unsupported, "attribute num_shared_experts is not supported");
  return {};
}

Status MoeKernel::find_pairing(const NodeInputs& inputs, Pairing* out) const {
  const bool pair = attributes_.is_pair();
  if (inputs.has(fc_[2].weights)) {
    HOTSET_FAIL_IF(attributes_.activation.kind == ActivationKind::geglu, invalid_model,
                   "activation_type geglu takes no fc3_experts_weights");
    HOTSET_FAIL_IF(pair && attributes_.fusion != 0, invalid_model,
                   "swiglu_fusion %d says that FC1 holds gate and value, but fc3_experts_weights is given too", attributes_.fusion);
    *out = Pairing::separate;
    return {};
  }
  for (int input : {fc_[2].scales, fc_[2].bias, fc_[2].zero_points})
    HOTSET_FAIL_IF(inputs.has(input), invalid_model, "input %d belongs to fc3_experts_weights, which is absent", input);
  *out = !pair ? Pairing::none : attributes_.fusion == 2 ? Pairing::halves : Pairing::interleaved;
  return {};
}

Status MoeKernel::read_bias(const NodeInputs& inputs, const FcInputs& fc, int64_t n_experts, MatrixForm* form) const {
  const Tensor* const bias = inputs.find(fc.bias);
  if (!bias) return {};
  const Shape expected{n_experts, form->n};
  HOTSET_FAIL_IF(!is_activation_type(bias->dtype), invalid_model, "%s_experts_bias (input %d) is %s, expected float, float16 or bfloat16",
                 fc.name, fc.bias, dtype_name(bias->dtype));
  HOTSET_FAIL_IF(!(bias->shape == expected), invalid_model, "%s_experts_bias (input %d) has shape %s, expected %s", fc.name, fc.bias,
                 to_text(bias->shape).c_str(), to_text(expected).c_str());
  form->bias_dtype = bias->dtype;
  return {};
}

// Logits and router weights: [..., E] with as many rows as there are tokens.
Status MoeKernel::check_router(const Tensor& tensor, int input, const char* name, int64_t n_tokens, int64_t n_experts) const {
  const Shape& shape = tensor.shape;
  HOTSET_FAIL_IF(!is_activation_type(tensor.dtype), invalid_model, "%s (input %d) is %s, expected float, float16 or bfloat16", name, input,
                 dtype_name(tensor.dtype));
  HOTSET_FAIL_IF(shape.rank < 1 || shape[-1] != n_experts || shape.product(0, shape.rank - 1) != n_tokens, invalid_model,
                 "%s (input %d) has shape %s, expected %lld rows of %lld experts", name, input, to_text(shape).c_str(),
                 static_cast<long long>(n_tokens), static_cast<long long>(n_experts));
  return {};
}

Status MoeKernel::make_state(const NodeInputs& inputs, int64_t hidden, State* out) const {
  Layout& layout = out->layout;
  layout.hidden = hidden;
  layout.n_experts = inputs[fc_[0].weights].shape.rank > 0 ? inputs[fc_[0].weights].shape[0] : 0;
  for (const FcInputs& fc : fc_) {
    if (!inputs.has(fc.weights)) continue;
    const Shape& shape = inputs[fc.weights].shape;
    HOTSET_FAIL_IF(shape.rank != 3 || shape[0] != layout.n_experts || shape.size() < 1, invalid_model,
                   "%s_experts_weights (input %d) has shape %s, expected 3 dimensions, the first the number of experts", fc.name,
                   fc.weights, to_text(shape).c_str());
  }
  HOTSET_FAIL_IF(attributes_.k > layout.n_experts, invalid_model, "attribute k is %lld, but there are %lld experts",
                 static_cast<long long>(attributes_.k), static_cast<long long>(layout.n_experts));
  HOTSET_TRY(find_pairing(inputs, &layout.pairing));
  HOTSET_TRY(describe(inputs, &layout));

  experts::ExpertLayer& layer = out->layer;
  layer.hidden = hidden;
  layer.inter = layout.inter;
  layer.n_experts = layout.n_experts;
  layer.k = attributes_.k;
  layer.activation = attributes_.activation;
  layer.pairing = layout.pairing;
  layer.fc1 = experts::WeightMatrix(layout.form[0], int8_activations(layout.form[0]));
  MatrixForm fc2 = layout.form[1];
  layer.fc2_bias = fc2.bias_dtype;
  fc2.bias_dtype = DType::undefined;
  layer.fc2 = experts::WeightMatrix(fc2, int8_activations(fc2));
  if (layer.pairing == Pairing::separate) layer.fc3 = experts::WeightMatrix(layout.form[2], int8_activations(layout.form[2]));
  if (working_bytes_ > 0) layer.working_bytes = working_bytes_;
  out->router = {layout.n_experts, attributes_.k, attributes_.normalize, attributes_.sparse_mixer};
  return {};
}

Status MoeKernel::create(const OpContext& context) {
  router_weights_norm_ = context.config().router_weights_norm;
  working_bytes_ = context.config().working_bytes;
  tail_ = context.config().tail;
  if (tail_.threshold > 0 && tail_.min_rank >= attributes_.k)
    return context.fail(
        Code::invalid_argument,
        "OFFLOAD_BAD_RANK: session.moe.offload.tail_substitution_min_rank is %lld, but k is %lld: no route could be replaced",
        static_cast<long long>(tail_.min_rank), static_cast<long long>(attributes_.k));
  const Tensor* const fc1 = context.constant(fc_[0].weights);
  if (fc1 && fc1->shape.rank == 3) n_experts_ = fc1->shape[0];
  if (context.has_input(fc_[2].bias)) context.warn("fc3_experts_bias is added to the values; onnxruntime's CUDA provider leaves it out");
  if (attributes_.activation.kind == ActivationKind::swiglu && attributes_.fusion == 0 && !context.has_input(fc_[2].weights))
    context.warn("swiglu_fusion is 0 without fc3_experts_weights: gate and value rows of FC1 are taken as interleaved, as with 1");

  const Tensor* tensors[kMaxInputs] = {};
  const int count = std::min(context.n_inputs(), kMaxInputs);
  for (int i = 0; i < count; ++i) {
    tensors[i] = context.constant(i);
    const bool is_activation = i == 0 || i == 1 || i == router_weights_input_;
    if (context.has_input(i) && !tensors[i] && !is_activation) return {};  // not known before a run
  }
  const NodeInputs inputs(std::span<const Tensor* const>(tensors, static_cast<size_t>(count)));
  const int64_t hidden = find_hidden(inputs);
  if (hidden < 1) return {};
  auto state = std::make_unique<State>();
  if (Status status = make_state(inputs, hidden, state.get()); !status.ok())
    return context.fail(status.code(), "%s", status.text().c_str());
  if (state->layout.is_guess)
    context.warn(
        "nothing says whether the expert weights are raw or prepacked: they are taken as prepacked, as onnxruntime's CUDA provider "
        "does; set the attribute weights_prepacked to 0 if the answer is wrong");
  experts::ExpertLayer widest = state->layer;
  widest.dtype = DType::f16;  // inputs of 16 bits are converted first
  const size_t least = experts::expert_layer_workspace(widest, 1, context.config().n_threads);
  if (working_bytes_ > 0 && least > working_bytes_)
    return context.fail(Code::budget,
                        "OFFLOAD_BAD_OPTION: option 'session.moe.offload.host_working_bytes' is %zu, but one row needs %zu bytes",
                        working_bytes_, least);
  state_ = std::move(state);
  if (context.config().store) join_store(context);
  return {};
}

void MoeKernel::join_store(const OpContext& context) {
  const Layout& layout = state_->layout;
  const auto tensor = [&](int input, size_t bytes) {
    const model::Constant* const c = context.place(input);
    if (!c || bytes == 0) return experts::ExpertTensor();
    return experts::ExpertTensor{c->tensor.as<const uint8_t>(), bytes, c->file, c->offset};
  };
  const auto matrix = [&](int i) {
    const FcInputs& fc = fc_[i];
    const MatrixForm& form = layout.form[i];
    experts::LayerTensors::Matrix m{tensor(fc.weights, form.weight_bytes()), tensor(fc.scales, form.scale_bytes()),
                                    tensor(fc.zero_points, form.zero_point_bytes()), tensor(fc.bias, form.bias_bytes())};
    if (const model::Constant* const c = context.place(fc.global_scale)) m.global_scales = c->tensor.as<const uint8_t>();
    return m;
  };
  experts::LayerTensors tensors;
  tensors.n_experts = layout.n_experts;
  tensors.k = attributes_.k;
  tensors.fc1 = matrix(0);
  tensors.fc2 = matrix(1);
  if (layout.pairing == Pairing::separate) tensors.fc3 = matrix(2);
  store_ = context.config().store;
  store_layer_ = store_->add_layer(std::move(tensors));
}

std::string_view MoeKernel::implementation() const { return state_ ? state_->layer.fc1.isa() : "experts"; }

Status MoeKernel::infer(InferContext& context) const {
  Tensor headers[kMaxInputs];
  const Tensor* tensors[kMaxInputs] = {};
  for (int i = 0; i < kMaxInputs; ++i) {
    if (!context.has_input(i)) continue;
    headers[i].dtype = context.dtype(i);
    headers[i].shape = context.shape(i);
    tensors[i] = &headers[i];
  }
  const NodeInputs inputs(tensors);
  const Shape& x = inputs[0].shape;
  HOTSET_FAIL_IF(!is_activation_type(inputs[0].dtype), invalid_model, "input (input 0) is %s, expected float, float16 or bfloat16",
                 dtype_name(inputs[0].dtype));
  HOTSET_FAIL_IF(x.rank < 2 || x[-1] < 1, invalid_model,
                 "input (input 0) has shape %s, expected [tokens,hidden] or [batch,sequence,hidden]", to_text(x).c_str());
  const int64_t n_tokens = x.product(0, x.rank - 1);

  State made;
  if (!state_) HOTSET_TRY(make_state(inputs, x[-1], &made));
  const State& state = state_ ? *state_ : made;
  HOTSET_FAIL_IF(x[-1] != state.layout.hidden, invalid_model, "input (input 0) has shape %s, but the experts are for hidden size %lld",
                 to_text(x).c_str(), static_cast<long long>(state.layout.hidden));
  HOTSET_TRY(check_router(inputs[1], 1, "router_probs", n_tokens, state.layout.n_experts));
  if (inputs.has(router_weights_input_))
    HOTSET_TRY(check_router(inputs[router_weights_input_], router_weights_input_, "router_weights", n_tokens, state.layout.n_experts));
  HOTSET_FAIL_IF(n_tokens > INT32_MAX / attributes_.k, unsupported, "%lld tokens at once are too many", static_cast<long long>(n_tokens));

  experts::ExpertLayer layer = state.layer;
  layer.dtype = inputs[0].dtype;
  if (store_ && store_->is_open()) layer.together = store_->together(store_layer_);
  context.set_output(0, layer.dtype, x);
  context.set_workspace(Workspace(layer, n_tokens, context.n_threads()).total,
                        experts::expert_layer_packing(layer, n_tokens, context.n_threads()));
  return {};
}

experts::Router MoeKernel::router(bool given) const {
  experts::Router router = state_->router;
  if (given && !router_weights_norm_) router.normalize = false;
  return router;
}

void MoeKernel::fill_table(const RunContext& context, const State& state, experts::ExpertBytes* table) const {
  const auto fill = [&](int i, experts::MatrixBytes experts::ExpertBytes::* matrix) {
    const FcInputs& fc = fc_[i];
    const MatrixForm& form = state.layout.form[i];
    experts::MatrixBytes at{bytes_of(context, fc.weights), bytes_of(context, fc.scales), bytes_of(context, fc.zero_points),
                            bytes_of(context, fc.bias)};
    const uint8_t* const global_scale = bytes_of(context, fc.global_scale);
    const size_t weights = form.weight_bytes(), scales = form.scale_bytes(), zero_points = form.zero_point_bytes(),
                 bias = form.bias_bytes();
    for (int64_t e = 0; e < state.layout.n_experts; ++e) {
      if (global_scale) std::memcpy(&at.global_scale, global_scale + static_cast<size_t>(e) * sizeof(float), sizeof(float));
      table[e].*matrix = at;
      at.weights += weights;
      if (at.scales) at.scales += scales;
      if (at.zero_points) at.zero_points += zero_points;
      if (at.bias) at.bias += bias;
    }
  };
  fill(0, &experts::ExpertBytes::fc1);
  fill(1, &experts::ExpertBytes::fc2);
  if (state.layer.pairing == Pairing::separate) fill(2, &experts::ExpertBytes::fc3);
}

Status MoeKernel::run(const RunContext& context) const {
  State made;
  const Tensor& x = *context.input(0);
  if (!state_) HOTSET_TRY(make_state(NodeInputs(context.inputs), x.shape[-1], &made));
  const State& state = state_ ? *state_ : made;
  experts::ExpertLayer layer = state.layer;
  layer.dtype = x.dtype;
  if (store_ && store_->is_open()) layer.together = store_->together(store_layer_);
  const int64_t n_tokens = x.size() / layer.hidden, n_experts = layer.n_experts, k = layer.k;
  if (n_tokens == 0) return {};
  const Workspace w(layer, n_tokens, context.pool->size());
  uint8_t* const space = static_cast<uint8_t*>(context.workspace);

  const Tensor& logits = *context.input(1);
  const Tensor* const given = context.input(router_weights_input_);
  experts::Router router = state.router;
  if (given && !router_weights_norm_) router.normalize = false;
  int32_t* const ids = reinterpret_cast<int32_t*>(space + w.ids);
  float* const weights = reinterpret_cast<float*>(space + w.weights);
  struct RouterRow {
    const float *logits, *given;
  };
  const auto router_row = [&](int64_t t, int thread) -> RouterRow {
    float* const rows = reinterpret_cast<float*>(space + w.router_rows) + static_cast<int64_t>(thread) * 2 * n_experts;
    const auto row = [&](const Tensor& tensor, float* converted) -> const float* {
      if (tensor.dtype == DType::f32) return tensor.as<const float>() + t * n_experts;
      cpu::to_f32(tensor.dtype, tensor.as<const uint16_t>() + t * n_experts, converted, n_experts);
      return converted;
    };
    return {row(logits, rows), given ? row(*given, rows + n_experts) : nullptr};
  };
  const auto route_token = [&](int64_t t, int thread) {
    const RouterRow row = router_row(t, thread);
    experts::route(router, row.logits, row.given, ids + t * k, weights + t * k);
  };
  constexpr int64_t kTokens = 16;
  if (n_tokens <= kTokens) {
    for (int64_t t = 0; t < n_tokens; ++t) route_token(t, 0);
  } else {
    context.pool->parallel_for((n_tokens + kTokens - 1) / kTokens, [&](int64_t i, int thread) {
      for (int64_t t = i * kTokens; t < std::min(n_tokens, (i + 1) * kTokens); ++t) route_token(t, thread);
    });
  }

  if (context.usage) context.usage->add(ids, n_tokens * k, n_tokens);
  const int64_t tail_tokens = tail_.max_tokens < 0 ? experts::tail_max_tokens(n_experts, k) : tail_.max_tokens;
  if (tail_.is_on() && n_tokens <= tail_tokens) {
    experts::TailChanges changes;
    uint8_t* at_hand = nullptr;
    if (store_ && store_->is_open() && store_->plan().home != experts::ExpertHome::mapped) {
      at_hand = space + w.at_hand;
      for (int64_t e = 0; e < n_experts; ++e) at_hand[e] = store_->is_at_hand(store_layer_, e);
    }
    for (int64_t t = 0; t < n_tokens; ++t) {
      const RouterRow row = router_row(t, 0);
      experts::change_tail(tail_, router, row.logits, row.given, at_hand, ids + t * k, weights + t * k, &changes);
    }
    if (context.usage) context.usage->add_changes(changes);
  }

  auto* const own_table = reinterpret_cast<experts::ExpertBytes*>(space + w.table);
  const experts::ExpertBytes* table = own_table;
  std::optional<experts::StoreFetch> fetch;
  if (!store_ || !store_->is_open()) {
    fill_table(context, state, own_table);
  } else if (const experts::ExpertBytes* const all = store_->table(store_layer_)) {
    store_->will_use(store_layer_, ids, n_tokens * k);
    table = all;
  } else {
    fetch.emplace(*store_, store_layer_, own_table, space + w.fetch, context.cancelled);
  }

  experts::LayerCall call;
  call.x = x.data;
  call.y = context.output(0)->data;
  call.n_tokens = n_tokens;
  call.ids = ids;
  call.weights = weights;
  call.experts = table;
  call.workspace = space + w.layer;
  call.pool = context.pool;
  call.fetch = fetch ? &*fetch : nullptr;
  experts::run_expert_layer(layer, call);
  return fetch ? fetch->take_status() : Status();
}

}  // namespace hotset::ops
