// SPDX-License-Identifier: Apache-2.0
// What GroupQueryAttention refuses, and how its cache rows are counted.
#include <cmath>

#include "ops/group_query_attention.h"

namespace hotset::ops::gqa {

Result<Attributes> parse(const OpContext& c) {
  const model::Node& n = c.node();
  Attributes a;
  a.heads = n.get_int("num_heads", 0);
  a.kv_heads = n.get_int("kv_num_heads", 0);
  const auto number = [](int64_t i) { return static_cast<long long>(i); };
  const auto refuse = [&](const char* name, long long value, const char* expected) {
    return c.fail(Code::invalid_model, "%s is %lld, expected %s", name, value, expected);
  };
  constexpr int64_t kMostHeads = 1 << 20;  // so that products of head numbers and sizes cannot overflow
  if (a.heads < 1 || a.heads > kMostHeads) return refuse("num_heads", number(a.heads), "1 to 1048576");
  if (a.kv_heads < 1 || a.heads % a.kv_heads != 0)
    return c.fail(Code::invalid_model, "kv_num_heads is %lld, expected a divisor of num_heads %lld", number(a.kv_heads), number(a.heads));
  const int64_t causal = n.get_int("causal", 1), window = n.get_int("local_window_size", -1),
                windowed = n.get_int("sliding_window_cache", 0);
  const int64_t rotary = n.get_int("do_rotary", 0), interleaved = n.get_int("rotary_interleaved", 0),
                smooth = n.get_int("smooth_softmax", -1);
  const int64_t qk = n.get_int("qk_output", 0);
  if (causal != 0 && causal != 1) return refuse("causal", number(causal), "0 or 1");
  if (window != -1 && window < 1) return refuse("local_window_size", number(window), "-1 or at least 1");
  if (window != -1 && causal == 0) return refuse("local_window_size", number(window), "-1 with causal = 0");
  if (windowed != 0 && windowed != 1) return refuse("sliding_window_cache", number(windowed), "0 or 1");
  if (windowed == 1 && window < 1) return refuse("sliding_window_cache", 1, "0 without local_window_size");
  if (rotary != 0 && rotary != 1) return refuse("do_rotary", number(rotary), "0 or 1");
  if (interleaved != 0 && interleaved != 1) return refuse("rotary_interleaved", number(interleaved), "0 or 1");
  if (smooth < -1 || smooth > 1) return refuse("smooth_softmax", number(smooth), "-1, 0 or 1");
  if (qk < 0 || qk > 2) return refuse("qk_output", number(qk), "0, 1 or 2");
  a.causal = causal == 1;
  a.window = window > 0 ? std::min(window, int64_t{1} << 40) : 0;  // so that positions can be added to it
  a.windowed_cache = windowed == 1;
  a.rotary = rotary == 1;
  a.interleaved = interleaved == 1;
  a.smooth = smooth == 1;
  a.qk = qk == 0 ? QkOutput::none : qk == 1 ? QkOutput::logits : QkOutput::weights;
  a.scale = n.get_float("scale", 0.0f);
  a.softcap = n.get_float("softcap", 0.0f);
  const float epsilon = n.get_float("qk_norm_epsilon", 1e-6f);
  a.q_epsilon = n.get_float("q_norm_epsilon", epsilon);
  a.k_epsilon = n.get_float("k_norm_epsilon", epsilon);
  for (const float e : {epsilon, a.q_epsilon, a.k_epsilon})
    if (!(e > 0) || std::isinf(e))
      return c.fail(Code::invalid_model, "a norm epsilon is %g, expected a finite positive number", static_cast<double>(e));

  for (const auto& [name, to] : {std::pair{"k_quant_type", &a.k_quant}, std::pair{"v_quant_type", &a.v_quant}}) {
    const std::string type = n.get_string(name, "NONE");
    if (type == "PER_TENSOR")
      *to = Quant::per_tensor;
    else if (type == "PER_CHANNEL")
      *to = Quant::per_channel;
    else if (type != "NONE")
      return c.fail(Code::invalid_model, "%s is '%s', expected NONE, PER_TENSOR or PER_CHANNEL", name, type.c_str());
  }
  a.bits = n.get_int("kv_cache_bit_width", 0);
  if ((a.k_quant == Quant::none) != (a.v_quant == Quant::none))
    return c.fail(Code::invalid_model, "k_quant_type and v_quant_type must both be NONE or both not");
  if (a.k_quant == Quant::none ? a.bits != 0 : a.bits != 4 && a.bits != 8)
    return refuse("kv_cache_bit_width", number(a.bits), a.k_quant == Quant::none ? "0 without quantisation" : "4 or 8");

  for (const int i : {kQuery, kSeqlens, kTotal})
    if (!c.has_input(i)) return c.fail(Code::invalid_model, "input %s is missing", kInputNames[i]);
  for (const auto& [x, y] : {std::pair{kKey, kValue}, std::pair{kPastKey, kPastValue}, std::pair{kCos, kSin}, std::pair{kQNorm, kKNorm}})
    if (c.has_input(x) != c.has_input(y))
      return c.fail(Code::invalid_model, "only one of %s and %s is given", kInputNames[x], kInputNames[y]);
  if (a.rotary && !c.has_input(kCos)) return c.fail(Code::invalid_model, "do_rotary is 1 but cos_cache and sin_cache are missing");
  if (!c.has_output(kOut)) return c.fail(Code::invalid_model, "output 0 is missing");
  if (c.has_output(kQk) != (a.qk != QkOutput::none))
    return c.fail(Code::invalid_model, "qk_output is %lld but output_qk is %s", number(qk),
                  c.has_output(kQk) ? "requested" : "not requested");
  if (a.windowed_cache && a.qk != QkOutput::none)
    return c.fail(Code::invalid_model, "qk_output is %lld, expected 0 with sliding_window_cache = 1", number(qk));
  return a;
}

namespace {

// Types and shapes.
Status check_shapes(const Attributes& a, const InferContext& c, int64_t total, Sizes* z) {
  const int64_t N = a.heads, Nk = a.kv_heads;
  const auto text = [&](int i) { return to_text(c.shape(i)); };
  const Shape& query = c.shape(kQuery);
  z->type = c.dtype(kQuery);
  HOTSET_FAIL_IF(z->type != DType::f32 && z->type != DType::f16 && z->type != DType::bf16, unsupported,
                 "query is %s, supported: float, float16, bfloat16", dtype_name(z->type));
  for (const int i : {kKey, kValue, kCos, kSin, kBias, kSink, kQNorm, kKNorm})
    HOTSET_FAIL_IF(c.has_input(i) && c.dtype(i) != z->type, invalid_argument, "%s is %s, query is %s", kInputNames[i],
                   dtype_name(c.dtype(i)), dtype_name(z->type));
  for (const int i : {kSeqlens, kTotal, kQuerySeqlens})
    HOTSET_FAIL_IF(c.has_input(i) && c.dtype(i) != DType::i32, invalid_argument, "%s is %s, expected int32", kInputNames[i],
                   dtype_name(c.dtype(i)));
  for (const int i : {kKScale, kVScale})
    HOTSET_FAIL_IF(c.has_input(i) && c.dtype(i) != DType::f32, invalid_argument, "%s is %s, expected float", kInputNames[i],
                   dtype_name(c.dtype(i)));
  HOTSET_FAIL_IF(c.has_input(kPositions) && c.dtype(kPositions) != DType::i64, invalid_argument, "position_ids is %s, expected int64",
                 dtype_name(c.dtype(kPositions)));

  HOTSET_FAIL_IF(query.rank != 3, invalid_argument, "query has shape %s, expected 3 dimensions", text(kQuery).c_str());
  z->packed = !c.has_input(kKey);
  z->B = query[0];
  z->S = query[1];
  const int64_t vectors = z->packed ? N + 2 * Nk : N;
  HOTSET_FAIL_IF(query[2] == 0 || query[2] % vectors != 0, invalid_argument,
                 "query has shape %s, its last dimension is no multiple of %lld heads", text(kQuery).c_str(),
                 static_cast<long long>(vectors));
  z->D = query[2] / vectors;
  HOTSET_FAIL_IF(z->D > kMaxHeadSize, unsupported, "head size %lld, supported: up to %lld", static_cast<long long>(z->D),
                 static_cast<long long>(kMaxHeadSize));
  z->Skv = z->S;
  if (!z->packed) {
    for (const int i : {kKey, kValue}) {
      const Shape& s = c.shape(i);
      HOTSET_FAIL_IF(s.rank != 3 || s[0] != z->B || s[2] != Nk * z->D || s[1] != c.shape(kKey)[1], invalid_argument,
                     "%s has shape %s, expected [%lld,%lld,%lld]", kInputNames[i], text(i).c_str(), static_cast<long long>(z->B),
                     static_cast<long long>(c.shape(kKey).rank == 3 ? c.shape(kKey)[1] : z->S), static_cast<long long>(Nk * z->D));
    }
    z->Skv = c.shape(kKey)[1];
    z->shared = z->Skv == 0 && z->S > 0;
    HOTSET_FAIL_IF(z->Skv != z->S && z->Skv != 0, invalid_argument, "key has shape %s, its rows differ from those of query %s",
                   text(kKey).c_str(), text(kQuery).c_str());
  }

  const bool quantized = a.k_quant != Quant::none, has_past = c.has_input(kPastKey);
  const int64_t Dc = a.bits == 4 ? (z->D + 1) / 2 : z->D;
  z->cache = has_past ? c.dtype(kPastKey) : !quantized ? z->type : a.bits == 4 ? DType::u8 : DType::i8;
  const bool fits = !quantized    ? z->cache == z->type
                    : a.bits == 4 ? z->cache == DType::u8
                                  : z->cache == DType::i8 || z->cache == DType::f8e4m3fn;
  HOTSET_FAIL_IF(!fits, invalid_argument, "past_key is %s, which does not fit query %s and kv_cache_bit_width %lld", dtype_name(z->cache),
                 dtype_name(z->type), static_cast<long long>(a.bits));
  z->k_row = z->v_row = dtype_bytes(z->cache) * static_cast<size_t>(Dc);
  if (has_past) {
    HOTSET_FAIL_IF(c.dtype(kPastValue) != z->cache, invalid_argument, "past_value is %s, past_key is %s", dtype_name(c.dtype(kPastValue)),
                   dtype_name(z->cache));
    for (const int i : {kPastKey, kPastValue}) {
      const Shape& s = c.shape(i);
      HOTSET_FAIL_IF(s.rank != 4 || s[0] != z->B || s[1] != Nk || s[3] != Dc || s[2] != c.shape(kPastKey)[2], invalid_argument,
                     "%s has shape %s, expected [%lld,%lld,capacity,%lld]", kInputNames[i], text(i).c_str(), static_cast<long long>(z->B),
                     static_cast<long long>(Nk), static_cast<long long>(Dc));
    }
    z->Cp = c.shape(kPastKey)[2];
  }
  z->C = a.windowed_cache ? z->Cp : std::max(z->Cp, total);

  for (const int i : {kSeqlens, kQuerySeqlens}) {
    if (!c.has_input(i)) continue;
    const Shape& s = c.shape(i);
    HOTSET_FAIL_IF(s.rank == 0 || s.size() != z->B, invalid_argument, "%s has shape %s, expected [%lld]", kInputNames[i], text(i).c_str(),
                   static_cast<long long>(z->B));
  }
  if (c.has_input(kCos)) {
    const Shape& cos = c.shape(kCos);
    HOTSET_FAIL_IF(cos.rank != 2 || !(cos == c.shape(kSin)), invalid_argument,
                   "cos_cache has shape %s and sin_cache %s, expected two equal shapes of 2 dimensions", text(kCos).c_str(),
                   text(kSin).c_str());
    z->half = cos[1];
    HOTSET_FAIL_IF(z->half == 0 || 2 * z->half > z->D, invalid_argument, "cos_cache has shape %s: %lld rotated channels, head size is %lld",
                   text(kCos).c_str(), static_cast<long long>(2 * z->half), static_cast<long long>(z->D));
    HOTSET_FAIL_IF(cos[0] < total, invalid_argument, "cos_cache has shape %s, fewer rows than total_sequence_length %lld",
                   text(kCos).c_str(), static_cast<long long>(total));
  }
  if (c.has_input(kPositions))
    HOTSET_FAIL_IF(!(c.shape(kPositions) == Shape{z->B, z->S}), invalid_argument, "position_ids has shape %s, expected [%lld,%lld]",
                   text(kPositions).c_str(), static_cast<long long>(z->B), static_cast<long long>(z->S));
  if (c.has_input(kBias)) {
    const Shape& s = c.shape(kBias);
    HOTSET_FAIL_IF(s.rank != 4 || (s[0] != 1 && s[0] != z->B) || (s[1] != 1 && s[1] != N) || s[2] != z->S || s[3] != total,
                   invalid_argument, "attention_bias has shape %s, expected [1 or %lld,1 or %lld,%lld,%lld]", text(kBias).c_str(),
                   static_cast<long long>(z->B), static_cast<long long>(N), static_cast<long long>(z->S), static_cast<long long>(total));
  }
  HOTSET_FAIL_IF(c.has_input(kSink) && !(c.shape(kSink) == Shape{N}), invalid_argument, "head_sink has shape %s, expected [%lld]",
                 text(kSink).c_str(), static_cast<long long>(N));
  for (const int i : {kQNorm, kKNorm})
    HOTSET_FAIL_IF(c.has_input(i) && !(c.shape(i) == Shape{z->D}), invalid_argument, "%s has shape %s, expected [%lld]", kInputNames[i],
                   text(i).c_str(), static_cast<long long>(z->D));
  for (const int i : {kKScale, kVScale}) {
    HOTSET_FAIL_IF(quantized && !c.has_input(i), invalid_argument, "%s is missing, the cache is quantised", kInputNames[i]);
    if (!quantized) continue;
    const bool per_tensor = (i == kKScale ? a.k_quant : a.v_quant) == Quant::per_tensor;
    const int64_t n = c.shape(i).size(), expected = per_tensor ? 1 : Nk * z->D;
    HOTSET_FAIL_IF(n != expected, invalid_argument, "%s has shape %s, expected %lld elements", kInputNames[i], text(i).c_str(),
                   static_cast<long long>(expected));
  }
  return {};
}

}  // namespace

Status check_call(const Attributes& a, const InferContext& c, int64_t total, Sizes* sizes) {
  HOTSET_TRY(check_shapes(a, c, total, sizes));
  const Sizes& z = *sizes;
  const bool has_past = c.has_input(kPastKey), has_present = c.has_output(kPresentKey), chunked = c.has_input(kQuerySeqlens);
  HOTSET_FAIL_IF(has_present != c.has_output(kPresentValue), invalid_model, "present_key and present_value must be requested together");
  if (z.B > 0) {
    const long long t = total;
    HOTSET_FAIL_IF(total < 1, invalid_argument, "total_sequence_length is %lld, expected at least 1", t);
    if (!a.windowed_cache)
      HOTSET_FAIL_IF(total < z.Skv, invalid_argument, "total_sequence_length is %lld, less than the %lld new rows", t,
                     static_cast<long long>(z.Skv));
    if (!chunked && !a.windowed_cache)
      HOTSET_FAIL_IF(total > z.Cp && total != z.Cp + z.Skv, invalid_argument,
                     "total_sequence_length is %lld, neither at most the cache capacity %lld nor capacity + %lld new rows", t,
                     static_cast<long long>(z.Cp), static_cast<long long>(z.Skv));
    HOTSET_FAIL_IF(!chunked && z.S > 1 && z.S != total && z.B > 1, invalid_argument,
                   "query has %lld rows, total_sequence_length is %lld and batch size %lld: a continuation of several rows needs batch "
                   "size 1 or query_seqlens",
                   static_cast<long long>(z.S), t, static_cast<long long>(z.B));
  }
  HOTSET_FAIL_IF(z.shared && !has_past, invalid_argument, "key has no rows, which needs past_key");
  if (chunked) {
    HOTSET_FAIL_IF(!a.causal, invalid_argument, "query_seqlens needs causal = 1");
    HOTSET_FAIL_IF(!has_past || !has_present, invalid_argument, "query_seqlens needs the past inputs and the present outputs");
    HOTSET_FAIL_IF(z.shared, invalid_argument, "query_seqlens is given but key has no rows");
  }
  if (a.windowed_cache) {
    HOTSET_FAIL_IF(!has_past || !has_present, invalid_argument, "sliding_window_cache needs the past inputs and the present outputs");
    HOTSET_FAIL_IF(z.Cp < a.window, invalid_argument, "past_key has capacity %lld, less than local_window_size %lld",
                   static_cast<long long>(z.Cp), static_cast<long long>(a.window));
    HOTSET_FAIL_IF(z.shared, invalid_argument, "sliding_window_cache = 1 but key has no rows");
  }
  return {};
}

Status plan_steps(const Attributes& a, const RunContext& c, const Sizes& z, int64_t total, Step* steps) {
  const int32_t* const seqlens = c.input(kSeqlens)->as<int32_t>();
  const int32_t* const rows = c.input(kQuerySeqlens) ? c.input(kQuerySeqlens)->as<int32_t>() : nullptr;
  const bool has_present = c.output(kPresentKey) != nullptr;
  for (int64_t b = 0; b < z.B; ++b) {
    Step& s = steps[b];
    const long long i = b, T = static_cast<int64_t>(seqlens[b]) + 1;
    HOTSET_FAIL_IF(T < 1, invalid_argument, "seqlens_k[%lld] is %lld, expected at least 0", i, T - 1);
    HOTSET_FAIL_IF(T > total, invalid_argument, "seqlens_k[%lld] is %lld, total_sequence_length %lld allows at most %lld", i, T - 1,
                   static_cast<long long>(total), static_cast<long long>(total - 1));
    s.total = T;
    s.n_rows = rows ? rows[b] : std::min<int64_t>(z.S, T);
    HOTSET_FAIL_IF(s.n_rows < 0 || s.n_rows > std::min<int64_t>(z.S, T), invalid_argument,
                   "query_seqlens[%lld] is %lld, expected 0 to %lld", i, static_cast<long long>(s.n_rows),
                   static_cast<long long>(std::min<int64_t>(z.S, T)));
    s.added = z.shared ? 0 : s.n_rows;
    s.cached = T - s.added;
    if (a.windowed_cache) {
      s.held = resident_rows(s.cached, z.C, a.window);
      s.kept = resident_rows(T, z.C, a.window);
      s.staged = s.held + s.added != s.kept;
      continue;
    }
    HOTSET_FAIL_IF(s.cached > z.Cp, invalid_argument, "seqlens_k[%lld] is %lld: %lld rows come from the past, its capacity is %lld", i,
                   T - 1, static_cast<long long>(s.cached), static_cast<long long>(z.Cp));
    HOTSET_FAIL_IF(has_present && T > z.C, invalid_argument, "seqlens_k[%lld] is %lld, the cache capacity %lld allows at most %lld", i,
                   T - 1, static_cast<long long>(z.C), static_cast<long long>(z.C - 1));
    HOTSET_FAIL_IF(rows && s.cached + z.S > z.C, invalid_argument,
                   "seqlens_k[%lld] is %lld: a chunk of %lld rows from row %lld on exceeds the cache capacity %lld", i, T - 1,
                   static_cast<long long>(z.S), static_cast<long long>(s.cached), static_cast<long long>(z.C));
    s.held = s.cached;
    s.kept = T;
    s.staged = !has_present;
  }
  return {};
}

}  // namespace hotset::ops::gqa
