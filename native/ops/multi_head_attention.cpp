// SPDX-License-Identifier: Apache-2.0
// com.microsoft MultiHeadAttention without the beam search inputs: one K/V head for each query head.
#include "ops/multi_head_attention.h"

#include <cmath>

#include "cpu_avx/convert.h"

namespace hotset::ops {
namespace {

using namespace mha;

constexpr const char* kNames[] = {"query",
                                  "key",
                                  "value",
                                  "bias",
                                  "key_padding_mask",
                                  "attention_bias",
                                  "past_key",
                                  "past_value",
                                  "past_sequence_length",
                                  "cache_indirection"};

// Workspace: [entries][mask of padded keys][K + bias, V + bias][attend]
struct Layout {
  size_t padding, k, v, attend;
  Layout(int64_t batch, const Sources& s, int64_t keys, bool has_padding, bool has_bias) {
    padding = round_up_64(static_cast<size_t>(batch) * sizeof(AttendEntry));
    k = padding + (has_padding ? round_up_64(static_cast<size_t>(batch * keys) * sizeof(float)) : 0);
    const auto bytes = [&](const HeadRows& r) {
      return has_bias ? round_up_64(dtype_bytes(r.dtype) * static_cast<size_t>(batch * r.heads * r.rows * r.width)) : 0;
    };
    v = k + bytes(s.k);
    attend = v + bytes(s.v);
  }
};

class MultiHeadAttention final : public Kernel {
 public:
  explicit MultiHeadAttention(const Attributes& a) : a_(a) {}
  std::string_view implementation() const override { return cpu::attention_isa(); }
  Status infer(InferContext& c) const override;
  Status run(const RunContext& c) const override;

 private:
  Status check_sources(InferContext& c) const;
  AttendParams params(const Sources& s, int64_t batch, int64_t past, bool has_qk) const {
    AttendParams p;
    p.batch = batch;
    p.heads = p.kv_heads = a_.heads;
    p.rows = s.q.rows;
    p.keys = past + s.k.rows;
    p.d = s.q.width;
    p.dv = s.v.width;
    p.causal = a_.causal;
    p.scale = a_.scale != 0 ? a_.scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.d)));
    p.qk_output = has_qk ? QkOutput::logits : QkOutput::none;
    p.qk_hidden = -3.4028234663852886e38f;
    return p;
  }
  const Attributes a_;
};

Status MultiHeadAttention::check_sources(InferContext& c) const {
  const DType type = c.dtype(kQuery);
  HOTSET_FAIL_IF(type != DType::f32 && type != DType::f16 && type != DType::bf16, unsupported,
                 "query is %s, supported: float, float16, bfloat16", dtype_name(type));
  for (const int i : {kKey, kValue, kProjectionBias, kBias, kPastKey, kPastValue})
    HOTSET_FAIL_IF(c.has_input(i) && c.dtype(i) != type, invalid_argument, "%s is %s, query is %s", kNames[i], dtype_name(c.dtype(i)),
                   dtype_name(type));
  const int parts[3] = {c.has_input(kKey) ? 1 : 3, c.has_input(kValue) ? 1 : 2, 1};
  for (const int i : {kQuery, kKey, kValue}) {
    if (!c.has_input(i)) continue;
    const Shape& s = c.shape(i);
    const bool heads_fit = s.rank == 3   ? s[2] > 0 && s[2] % a_.heads == 0
                           : s.rank == 4 ? s[1] == a_.heads
                                         : s.rank == 5 && s[2] == a_.heads && s[3] == parts[i];
    HOTSET_FAIL_IF(!heads_fit || (s.rank == 5) != (parts[i] > 1) || s[-1] == 0, invalid_argument,
                   "%s has shape %s, which does not fit %lld heads%s", kNames[i], to_text(s).c_str(), static_cast<long long>(a_.heads),
                   parts[i] > 1 ? " of packed parts" : "");
    HOTSET_FAIL_IF(s[0] != c.shape(kQuery)[0], invalid_argument, "%s has shape %s, query %s: another batch size", kNames[i],
                   to_text(s).c_str(), to_text(c.shape(kQuery)).c_str());
  }
  return {};
}

