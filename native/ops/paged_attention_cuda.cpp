// SPDX-License-Identifier: Apache-2.0
// PagedAttention on a GPU. Lengths, tables and slots stay in device memory.
#include "ops/attention_cuda.h"
#include "ops/paged_attention.h"

namespace hotset::ops {
namespace {

using namespace paged;

class PagedAttentionOnDevice final : public DeviceKernel {
 public:
  PagedAttentionOnDevice(const Attributes& a, const cuda::Gpu& gpu) : a_(a), gpu_(gpu) {}
  InputUse use(int input) const override { return input == kMetadata ? InputUse::unused : InputUse::device; }
  std::string_view implementation() const override { return "cuda mma"; }

  Status plan(const InferContext& c, size_t* workspace) const override {
    const auto shape = [&](int i) { return c.has_input(i) ? &c.shape(i) : nullptr; };
    const cuda::AttentionCall call = sizes(c.dtype(kQuery), c.dtype(kKeyCache), shape);
    HOTSET_TRY(check_device_sizes(call.params));
    *workspace = cuda::attention_workspace(gpu_, call);
    return {};
  }
  Status launch(const DeviceRun& run) const override;

 private:
  template <class ShapeOf>
  cuda::AttentionCall sizes(DType type, DType cache, const ShapeOf& shape) const;

  const Attributes a_;
  const cuda::Gpu& gpu_;
};

// A request may have any number of the tokens, so each is planned for all of them.
template <class ShapeOf>
cuda::AttentionCall PagedAttentionOnDevice::sizes(DType type, DType cache, const ShapeOf& shape) const {
  const Shape &query = *shape(kQuery), &pages = *shape(kKeyCache), &table = *shape(kTable), *const cos = shape(kCos);
  cuda::AttentionCall call;
  call.type = type;
  cuda::AttentionParams& p = call.params;
  p.batch = as_int32(table[0]);
  p.rows = p.new_rows = as_int32(query[0]);
  p.prepare_new = 1;
  p.heads = as_int32(a_.heads);
  p.kv_heads = as_int32(a_.kv_heads);
  p.d = p.dv = as_int32(query[1] / (shape(kKey) ? a_.heads : a_.heads + 2 * a_.kv_heads));
  p.n_pages = as_int32(pages[0]);
  p.page_rows = as_int32(pages[1]);
  p.table_columns = as_int32(table[1]);
  p.capacity = as_int32(table[1] * pages[1]);
  p.causal = a_.causal;
  p.window = as_int32(a_.window);
  p.format = a_.k_quant == Quant::none  ? cuda::kCacheSame
             : cache == DType::u8       ? cuda::kCacheI4
             : cache == DType::f8e4m3fn ? cuda::kCacheF8
                                        : cuda::kCacheI8;
  p.k_per_channel = a_.k_quant == Quant::per_channel;
  p.v_per_channel = a_.v_quant == Quant::per_channel;
  if (a_.rotary) {
    p.table_rows = as_int32((*cos)[0]);
    p.half = as_int32((*cos)[1]);
  }
  p.interleaved = a_.interleaved;
  p.rotary_offset = as_int32(a_.rotary_offset);
  p.prepare_query = a_.rotary || shape(kQNorm);
  p.scale = default_scale(a_.scale, p.d);
  p.softcap = a_.softcap;
  p.q_epsilon = p.k_epsilon = a_.epsilon;
  return call;
}

Status PagedAttentionOnDevice::launch(const DeviceRun& run) const {
  const auto in = [&](int i) { return run.input(i); };
  const auto shape = [&](int i) -> const Shape* { return in(i) ? &in(i)->shape : nullptr; };
  const Tensor &query = *in(kQuery), &k_cache = *run.output(kKeyCacheOut), &v_cache = *run.output(kValueCacheOut);
  const cuda::Current current(run.gpu);
  for (const auto& [from, to] : {std::pair{in(kKeyCache), &k_cache}, std::pair{in(kValueCache), &v_cache}}) {
    if (from->data == to->data || from->bytes() == 0) continue;
    HOTSET_TRY(run.gpu.check(cuda::driver().memcpy_dtod_async(device_address(to), device_address(from), from->bytes(), run.stream),
                             "cuMemcpyDtoDAsync"));
  }
  cuda::AttentionCall call = sizes(query.dtype, k_cache.dtype, shape);
  cuda::AttentionParams& p = call.params;
  p.cumulative = device_address(in(kCumulative));
  p.past_seqlens = device_address(in(kPast));
  p.table = device_address(in(kTable));
  p.slots = device_address(in(kSlots));
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
  const int64_t head = static_cast<int64_t>(dtype_bytes(query.dtype)) * p.d;
  p.query = vectors_of(query, 0, 0, head);
  p.key = in(kKey) ? vectors_of(*in(kKey), 0, 0, head) : vectors_of(query, 0, p.heads, head);
  p.value = in(kValue) ? vectors_of(*in(kValue), 0, 0, head) : vectors_of(query, 0, p.heads + p.kv_heads, head);
  const int64_t vector = static_cast<int64_t>(dtype_bytes(k_cache.dtype)) * k_cache.shape[3], row = vector * p.kv_heads;
  p.present_k = {device_address(&k_cache), row * p.page_rows, vector, row};
  p.present_v = {device_address(&v_cache), row * p.page_rows, vector, row};
  p.output = vectors_of(*run.output(kOut), 0, 0, head);
  return cuda::attention(run.gpu, run.stream, call, reinterpret_cast<cuda::DevicePtr>(run.workspace));
}

Result<std::unique_ptr<DeviceKernel>> make_paged_attention_on_device(const DeviceContext& c) {
  HOTSET_ASSIGN(const Attributes a, parse(c.op));
  if (a.latent) return c.on_cpu("kv_cache_layout LATENT has no device kernel");
  return Result<std::unique_ptr<DeviceKernel>>(std::make_unique<PagedAttentionOnDevice>(a, c.gpu));
}

}  // namespace

HOTSET_CUDA_OPS(paged_attention_cuda, {"com.microsoft", "PagedAttention", make_paged_attention_on_device});

}  // namespace hotset::ops
