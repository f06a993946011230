// SPDX-License-Identifier: Apache-2.0
// What PagedAttention refuses.
#include <cmath>

#include "ops/paged_attention.h"

namespace hotset::ops::paged {
namespace {

long long number(int64_t i) { return static_cast<long long>(i); }

Status check_types(const Attributes& a, const InferContext& c, Sizes* z) {
  z->type = c.dtype(kQuery);
  HOTSET_FAIL_IF(z->type != DType::f32 && z->type != DType::f16 && z->type != DType::bf16, unsupported,
                 "query is %s, supported: float, float16, bfloat16", dtype_name(z->type));
  for (const int i : {kKey, kValue, kCos, kSin, kSink, kQNorm, kKNorm})
    HOTSET_FAIL_IF(c.has_input(i) && c.dtype(i) != z->type, invalid_argument, "%s is %s, query is %s", kNames[i], dtype_name(c.dtype(i)),
                   dtype_name(z->type));
  for (const int i : {kCumulative, kPast, kTable, kSlots, kMetadata})
    HOTSET_FAIL_IF(c.has_input(i) && c.dtype(i) != DType::i32, invalid_argument, "%s is %s, expected int32", kNames[i],
                   dtype_name(c.dtype(i)));
  for (const int i : {kKScale, kVScale})
    HOTSET_FAIL_IF(c.has_input(i) && c.dtype(i) != DType::f32, invalid_argument, "%s is %s, expected float", kNames[i],
                   dtype_name(c.dtype(i)));
  z->cache = c.dtype(kKeyCache);
  HOTSET_FAIL_IF(!a.latent && c.dtype(kValueCache) != z->cache, invalid_argument, "value_cache is %s, key_cache is %s",
                 dtype_name(c.dtype(kValueCache)), dtype_name(z->cache));
  const bool quantised = a.k_quant != Quant::none;
  const bool fits = quantised ? z->cache == DType::i8 || z->cache == DType::u8 || z->cache == DType::f8e4m3fn : z->cache == z->type;
  HOTSET_FAIL_IF(!fits, invalid_argument, "key_cache is %s, expected %s", dtype_name(z->cache),
                 quantised ? "int8, uint8 or float8e4m3fn" : dtype_name(z->type));
  for (const auto& [type, name] : {std::pair{a.k_type, "k_cache_dtype"}, std::pair{a.v_type, "v_cache_dtype"}}) {
    if (a.latent && type == DType::undefined) continue;
    HOTSET_FAIL_IF(z->cache == DType::u8 && type != DType::u8, invalid_argument, "the cache is uint8 and %s is not 'int4'", name);
    HOTSET_FAIL_IF(type != DType::undefined && type != z->cache, invalid_argument, "the cache is %s, %s means %s", dtype_name(z->cache),
                   name, dtype_name(type));
  }
  return {};
}

Status check_shapes(const Attributes& a, const InferContext& c, Sizes* z) {
  const int64_t N = a.heads, Nk = a.kv_heads;
  const auto text = [&](int i) { return to_text(c.shape(i)); };
  const auto expect = [&](int i, const Shape& shape) -> Status {
    if (!c.has_input(i) || c.shape(i) == shape) return {};
    return Status(Code::invalid_argument, std::string(kNames[i]) + " has shape " + text(i) + ", expected " + to_text(shape));
  };
  const Shape &query = c.shape(kQuery), &cache = c.shape(kKeyCache), &table = c.shape(kTable);
  z->packed = !c.has_input(kKey);
  const int64_t vectors = z->packed ? N + 2 * Nk : N;
  HOTSET_FAIL_IF(query.rank != 2 || query[1] == 0 || query[1] % vectors != 0, invalid_argument,
                 "query has shape %s, expected [tokens,%lld heads * head size]", text(kQuery).c_str(), number(vectors));
  z->tokens = query[0];
  z->D = query[1] / vectors;
  HOTSET_FAIL_IF(z->D > kMaxHeadSize, unsupported, "head size %lld, supported: up to %lld", number(z->D), number(kMaxHeadSize));
  HOTSET_FAIL_IF(a.v_width > z->D, invalid_argument, "v_head_size is %lld, the head size is %lld", number(a.v_width), number(z->D));
  z->Dv = a.v_width > 0 ? a.v_width : z->D;
  HOTSET_FAIL_IF(z->Dv != z->D && a.scale == 0, invalid_argument, "scale is missing: v_head_size is %lld, the head size is %lld",
                 number(z->Dv), number(z->D));
  for (const int i : {kKey, kValue}) HOTSET_TRY(expect(i, Shape{z->tokens, Nk * z->D}));
  HOTSET_FAIL_IF(cache.rank != 4 || cache[1] < 1 || cache[2] != Nk || cache[3] != z->key_columns(), invalid_argument,
                 "key_cache has shape %s, expected [pages,block_size,%lld,%lld]", text(kKeyCache).c_str(), number(Nk),
                 number(z->key_columns()));
  HOTSET_TRY(expect(kValueCache, cache));
  z->n_pages = cache[0];
  z->page = cache[1];
  HOTSET_FAIL_IF(c.shape(kPast).rank != 1, invalid_argument, "past_seqlens has shape %s, expected 1 dimension", text(kPast).c_str());
  z->B = c.shape(kPast)[0];
  HOTSET_TRY(expect(kCumulative, Shape{z->B + 1}));
  HOTSET_FAIL_IF(table.rank != 2 || table[0] != z->B, invalid_argument, "block_table has shape %s, expected [%lld,pages of a request]",
                 text(kTable).c_str(), number(z->B));
  z->columns = table[1];
  HOTSET_FAIL_IF(z->columns > (int64_t{1} << 40) / z->page, invalid_argument, "block_table has shape %s, too many pages of %lld rows",
                 text(kTable).c_str(), number(z->page));
  HOTSET_TRY(expect(kSlots, Shape{z->tokens}));
  HOTSET_TRY(expect(kSink, Shape{N}));
  for (const int i : {kQNorm, kKNorm}) HOTSET_TRY(expect(i, Shape{z->D}));
  for (const int i : {kKScale, kVScale}) {
    const Quant quant = i == kKScale ? a.k_quant : a.v_quant;
    if (quant == Quant::none) continue;
    const int64_t n = quant == Quant::per_tensor ? 1 : Nk * z->D;
    HOTSET_FAIL_IF(c.shape(i).size() != n, invalid_argument, "%s has shape %s, expected %lld elements", kNames[i], text(i).c_str(),
                   number(n));
  }
  if (c.has_input(kCos)) {
    const Shape& cos = c.shape(kCos);
    HOTSET_FAIL_IF(cos.rank != 2, invalid_argument, "cos_cache has shape %s, expected 2 dimensions", text(kCos).c_str());
    HOTSET_TRY(expect(kSin, cos));
    z->half = cos[1];
    HOTSET_FAIL_IF(a.rotary && (z->half == 0 || z->half > z->D / 2 || a.rotary_offset > z->D - 2 * z->half), invalid_argument,
                   "cos_cache has shape %s: %lld channels from rotary_offset %lld on, head size is %lld", text(kCos).c_str(),
                   number(2 * z->half), number(a.rotary_offset), number(z->D));
  }
  if (c.has_input(kMetadata))
    HOTSET_FAIL_IF(c.shape(kMetadata).rank != 1 || c.shape(kMetadata)[0] < 2 || c.shape(kMetadata)[0] > 3, invalid_argument,
                   "attention_metadata has shape %s, expected [2] or [3]", text(kMetadata).c_str());
  return {};
}

// kv_cache_layout, v_head_size, k_cache_dtype and v_cache_dtype.
Status parse_layout(const OpContext& c, Attributes* a) {
  const model::Node& n = c.node();
  const std::string layout = n.get_string("kv_cache_layout", "SEPARATE");
  if (layout != "SEPARATE" && layout != "LATENT")
    return c.fail(Code::invalid_model, "kv_cache_layout is %s, expected SEPARATE or LATENT", model::quote(layout).c_str());
  a->latent = layout == "LATENT";
  a->v_width = n.get_int("v_head_size", 0);
  if (a->v_width < 0 || (a->v_width > 0 && !a->latent))
    return c.fail(Code::invalid_model, "v_head_size is %lld, expected %s", number(a->v_width),
                  a->latent ? "at least 0" : "0 without kv_cache_layout = LATENT");
  if (a->latent) {
    if (a->kv_heads != 1)
      return c.fail(Code::invalid_model, "kv_num_heads is %lld, expected 1 with kv_cache_layout = LATENT", number(a->kv_heads));
    for (const int i : {kValue, kValueCache})
      if (c.has_input(i)) return c.fail(Code::invalid_model, "%s is given, kv_cache_layout = LATENT has none", kNames[i]);
    if (c.has_output(kValueCacheOut))
      return c.fail(Code::invalid_model, "output %d is requested, kv_cache_layout = LATENT has none", int{kValueCacheOut});
  }
  constexpr std::pair<std::string_view, DType> kTypes[] = {{"", DType::undefined},           {"float", DType::f32}, {"float16", DType::f16},
                                                           {"bfloat16", DType::bf16},        {"int8", DType::i8},   {"int4", DType::u8},
                                                           {"float8e4m3fn", DType::f8e4m3fn}};
  for (const auto& [name, to] : {std::pair{"k_cache_dtype", &a->k_type}, std::pair{"v_cache_dtype", &a->v_type}}) {
    const std::string type = n.get_string(name, "");
    const auto* found = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const auto& entry) { return entry.first == type; });
    if (found == std::end(kTypes))
      return c.fail(type == "float4e2m1" ? Code::unsupported : Code::invalid_model,
                    "%s is %s, supported: float, float16, bfloat16, int8, int4, float8e4m3fn", name, model::quote(type).c_str());
    *to = found->second;
  }
  if (a->latent && a->v_type != DType::undefined)
    return c.fail(Code::invalid_model, "v_cache_dtype is given, kv_cache_layout = LATENT has one cache");
  return {};
}

}  // namespace