Status MultiHeadAttention::infer(InferContext& c) const {
  HOTSET_TRY(check_sources(c));
  const DType type = c.dtype(kQuery);
  const auto text = [&](int i) { return to_text(c.shape(i)); };
  Tensor t;
  const Sources s = sources(
      a_, [&](int i) { return c.has_input(i); },
      [&](int i) -> const Tensor& {
        t.dtype = type;
        t.shape = c.shape(i);
        return t;
      });
  HOTSET_FAIL_IF(s.k.width != s.q.width || s.v.rows != s.k.rows, invalid_argument,
                 "key has %lld rows of %lld channels a head and value %lld, query has %lld channels", static_cast<long long>(s.k.rows),
                 static_cast<long long>(s.k.width), static_cast<long long>(s.v.rows), static_cast<long long>(s.q.width));
  const int64_t batch = c.shape(kQuery)[0];
  int64_t past = 0;
  if (c.has_input(kPastKey)) {
    past = c.shape(kPastKey).rank == 4 ? c.shape(kPastKey)[2] : 0;
    for (const int i : {kPastKey, kPastValue}) {
      const Shape expected{batch, a_.heads, past, i == kPastKey ? s.k.width : s.v.width};
      HOTSET_FAIL_IF(!(c.shape(i) == expected), invalid_argument, "%s has shape %s, expected %s", kNames[i], text(i).c_str(),
                     to_text(expected).c_str());
    }
  }
  AttendParams p = params(s, batch, past, c.has_output(kQk));
  if (c.has_input(kProjectionBias)) {
    const Shape expected{a_.heads * (2 * s.q.width + s.v.width)};
    HOTSET_FAIL_IF(!(c.shape(kProjectionBias) == expected), invalid_argument, "bias has shape %s, expected %s",
                   text(kProjectionBias).c_str(), to_text(expected).c_str());
  }
  if (c.has_input(kPadding)) {
    const Shape expected{batch, p.keys};
    HOTSET_FAIL_IF(c.dtype(kPadding) != DType::i32, invalid_argument, "key_padding_mask is %s, expected int32",
                   dtype_name(c.dtype(kPadding)));
    HOTSET_FAIL_IF(!(c.shape(kPadding) == expected), unsupported, "key_padding_mask has shape %s, supported: %s", text(kPadding).c_str(),
                   to_text(expected).c_str());
  }
  if (c.has_input(kBias))
    HOTSET_FAIL_IF(
        c.shape(kBias).rank != 4 || c.shape(kBias)[2] != p.rows || !bias_strides(c.shape(kBias), batch, p.heads, p.rows, p.keys, &p),
        invalid_argument, "attention_bias has shape %s, expected [1 or %lld,1 or %lld,%lld,%lld]", text(kBias).c_str(),
        static_cast<long long>(batch), static_cast<long long>(p.heads), static_cast<long long>(p.rows), static_cast<long long>(p.keys));
  c.set_output(kOut, type, Shape{batch, p.rows, a_.heads * p.dv});
  if (c.has_output(kPresentKey)) c.set_output(kPresentKey, type, Shape{batch, a_.heads, p.keys, p.d});
  if (c.has_output(kPresentValue)) c.set_output(kPresentValue, type, Shape{batch, a_.heads, p.keys, p.dv});
  if (c.has_output(kQk)) c.set_output(kQk, type, Shape{batch, a_.heads, p.rows, p.keys});
  c.set_workspace(Layout(batch, s, p.keys, c.has_input(kPadding), c.has_input(kProjectionBias)).attend +
                  attend_workspace(p, c.n_threads()));
  return {};
}

// x + bias, rounded to the type of x.
struct BiasedQuery {
  const HeadRows& q;
  const Tensor* bias;
};

void add_bias(const HeadRows& r, const Tensor& bias, int64_t first, int64_t head, float* x) {
  for (int64_t i = 0; i < r.width; ++i) {
    float b;
    cpu::to_f32(bias.dtype, bias.as<uint8_t>() + dtype_bytes(bias.dtype) * static_cast<size_t>(first + head * r.width + i), &b, 1);
    x[i] += b;
  }
}

// Rows with bias as a new [B, heads, rows, width] at `to`.
HeadRows stage_biased(const HeadRows& r, const Tensor& bias, int64_t first, int64_t batch, uint8_t* to, float* x) {
  const HeadRows staged{to, r.dtype, r.heads, r.rows, r.width, r.heads * r.rows * r.width, r.rows * r.width, r.width};
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < r.heads; ++h) {
      for (int64_t s = 0; s < r.rows; ++s) {
        cpu::to_f32(r.dtype, r.at(b, h, s), x, r.width);
        add_bias(r, bias, first, h, x);
        cpu::from_f32(r.dtype, x, staged.at(b, h, s), r.width);
      }
    }
  }
  return staged;
}

