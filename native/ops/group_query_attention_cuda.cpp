// SPDX-License-Identifier: Apache-2.0
// GroupQueryAttention on a GPU. Lengths stay in device memory; nothing here depends on them.
#include "ops/attention_cuda.h"
#include "ops/group_query_attention.h"

namespace hotset::ops {
namespace {

using namespace gqa;

class GroupQueryAttentionOnDevice final : public DeviceKernel {
 public:
  GroupQueryAttentionOnDevice(const Attributes& a, bool positions_need_total, const cuda::Gpu& gpu)
      : a_(a), positions_need_total_(positions_need_total), gpu_(gpu) {}

  InputUse use(int input) const override { return input == kTotal && !positions_need_total_ ? InputUse::unused : InputUse::device; }
  std::string_view implementation() const override { return "cuda mma"; }

  Status plan(const InferContext& c, size_t* workspace) const override {
    const auto shape = [&](int i) { return c.has_input(i) ? &c.shape(i) : nullptr; };
    const Shape* const past = shape(kPastKey);
    const Tensor* const total = c.known(kTotal);
    int64_t capacity = 0;
    if (c.has_output(kPresentKey)) {
      capacity = past ? (*past)[2] : 0;
      if (!a_.windowed_cache && total) capacity = std::max<int64_t>(capacity, *total->as<int32_t>());
    }
    const cuda::AttentionCall call =
        sizes(c.dtype(kQuery), past ? c.dtype(kPastKey) : DType::undefined, shape, capacity, total ? *total->as<int32_t>() : 0);
    HOTSET_TRY(check_device_sizes(call.params));
    *workspace = cuda::attention_workspace(gpu_, call);
    return {};
  }
  Status launch(const DeviceRun& run) const override;

 private:
  // All that sizes and attributes decide.
  template <class ShapeOf>
  cuda::AttentionCall sizes(DType type, DType cache, const ShapeOf& shape, int64_t capacity, int64_t total) const;