Result<Attributes> parse(const OpContext& c) {
  const model::Node& n = c.node();
  Attributes a;
  const auto refuse = [&](const char* name, int64_t value, const char* expected) {
    return c.fail(Code::invalid_model, "%s is %lld, expected %s", name, number(value), expected);
  };
  a.heads = n.get_int("num_heads", 0);
  a.kv_heads = n.get_int("kv_num_heads", 0);
  if (a.heads < 1 || a.heads > 1 << 20) return refuse("num_heads", a.heads, "1 to 1048576");
  if (a.kv_heads < 1 || a.heads % a.kv_heads != 0) return refuse("kv_num_heads", a.kv_heads, "a divisor of num_heads");
  const int64_t causal = n.get_int("is_causal", 1), window = n.get_int("local_window_size", -1), rotary = n.get_int("do_rotary", 0);
  const int64_t interleaved = n.get_int("rotary_interleaved", 0);
  for (const auto& [name, value] : {std::pair{"is_causal", causal}, {"do_rotary", rotary}, {"rotary_interleaved", interleaved}})
    if (value != 0 && value != 1) return refuse(name, value, "0 or 1");
  if (window != -1 && window < 1) return refuse("local_window_size", window, "-1 or at least 1");
  if (window != -1 && causal == 0) return refuse("local_window_size", window, "-1 with is_causal = 0");
  a.causal = causal == 1;
  a.window = window > 0 ? std::min(window, int64_t{1} << 40) : 0;  // so that positions can be added to it
  a.rotary = rotary == 1;
  a.interleaved = interleaved == 1;
  a.rotary_offset = n.get_int("rotary_offset", 0);
  if (a.rotary_offset < 0 || a.rotary_offset % 8 != 0) return refuse("rotary_offset", a.rotary_offset, "a multiple of 8");
  a.scale = n.get_float("scale", 0.0f);
  a.softcap = n.get_float("softcap", 0.0f);
  a.epsilon = n.get_float("qk_norm_epsilon", 1e-6f);
  if (!(a.epsilon > 0) || std::isinf(a.epsilon))
    return c.fail(Code::invalid_model, "qk_norm_epsilon is %g, expected a finite positive number", static_cast<double>(a.epsilon));
  HOTSET_TRY(parse_layout(c, &a));
  for (const auto& [name, to] : {std::pair{"k_quant_type", &a.k_quant}, std::pair{"v_quant_type", &a.v_quant}}) {
    const std::string type = n.get_string(name, "NONE");
    if (type == "PER_TENSOR")
      *to = Quant::per_tensor;
    else if (type == "PER_CHANNEL")
      *to = Quant::per_channel;
    else if (type != "NONE")
      return c.fail(Code::invalid_model, "%s is %s, expected NONE, PER_TENSOR or PER_CHANNEL", name, model::quote(type).c_str());
  }
  if (a.latent ? a.v_quant != Quant::none : (a.k_quant == Quant::none) != (a.v_quant == Quant::none))
    return c.fail(Code::invalid_model, a.latent ? "v_quant_type must be NONE with kv_cache_layout = LATENT"
                                                : "k_quant_type and v_quant_type must both be NONE or both not");
  for (const int i : {kQuery, kKeyCache, a.latent ? kKey : kValueCache, kCumulative, kPast, kTable})
    if (!c.has_input(i)) return c.fail(Code::invalid_model, "input %s is missing", kNames[i]);
  for (const auto& [i, j] : {std::pair{kKey, a.latent ? kKey : kValue}, std::pair{kCos, kSin}, std::pair{kQNorm, kKNorm}})
    if (c.has_input(i) != c.has_input(j)) return c.fail(Code::invalid_model, "only one of %s and %s is given", kNames[i], kNames[j]);
  if (a.rotary && !c.has_input(kCos)) return c.fail(Code::invalid_model, "do_rotary is 1 but cos_cache and sin_cache are missing");
  for (const auto& [quant, i] : {std::pair{a.k_quant, kKScale}, std::pair{a.v_quant, kVScale}})
    if (quant != Quant::none && !c.has_input(i)) return c.fail(Code::invalid_model, "%s is missing, the cache is quantised", kNames[i]);
  for (const int i : {kKeyCacheOut, a.latent ? kKeyCacheOut : kValueCacheOut})
    if (!c.has_output(i)) return c.fail(Code::invalid_model, "output %d is missing: new keys and values have no place to go", i);
  return a;
}

