// SPDX-License-Identifier: Apache-2.0
// Attention of the standard domain (opset 23, 24): optional mask, past, causal rule, lengths of a cache kept outside.
#include <cmath>

#include "cpu_avx/convert.h"
#include "ops/attend.h"
#include "ops/op.h"

namespace hotset::ops {
namespace {

enum Input { kQ, kK, kV, kMask, kPastKey, kPastValue, kLengths };
enum Output { kOut, kPresentKey, kPresentValue, kQk };

constexpr const char* kNames[] = {"Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"};

struct Attributes {
  int64_t q_heads = 0, kv_heads = 0;
  bool causal = false, has_scale = false;
  float scale = 0, softcap = 0;
};

class Attention final : public Kernel {
 public:
  explicit Attention(const Attributes& a) : a_(a) {}
  std::string_view implementation() const override { return cpu::attention_isa(); }
  Status infer(InferContext& c) const override;
  Status run(const RunContext& c) const override;

 private:
  // Sizes of a call; q, k, v as head_rows gives them.
  AttendParams params(const HeadRows& q, const HeadRows& k, const HeadRows& v, int64_t batch, int64_t past) const {
    AttendParams p;
    p.batch = batch;
    p.heads = q.heads;
    p.kv_heads = k.heads;
    p.rows = q.rows;
    p.keys = past + k.rows;
    p.d = q.width;
    p.dv = v.width;
    p.causal = a_.causal;
    p.scale = a_.has_scale ? a_.scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.d)));
    p.softcap = a_.softcap;
    return p;
  }
  const Attributes a_;
};

Status Attention::infer(InferContext& c) const {
  const DType type = c.dtype(kQ);
  const auto text = [&](int i) { return to_text(c.shape(i)); };
  HOTSET_FAIL_IF(type != DType::f32 && type != DType::f16 && type != DType::bf16, unsupported,
                 "Q is %s, supported: float, float16, bfloat16", dtype_name(type));
  for (const int i : {kK, kV, kPastKey, kPastValue})
    HOTSET_FAIL_IF(c.has_input(i) && c.dtype(i) != type, unsupported, "%s is %s, Q is %s", kNames[i], dtype_name(c.dtype(i)),
                   dtype_name(type));
  const int rank = c.shape(kQ).rank;
  HeadRows x[3];
  Tensor t[3];
  for (const int i : {kQ, kK, kV}) {
    const Shape& s = c.shape(i);
    HOTSET_FAIL_IF((s.rank != 3 && s.rank != 4) || s.rank != rank, invalid_argument, "%s has shape %s, expected %s dimensions, as Q",
                   kNames[i], text(i).c_str(),
                   rank == 3   ? "3"
                   : rank == 4 ? "4"
                               : "3 or 4");
    const int64_t heads = i == kQ ? a_.q_heads : a_.kv_heads;
    HOTSET_FAIL_IF(rank == 3 && heads < 1, invalid_argument, "%s has 3 dimensions, which needs %s", kNames[i],
                   i == kQ ? "q_num_heads" : "kv_num_heads");
    HOTSET_FAIL_IF(rank == 3 && s[2] % heads != 0, invalid_argument, "%s has shape %s, its last dimension is no multiple of %lld heads",
                   kNames[i], text(i).c_str(), static_cast<long long>(heads));
    t[i].dtype = type;
    t[i].shape = s;
    x[i] = head_rows(t[i], heads);
    HOTSET_FAIL_IF(s[0] != c.shape(kQ)[0], invalid_argument, "%s has shape %s, Q %s: another batch size", kNames[i], text(i).c_str(),
                   text(kQ).c_str());
    HOTSET_FAIL_IF(x[i].heads < 1 || x[i].width < 1, invalid_argument, "%s has shape %s", kNames[i], text(i).c_str());
  }
  const HeadRows &q = x[kQ], &k = x[kK], &v = x[kV];
  const int64_t batch = c.shape(kQ)[0];
  HOTSET_FAIL_IF(q.heads % k.heads != 0 || v.heads != k.heads, invalid_argument, "Q has %lld heads, K %lld and V %lld",
                 static_cast<long long>(q.heads), static_cast<long long>(k.heads), static_cast<long long>(v.heads));
  HOTSET_FAIL_IF(k.width != q.width || v.rows != k.rows, invalid_argument, "K has shape %s, which does not fit Q %s and V %s",
                 text(kK).c_str(), text(kQ).c_str(), text(kV).c_str());
  int64_t past = 0;
  if (c.has_input(kPastKey)) {
    const Shape &pk = c.shape(kPastKey), &pv = c.shape(kPastValue);
    past = pk.rank == 4 ? pk[2] : 0;
    for (const int i : {kPastKey, kPastValue}) {
      const Shape expected{batch, k.heads, past, i == kPastKey ? k.width : v.width};
      HOTSET_FAIL_IF(!((i == kPastKey ? pk : pv) == expected), invalid_argument, "%s has shape %s, expected %s", kNames[i], text(i).c_str(),
                     to_text(expected).c_str());
    }
  }
  AttendParams p = params(q, k, v, batch, past);
  if (c.has_input(kMask)) {
    HOTSET_FAIL_IF(c.dtype(kMask) != DType::boolean && c.dtype(kMask) != type, invalid_argument, "attn_mask is %s, expected bool or %s",
                   dtype_name(c.dtype(kMask)), dtype_name(type));
    HOTSET_FAIL_IF(!bias_strides(c.shape(kMask), batch, p.heads, p.rows, p.keys, &p), invalid_argument,
                   "attn_mask has shape %s, which does not broadcast to [%lld,%lld,%lld,%lld]", text(kMask).c_str(),
                   static_cast<long long>(batch), static_cast<long long>(p.heads), static_cast<long long>(p.rows),
                   static_cast<long long>(p.keys));
  }
  if (c.has_input(kLengths)) {
    HOTSET_FAIL_IF(c.dtype(kLengths) != DType::i64 || !(c.shape(kLengths) == Shape{batch}), invalid_argument,
                   "nonpad_kv_seqlen is %s %s, expected int64 [%lld]", dtype_name(c.dtype(kLengths)), text(kLengths).c_str(),
                   static_cast<long long>(batch));
  }
  c.set_output(kOut, type, rank == 3 ? Shape{batch, q.rows, q.heads * v.width} : Shape{batch, q.heads, q.rows, v.width});
  if (c.has_output(kPresentKey)) c.set_output(kPresentKey, type, Shape{batch, k.heads, p.keys, k.width});
  if (c.has_output(kPresentValue)) c.set_output(kPresentValue, type, Shape{batch, k.heads, p.keys, v.width});
  c.set_workspace(round_up_64(static_cast<size_t>(batch) * sizeof(AttendEntry)) + attend_workspace(p, c.n_threads()));
  return {};
}

