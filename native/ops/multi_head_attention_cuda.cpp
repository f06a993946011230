// SPDX-License-Identifier: Apache-2.0
// MultiHeadAttention on a GPU: new keys and values are read where they come, or from present when it is asked for.
#include "ops/multi_head_attention.h"

#include "ops/attention_cuda.h"

namespace hotset::ops {
namespace {

using namespace mha;

class MultiHeadAttentionOnDevice final : public DeviceKernel {
 public:
  MultiHeadAttentionOnDevice(const Attributes& a, const cuda::Gpu& gpu) : a_(a), gpu_(gpu) {}
  std::string_view implementation() const override { return "cuda mma"; }

  Status plan(const InferContext& c, size_t* workspace) const override {
    Tensor t;
    const Sources s = sources(
        a_, [&](int i) { return c.has_input(i); },
        [&](int i) -> const Tensor& {
          t = {nullptr, c.dtype(i), c.shape(i)};
          return t;
        });
    const int64_t past = c.has_input(kPastKey) ? c.shape(kPastKey)[2] : 0;
    const cuda::AttentionCall call = sizes(s, c.shape(kQuery)[0], past, c.has_output(kPresentKey), c.has_input(kBias));
    HOTSET_TRY(check_device_sizes(call.params));
    *workspace = cuda::attention_workspace(gpu_, call);
    return {};
  }
  Status launch(const DeviceRun& run) const override;

 private:
  cuda::AttentionCall sizes(const Sources& s, int64_t batch, int64_t past, bool has_present, bool has_bias) const;

  const Attributes a_;
  const cuda::Gpu& gpu_;
};

cuda::AttentionCall MultiHeadAttentionOnDevice::sizes(const Sources& s, int64_t batch, int64_t past, bool has_present,
                                                      bool has_bias) const {
  cuda::AttentionCall call;
  call.type = s.q.dtype;
  cuda::AttentionParams& p = call.params;
  p.batch = as_int32(batch);
  p.rows = as_int32(s.q.rows);
  p.heads = p.kv_heads = as_int32(a_.heads);
  p.d = as_int32(s.q.width);
  p.dv = as_int32(s.v.width);
  p.new_rows = as_int32(s.k.rows);
  p.past_capacity = as_int32(past);
  p.fixed_keys = as_int32(past + s.k.rows);
  p.prepare_new = has_present && s.k.rows > 0;
  p.capacity = has_present ? p.fixed_keys : 0;
  p.columns = has_bias ? p.fixed_keys : 0;
  p.causal = a_.causal;
  p.scale = default_scale(a_.scale, p.d);
  return call;
}

Status MultiHeadAttentionOnDevice::launch(const DeviceRun& run) const {
  const Sources s = sources(a_, [&](int i) { return run.input(i) != nullptr; }, [&](int i) -> const Tensor& { return *run.input(i); });
  const Tensor *const past_k = run.input(kPastKey), *const past_v = run.input(kPastValue), *const bias = run.input(kBias);
  const int64_t batch = run.input(kQuery)->shape[0], past = past_k ? past_k->shape[2] : 0;
  cuda::AttentionCall call = sizes(s, batch, past, run.output(kPresentKey) != nullptr, bias != nullptr);
  cuda::AttentionParams& p = call.params;
  if (bias) {
    AttendParams strides;
    bias_strides(bias->shape, batch, p.heads, p.rows, p.fixed_keys, &strides);
    p.bias = device_address(bias);
    p.bias_b = strides.bias_b;
    p.bias_h = strides.bias_h;
    p.bias_s = strides.bias_s;
  }
  p.query = device_rows(s.q);
  p.key = device_rows(s.k);
  p.value = device_rows(s.v);
  p.past_k = rows_of_heads(past_k);
  p.past_v = rows_of_heads(past_v);
  if (run.output(kPresentKey)) {
    p.present_k = rows_of_heads(run.output(kPresentKey));
    p.present_v = rows_of_heads(run.output(kPresentValue));
  } else {
    p.staged_k = p.key;
    p.staged_v = p.value;
  }
  p.output = vectors_of(*run.output(kOut), p.rows, 0, static_cast<int64_t>(dtype_bytes(call.type)) * p.dv);
  return cuda::attention(run.gpu, run.stream, call, reinterpret_cast<cuda::DevicePtr>(run.workspace));
}

Result<std::unique_ptr<DeviceKernel>> make_multi_head_attention_on_device(const DeviceContext& c) {
  HOTSET_ASSIGN(const Attributes a, parse(c.op));
  for (const auto& [input, name] : {std::pair{kProjectionBias, "bias"}, std::pair{kPadding, "key_padding_mask"}})
    if (c.op.has_input(input)) return c.on_cpu("input %s has no device kernel", name);
  if (c.op.has_output(kQk)) return c.on_cpu("output 3 has no device kernel");
  if (c.op.has_output(kPresentKey) != c.op.has_output(kPresentValue))
    return c.on_cpu("only one of the present outputs has no device kernel");
  return Result<std::unique_ptr<DeviceKernel>>(std::make_unique<MultiHeadAttentionOnDevice>(a, c.gpu));
}

}  // namespace

HOTSET_CUDA_OPS(multi_head_attention_cuda, {"com.microsoft", "MultiHeadAttention", make_multi_head_attention_on_device});

}  // namespace hotset::ops