  const Attributes a_;
  const bool positions_need_total_;
  const cuda::Gpu& gpu_;
};

template <class ShapeOf>
cuda::AttentionCall GroupQueryAttentionOnDevice::sizes(DType type, DType cache, const ShapeOf& shape, int64_t capacity,
                                                       int64_t total) const {
  const Shape &query = *shape(kQuery), *const key = shape(kKey), *const past = shape(kPastKey), *const cos = shape(kCos);
  cuda::AttentionCall call;
  call.type = type;
  cuda::AttentionParams& p = call.params;
  p.batch = as_int32(query[0]);
  p.rows = as_int32(query[1]);
  p.heads = as_int32(a_.heads);
  p.kv_heads = as_int32(a_.kv_heads);
  p.d = p.dv = as_int32(query[2] / (key ? a_.heads : a_.heads + 2 * a_.kv_heads));
  p.new_rows = as_int32(key ? (*key)[1] : query[1]);
  p.prepare_new = p.new_rows > 0;
  p.past_capacity = past ? as_int32((*past)[2]) : 0;
  p.capacity = as_int32(capacity);
  p.columns = shape(kBias) ? as_int32((*shape(kBias))[3]) : a_.qk != QkOutput::none ? as_int32(total) : 0;
  p.causal = a_.causal;
  p.window = as_int32(a_.window);
  p.windowed_cache = a_.windowed_cache;
  p.format = a_.k_quant == Quant::none  ? cuda::kCacheSame
             : a_.bits == 4             ? cuda::kCacheI4
             : cache == DType::f8e4m3fn ? cuda::kCacheF8
                                        : cuda::kCacheI8;
  p.k_per_channel = a_.k_quant == Quant::per_channel;
  p.v_per_channel = a_.v_quant == Quant::per_channel;
  if (a_.rotary) {
    p.table_rows = as_int32((*cos)[0]);
    p.half = as_int32((*cos)[1]);
  }
  p.interleaved = a_.interleaved;
  p.prepare_query = a_.rotary || shape(kQNorm);
  p.zero_sink = a_.smooth;
  p.qk_output = a_.qk == QkOutput::none ? 0 : a_.qk == QkOutput::logits ? 1 : 2;
  p.scale = default_scale(a_.scale, p.d);
  p.softcap = a_.softcap;
  p.q_epsilon = a_.q_epsilon;
  p.k_epsilon = a_.k_epsilon;
  return call;
}

Status GroupQueryAttentionOnDevice::launch(const DeviceRun& run) const {
  const auto in = [&](int i) { return run.input(i); };
  const auto shape = [&](int i) -> const Shape* { return in(i) ? &in(i)->shape : nullptr; };
  const Tensor &query = *in(kQuery), *const past_k = in(kPastKey), *const past_v = in(kPastValue);
  const Tensor *const present_k = run.output(kPresentKey), *const present_v = run.output(kPresentValue);
  const DType cache = past_k ? past_k->dtype : present_k ? present_k->dtype : DType::undefined;
  cuda::AttentionCall call =
      sizes(query.dtype, cache, shape, present_k ? present_k->shape[2] : 0, run.output(kQk) ? run.output(kQk)->shape[3] : 0);
  cuda::AttentionParams& p = call.params;
  HOTSET_FAIL_IF(past_k && present_k && p.past_capacity > 0 && p.past_capacity != p.capacity &&
                     (past_k->data == present_k->data || past_v->data == present_v->data),
                 invalid_argument, "past and present share a buffer but differ in capacity: %d and %d", p.past_capacity, p.capacity);
  p.seqlens = device_address(in(kSeqlens));
  p.query_seqlens = device_address(in(kQuerySeqlens));
  p.positions = device_address(in(kPositions));
  if (positions_need_total_) p.total = device_address(in(kTotal));
  if (p.half) {
    p.cos = device_address(in(kCos));
    p.sin = device_address(in(kSin));
  }
  p.q_norm = device_address(in(kQNorm));
  p.k_norm = device_address(in(kKNorm));
  p.sink = device_address(in(kSink));
  if (p.format != cuda::kCacheSame) {
    p.k_scale = device_address(in(kKScale));
    p.v_scale = device_address(in(kVScale));
  }
  if (const Tensor* const bias = in(kBias)) {
    p.bias = device_address(bias);
    p.bias_s = p.columns;
    p.bias_h = bias->shape[1] == 1 ? 0 : int64_t{p.rows} * p.columns;
    p.bias_b = bias->shape[0] == 1 ? 0 : bias->shape[1] * p.rows * p.columns;
  }
  p.qk = device_address(run.output(kQk));

  const int64_t head = static_cast<int64_t>(dtype_bytes(query.dtype)) * p.d;
  p.query = vectors_of(query, p.rows, 0, head);
  p.key = in(kKey) ? vectors_of(*in(kKey), p.new_rows, 0, head) : vectors_of(query, p.rows, p.heads, head);
  p.value = in(kValue) ? vectors_of(*in(kValue), p.new_rows, 0, head) : vectors_of(query, p.rows, p.heads + p.kv_heads, head);
  p.past_k = rows_of_heads(past_k);
  p.past_v = rows_of_heads(past_v);
  p.present_k = rows_of_heads(present_k);
  p.present_v = rows_of_heads(present_v);
  p.output = vectors_of(*run.output(kOut), p.rows, 0, head);
  return cuda::attention(run.gpu, run.stream, call, reinterpret_cast<cuda::DevicePtr>(run.workspace));
}

Result<std::unique_ptr<DeviceKernel>> make_group_query_attention_on_device(const DeviceContext& c) {
  HOTSET_ASSIGN(const Attributes a, parse(c.op));
  const bool needs_total = a.rotary && c.op.has_input(kPositions) && !c.op.has_input(kQuerySeqlens);
  return Result<std::unique_ptr<DeviceKernel>>(std::make_unique<GroupQueryAttentionOnDevice>(a, needs_total, c.gpu));
}

}  // namespace

HOTSET_CUDA_OPS(group_query_attention_cuda, {"com.microsoft", "GroupQueryAttention", make_group_query_attention_on_device});

}  // namespace hotset::ops