Status check(const Attributes& a, const InferContext& c, Sizes* z) {
  HOTSET_TRY(check_types(a, c, z));
  return check_shapes(a, c, z);
}

Status check_requests(const Attributes& a, const RunContext& c, const Sizes& z) {
  const int32_t *const cum = c.input(kCumulative)->as<int32_t>(), *const past = c.input(kPast)->as<int32_t>();
  const int32_t* const table = c.input(kTable)->as<int32_t>();
  HOTSET_FAIL_IF(cum[0] != 0 || cum[z.B] != z.tokens, invalid_argument, "cumulative_sequence_length goes from %d to %d, expected 0 to %lld",
                 cum[0], cum[z.B], number(z.tokens));
  const int64_t capacity = z.columns * z.page, table_rows = a.rotary ? c.input(kCos)->shape[0] : 0;
  for (int64_t b = 0; b < z.B; ++b) {
    const int64_t n = static_cast<int64_t>(cum[b + 1]) - cum[b], from = past[b], total = from + n;
    HOTSET_FAIL_IF(n < 0, invalid_argument, "cumulative_sequence_length[%lld] is %d, less than the number before it", number(b + 1),
                   cum[b + 1]);
    HOTSET_FAIL_IF(from < 0, invalid_argument, "past_seqlens[%lld] is %lld, expected at least 0", number(b), number(from));
    if (n == 0) continue;
    HOTSET_FAIL_IF(total > capacity, invalid_argument, "past_seqlens[%lld] is %lld: with %lld new tokens more than %lld pages of %lld rows",
                   number(b), number(from), number(n), number(z.columns), number(z.page));
    HOTSET_FAIL_IF(a.rotary && total > table_rows, invalid_argument,
                   "past_seqlens[%lld] is %lld: position %lld is outside cos_cache of %lld rows", number(b), number(from),
                   number(total - 1), number(table_rows));
    const int64_t low = a.window > 0 ? std::max<int64_t>(0, from - a.window + 1) : 0;
    for (int64_t i = low / z.page; i * z.page < total; ++i) {
      const int64_t page = table[b * z.columns + i];
      HOTSET_FAIL_IF(page < -1 || page >= z.n_pages, invalid_argument, "block_table[%lld,%lld] is %lld, expected -1 to %lld", number(b),
                     number(i), number(page), number(z.n_pages - 1));
    }
  }
  if (const Tensor* const slots = c.input(kSlots)) {
    for (int64_t t = 0; t < z.tokens; ++t) {
      const int64_t slot = slots->as<int32_t>()[t];
      HOTSET_FAIL_IF(slot < -1 || slot >= z.n_pages * z.page, invalid_argument, "slot_mapping[%lld] is %lld, expected -1 to %lld",
                     number(t), number(slot), number(z.n_pages * z.page - 1));
    }
  }
  return {};
}

}  // namespace hotset::ops::paged