Status MultiHeadAttention::run(const RunContext& c) const {
  Sources s = sources(a_, [&](int i) { return c.input(i) != nullptr; }, [&](int i) -> const Tensor& { return *c.input(i); });
  const Tensor *const past_k = c.input(kPastKey), *const past_v = c.input(kPastValue), *const bias = c.input(kProjectionBias);
  const int64_t batch = c.input(kQuery)->shape[0], past = past_k ? past_k->shape[2] : 0;
  AttendParams p = params(s, batch, past, c.output(kQk) != nullptr);
  const Layout layout(batch, s, p.keys, c.input(kPadding) != nullptr, bias != nullptr);
  uint8_t* const work = static_cast<uint8_t*>(c.workspace);
  if (bias) {
    float* const x = reinterpret_cast<float*>(work + layout.attend);  // of no use to attend() yet
    s.k = stage_biased(s.k, *bias, a_.heads * p.d, batch, work + layout.k, x);
    s.v = stage_biased(s.v, *bias, 2 * a_.heads * p.d, batch, work + layout.v, x);
  }
  AttendEntry* const entries = reinterpret_cast<AttendEntry*>(work);
  for (int64_t b = 0; b < batch; ++b) {
    AttendEntry& e = entries[b];
    e = {};
    e.n_rows = s.q.rows;
    e.position = past;
    e.limit = p.keys;
    if (past > 0) {
      head_rows(*past_k, 0).set_piece(&e.pieces[0], b, 0, false);
      head_rows(*past_v, 0).set_piece(&e.pieces[0], b, 0, true);
    }
    s.k.set_piece(&e.pieces[1], b, past, false);
    s.v.set_piece(&e.pieces[1], b, past, true);
  }
  p.entries = entries;
  p.k_format = p.v_format = kv_format(s.q.dtype, 0);
  const BiasedQuery query{s.q, bias};
  p.context = &query;
  p.load_query = [](const void* context, int64_t b, int64_t h, int64_t row, float* x) {
    const BiasedQuery& from = *static_cast<const BiasedQuery*>(context);
    cpu::to_f32(from.q.dtype, from.q.at(b, h, row), x, from.q.width);
    if (from.bias) add_bias(from.q, *from.bias, 0, h, x);
  };
  if (const Tensor* const padding = c.input(kPadding)) {
    float* const hidden = reinterpret_cast<float*>(work + layout.padding);
    for (int64_t i = 0; i < batch * p.keys; ++i) hidden[i] = padding->as<int32_t>()[i] == 0 ? a_.filter : 0.0f;
    p.key_bias = hidden;
  }
  if (c.input(kBias)) {
    p.bias = c.input(kBias);
    bias_strides(p.bias->shape, batch, p.heads, p.rows, p.keys, &p);
  }
  p.output = c.output(kOut);
  const HeadRows out = head_rows(*p.output, p.heads);
  p.out_b = out.b;
  p.out_h = out.h;
  p.out_s = out.s;
  p.qk = c.output(kQk);
  attend(p, work + layout.attend, c.pool);
  if (c.output(kPresentKey)) write_present(past_k, s.k, c.output(kPresentKey), c.pool);
  if (c.output(kPresentValue)) write_present(past_v, s.v, c.output(kPresentValue), c.pool);
  return {};
}

Result<std::unique_ptr<Kernel>> make_multi_head_attention(const OpContext& c) {
  HOTSET_ASSIGN(const Attributes a, parse(c));
  return std::unique_ptr<Kernel>(std::make_unique<MultiHeadAttention>(a));
}

}  // namespace

Result<mha::Attributes> mha::parse(const OpContext& c) {
  const model::Node& n = c.node();
  Attributes a;
  a.heads = n.get_int("num_heads", 0);
  if (a.heads < 1) return c.fail(Code::invalid_model, "num_heads is %lld, expected at least 1", static_cast<long long>(a.heads));
  const int64_t causal = n.get_int("unidirectional", 0);
  if (causal != 0 && causal != 1)
    return c.fail(Code::invalid_model, "unidirectional is %lld, expected 0 or 1", static_cast<long long>(causal));
  a.causal = causal == 1;
  a.scale = n.get_float("scale", 0.0f);
  a.filter = n.get_float("mask_filter_value", -10000.0f);
  if (!c.has_input(kQuery)) return c.fail(Code::invalid_model, "input query is missing");
  if (c.has_input(kValue) && !c.has_input(kKey)) return c.fail(Code::invalid_model, "value is given without key");
  if (c.has_input(kPastKey) != c.has_input(kPastValue)) return c.fail(Code::invalid_model, "only one of past_key and past_value is given");
  for (const int i : {kPastLength, kCacheIndirection})
    if (c.has_input(i)) return c.fail(Code::unsupported, "input %s is not supported", kNames[i]);
  if (!c.has_output(kOut)) return c.fail(Code::invalid_model, "output 0 is missing");
  return a;
}

HOTSET_OPS(multi_head_attention, {"com.microsoft", "MultiHeadAttention", 1, kLatest, make_multi_head_attention, {1, 10, 4}});

}  // namespace hotset::ops