Status Attention::run(const RunContext& c) const {
  const HeadRows q = head_rows(*c.input(kQ), a_.q_heads), k = head_rows(*c.input(kK), a_.kv_heads),
                 v = head_rows(*c.input(kV), a_.kv_heads);
  const Tensor *const past_k = c.input(kPastKey), *const past_v = c.input(kPastValue);
  const int64_t batch = c.input(kQ)->shape[0], past = past_k ? past_k->shape[2] : 0;
  const int64_t* const lengths = c.input(kLengths) ? c.input(kLengths)->as<int64_t>() : nullptr;
  AttendParams p = params(q, k, v, batch, past);
  AttendEntry* const entries = static_cast<AttendEntry*>(c.workspace);
  for (int64_t b = 0; b < batch; ++b) {
    AttendEntry& e = entries[b];
    e = {};
    e.n_rows = q.rows;
    HOTSET_FAIL_IF(lengths && (lengths[b] < 0 || lengths[b] > p.keys), invalid_argument, "nonpad_kv_seqlen[%lld] is %lld, K has %lld rows",
                   static_cast<long long>(b), static_cast<long long>(lengths[b]), static_cast<long long>(p.keys));
    e.position = lengths ? lengths[b] - q.rows : past;
    e.limit = lengths ? lengths[b] : p.keys;
    if (past > 0) {
      head_rows(*past_k, 0).set_piece(&e.pieces[0], b, 0, false);
      head_rows(*past_v, 0).set_piece(&e.pieces[0], b, 0, true);
    }
    k.set_piece(&e.pieces[1], b, past, false);
    v.set_piece(&e.pieces[1], b, past, true);
  }
  p.entries = entries;
  p.k_format = p.v_format = kv_format(q.dtype, 0);
  p.context = &q;
  p.load_query = [](const void* context, int64_t b, int64_t h, int64_t s, float* x) {
    const HeadRows& rows = *static_cast<const HeadRows*>(context);
    cpu::to_f32(rows.dtype, rows.at(b, h, s), x, rows.width);
  };
  if (const Tensor* const mask = c.input(kMask)) {
    p.bias = mask;
    bias_strides(mask->shape, batch, p.heads, p.rows, p.keys, &p);
  }
  p.output = c.output(kOut);
  const HeadRows out = head_rows(*p.output, p.heads);
  p.out_b = out.b;
  p.out_h = out.h;
  p.out_s = out.s;
  attend(p, static_cast<uint8_t*>(c.workspace) + round_up_64(static_cast<size_t>(batch) * sizeof(AttendEntry)), c.pool);
  if (c.output(kPresentKey)) write_present(past_k, k, c.output(kPresentKey), c.pool);
  if (c.output(kPresentValue)) write_present(past_v, v, c.output(kPresentValue), c.pool);
  return {};
}

Result<std::unique_ptr<Kernel>> make_attention(const OpContext& c) {
  const model::Node& n = c.node();
  Attributes a;
  a.q_heads = n.get_int("q_num_heads", 0);
  a.kv_heads = n.get_int("kv_num_heads", 0);
  const int64_t causal = n.get_int("is_causal", 0);
  if (causal != 0 && causal != 1) return c.fail(Code::invalid_model, "is_causal is %lld, expected 0 or 1", static_cast<long long>(causal));
  if (a.kv_heads > 0 && a.q_heads % a.kv_heads != 0)
    return c.fail(Code::invalid_model, "q_num_heads is %lld, no multiple of kv_num_heads %lld", static_cast<long long>(a.q_heads),
                  static_cast<long long>(a.kv_heads));
  a.causal = causal == 1;
  a.has_scale = n.find("scale") != nullptr;
  a.scale = n.get_float("scale", 0.0f);
  a.softcap = n.get_float("softcap", 0.0f);
  for (const int i : {kQ, kK, kV})
    if (!c.has_input(i)) return c.fail(Code::invalid_model, "input %s is missing", kNames[i]);
  if (c.has_input(kPastKey) != c.has_input(kPastValue)) return c.fail(Code::invalid_model, "only one of past_key and past_value is given");
  if (c.has_input(kLengths) && c.has_input(kPastKey))
    return c.fail(Code::invalid_model, "nonpad_kv_seqlen is given together with past_key");
  if (!c.has_output(kOut)) return c.fail(Code::invalid_model, "output 0 is missing");
  if (c.has_output(kQk)) return c.fail(Code::unsupported, "output qk_matmul_output is not supported");
  return std::unique_ptr<Kernel>(std::make_unique<Attention>(a));
}

}  // namespace

HOTSET_OPS(attention, {"", "Attention", 23, kLatest, make_attention, {3, 7, 4}});

}  // namespace hotset::ops
