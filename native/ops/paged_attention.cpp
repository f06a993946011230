// SPDX-License-Identifier: Apache-2.0
// com.microsoft PagedAttention: attention of packed tokens of several requests over a cache of pages that a table names.
//
//   query        rows of request 0 | rows of request 1 | ...      row t of request b has position past_seqlens[b] + t - cum[b]
//   block_table  [request][position / block_size] -> page, -1: none
//   key_cache    [page][position % block_size][head][channel]
//
// All new rows are stored first. A request's visible pages are then the pieces that attend() reads, in the place where they lie.
#include <cmath>
#include <cstring>

#include "ops/attend.h"
#include "ops/head_vector.h"
#include "ops/op.h"

namespace hotset::ops {
namespace {

enum Input {
  kQuery,
  kKey,
  kValue,
  kKeyCache,
  kValueCache,
  kCumulative,
  kPast,
  kTable,
  kCos,
  kSin,
  kSlots,
  kSink,
  kQNorm,
  kKNorm,
  kKScale,
  kVScale,
  kMetadata
};
enum Output { kOut, kKeyCacheOut, kValueCacheOut };
constexpr const char* kNames[] = {
    "query",         "key",           "value",     "key_cache", "value_cache",       "cumulative_sequence_length",
    "past_seqlens",  "block_table",   "cos_cache", "sin_cache", "slot_mapping",      "head_sink",
    "q_norm_weight", "k_norm_weight", "k_scale",   "v_scale",   "attention_metadata"};

enum class Quant { none, per_tensor, per_channel };

struct Attributes {
  int64_t heads = 0, kv_heads = 0, window = 0, rotary_offset = 0;  // window 0: off
  float scale = 0, softcap = 0, epsilon = 0;
  bool causal = true, rotary = false, interleaved = false;
  Quant k_quant = Quant::none, v_quant = Quant::none;
};

// Sizes of one call: tokens, requests, head size, pages, rows of a page, columns of the table, columns of cos_cache.
struct Sizes {
  int64_t tokens = 0, B = 0, D = 0, n_pages = 0, page = 0, columns = 0, half = 0;
  DType type = DType::undefined, cache = DType::undefined;
  bool packed = false;
};

long long number(int64_t i) { return static_cast<long long>(i); }

// Workspace: [cos, sin rows of the tokens as f32][norm weights as f32][pages of a request][attend]
struct Layout {
  size_t norm, pages, attend;
  Layout(const Sizes& z, bool has_tables, bool has_norm) {
    const size_t D = static_cast<size_t>(z.D);
    norm = has_tables && z.type != DType::f32 ? round_up_64(static_cast<size_t>(z.tokens * z.half) * 8) : 0;
    pages = norm + (has_norm ? round_up_64(D * 8) : 0);
    attend = pages + round_up_64(static_cast<size_t>(z.columns) * sizeof(KvRows));
  }
};

class PagedAttention final : public Kernel {
 public:
  explicit PagedAttention(const Attributes& a) : a_(a) {}
  int in_place_input(int out) const override { return out == kKeyCacheOut ? kKeyCache : out == kValueCacheOut ? kValueCache : -1; }
  std::string_view implementation() const override { return cpu::attention_isa(); }
  Status infer(InferContext& context) const override;
  Status run(const RunContext& context) const override;

 private:
  Status check_types(const InferContext& c, Sizes* z) const;
  Status check_shapes(const InferContext& c, Sizes* z) const;
  Status check_requests(const RunContext& c, const Sizes& z) const;
  AttendParams params(const Sizes& z, int64_t rows, int64_t keys) const;
  size_t most_workspace(const Sizes& z, int n_threads) const;

  const Attributes a_;
};

Status PagedAttention::check_types(const InferContext& c, Sizes* z) const {
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
  HOTSET_FAIL_IF(c.dtype(kValueCache) != z->cache, invalid_argument, "value_cache is %s, key_cache is %s", dtype_name(c.dtype(kValueCache)),
                 dtype_name(z->cache));
  const bool quantised = a_.k_quant != Quant::none;
  HOTSET_FAIL_IF(quantised ? z->cache != DType::i8 && z->cache != DType::f8e4m3fn : z->cache != z->type, invalid_argument,
                 "key_cache is %s, expected %s", dtype_name(z->cache), quantised ? "int8 or float8e4m3fn" : dtype_name(z->type));
  return {};
}

Status PagedAttention::check_shapes(const InferContext& c, Sizes* z) const {
  const int64_t N = a_.heads, Nk = a_.kv_heads;
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
  for (const int i : {kKey, kValue}) HOTSET_TRY(expect(i, Shape{z->tokens, Nk * z->D}));
  HOTSET_FAIL_IF(cache.rank != 4 || cache[1] < 1 || cache[2] != Nk || cache[3] != z->D, invalid_argument,
                 "key_cache has shape %s, expected [pages,block_size,%lld,%lld]", text(kKeyCache).c_str(), number(Nk), number(z->D));
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
    const Quant quant = i == kKScale ? a_.k_quant : a_.v_quant;
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
    HOTSET_FAIL_IF(a_.rotary && (z->half == 0 || z->half > z->D / 2 || a_.rotary_offset > z->D - 2 * z->half), invalid_argument,
                   "cos_cache has shape %s: %lld channels from rotary_offset %lld on, head size is %lld", text(kCos).c_str(),
                   number(2 * z->half), number(a_.rotary_offset), number(z->D));
  }
  if (c.has_input(kMetadata))
    HOTSET_FAIL_IF(c.shape(kMetadata).rank != 1 || c.shape(kMetadata)[0] < 2 || c.shape(kMetadata)[0] > 3, invalid_argument,
                   "attention_metadata has shape %s, expected [2] or [3]", text(kMetadata).c_str());
  return {};
}

AttendParams PagedAttention::params(const Sizes& z, int64_t rows, int64_t keys) const {
  AttendParams p;
  p.batch = 1;
  p.heads = a_.heads;
  p.kv_heads = a_.kv_heads;
  p.rows = rows;
  p.keys = keys;
  p.d = p.dv = z.D;
  p.causal = a_.causal;
  p.window = a_.window;
  p.scale = a_.scale != 0 ? a_.scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(z.D)));
  p.softcap = a_.softcap;
  p.k_format = p.v_format = kv_format(z.cache, 8);
  return p;
}

// How many rows a request has is not known yet: all tokens, or as many as are still one tile, whose keys are cut into ranges.
size_t PagedAttention::most_workspace(const Sizes& z, int n_threads) const {
  const int64_t keys = z.columns * z.page, group = a_.heads / a_.kv_heads;
  const int64_t one_tile = std::max<int64_t>(1, cpu::kAttentionTileRows / std::min<int64_t>(group, cpu::kAttentionTileRows));
  return std::max(attend_workspace(params(z, z.tokens, keys), n_threads),
                  attend_workspace(params(z, std::min(z.tokens, one_tile), keys), n_threads));
}

Status PagedAttention::infer(InferContext& c) const {
  Sizes z;
  HOTSET_TRY(check_types(c, &z));
  HOTSET_TRY(check_shapes(c, &z));
  c.set_output(kOut, z.type, Shape{z.tokens, a_.heads * z.D});
  for (const int i : {kKeyCacheOut, kValueCacheOut}) {
    const int in = i == kKeyCacheOut ? kKeyCache : kValueCache;
    c.set_output(i, z.cache, c.shape(in));
    c.may_overwrite(i, in);
  }
  c.set_workspace(Layout(z, a_.rotary, c.has_input(kQNorm)).attend + most_workspace(z, c.n_threads()));
  return {};
}

// What the kernel reads and writes by these numbers.
Status PagedAttention::check_requests(const RunContext& c, const Sizes& z) const {
  const int32_t *const cum = c.input(kCumulative)->as<int32_t>(), *const past = c.input(kPast)->as<int32_t>();
  const int32_t* const table = c.input(kTable)->as<int32_t>();
  HOTSET_FAIL_IF(cum[0] != 0 || cum[z.B] != z.tokens, invalid_argument, "cumulative_sequence_length goes from %d to %d, expected 0 to %lld",
                 cum[0], cum[z.B], number(z.tokens));
  const int64_t capacity = z.columns * z.page, table_rows = a_.rotary ? c.input(kCos)->shape[0] : 0;
  for (int64_t b = 0; b < z.B; ++b) {
    const int64_t n = static_cast<int64_t>(cum[b + 1]) - cum[b], from = past[b], total = from + n;
    HOTSET_FAIL_IF(n < 0, invalid_argument, "cumulative_sequence_length[%lld] is %d, less than the number before it", number(b + 1),
                   cum[b + 1]);
    HOTSET_FAIL_IF(from < 0, invalid_argument, "past_seqlens[%lld] is %lld, expected at least 0", number(b), number(from));
    if (n == 0) continue;
    HOTSET_FAIL_IF(total > capacity, invalid_argument, "past_seqlens[%lld] is %lld: with %lld new tokens more than %lld pages of %lld rows",
                   number(b), number(from), number(n), number(z.columns), number(z.page));
    HOTSET_FAIL_IF(a_.rotary && total > table_rows, invalid_argument,
                   "past_seqlens[%lld] is %lld: position %lld is outside cos_cache of %lld rows", number(b), number(from),
                   number(total - 1), number(table_rows));
    const int64_t low = a_.window > 0 ? std::max<int64_t>(0, from - a_.window + 1) : 0;
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

// Vectors of one call: token t of request b has position base[b] + t.
struct Vectors {
  const Attributes& a;
  const Sizes& z;
  const uint8_t *q, *k, *v;  // of token 0
  size_t q_stride, kv_stride, head;
  const float *cos, *sin;  // rows of the tokens if `dense`, else of the positions
  bool dense;
  const float *q_norm, *k_norm;
  const cpu::AttentionKernels& kernels;

  void norm_and_rotate(float* x, int64_t token, int64_t position, const float* norm) const {
    if (norm) {
      rms_norm(x, norm, a.epsilon, z.D);
      round_to(z.type, x, z.D);
    }
    if (!a.rotary) return;
    const int64_t row = (dense ? token : position) * z.half;
    kernels.rotate(x + a.rotary_offset, cos + row, sin + row, z.half, a.interleaved);
    round_to(z.type, x + a.rotary_offset, 2 * z.half);
  }
  const uint8_t* query(int64_t token, int64_t h) const { return q + static_cast<size_t>(token) * q_stride + static_cast<size_t>(h) * head; }
  const uint8_t* kv(const uint8_t* base, int64_t token, int64_t g) const {
    return base + static_cast<size_t>(token) * kv_stride + static_cast<size_t>(g) * head;
  }
  void store(const uint8_t* from, float* x, bool is_key, int64_t token, int64_t position, int64_t g, const Tensor* scale,
             uint8_t* to) const {
    const Quant quant = is_key ? a.k_quant : a.v_quant;
    if (quant == Quant::none && !(is_key && (a.rotary || k_norm))) {
      std::memcpy(to, from, head);
      return;
    }
    cpu::to_f32(z.type, from, x, z.D);
    if (is_key) norm_and_rotate(x, token, position, k_norm);
    if (quant == Quant::none) return cpu::from_f32(z.cache, x, to, z.D);
    const bool per_channel = quant == Quant::per_channel;
    kernels.quantize(kv_format(z.cache, 8), x, scale->as<float>() + (per_channel ? g * z.D : 0), per_channel, to, z.D);
  }
};

// One request for attend(): rows from token `token` on, the first at `position`.
struct Request {
  const Vectors* vectors;
  int64_t token, position;
};

Status PagedAttention::run(const RunContext& c) const {
  const int64_t Nk = a_.kv_heads;
  const Tensor &query = *c.input(kQuery), &k_in = *c.input(kKeyCache), &v_in = *c.input(kValueCache);
  Tensor &k_cache = *c.output(kKeyCacheOut), &v_cache = *c.output(kValueCacheOut), &out = *c.output(kOut);
  Sizes z;
  z.type = query.dtype;
  z.cache = k_in.dtype;
  z.packed = !c.input(kKey);
  z.tokens = query.shape[0];
  z.D = k_in.shape[3];
  z.n_pages = k_in.shape[0];
  z.page = k_in.shape[1];
  z.B = c.input(kPast)->shape[0];
  z.columns = c.input(kTable)->shape[1];
  z.half = c.input(kCos) ? c.input(kCos)->shape[1] : 0;
  HOTSET_TRY(check_requests(c, z));
  if (k_cache.data != k_in.data) std::memcpy(k_cache.data, k_in.data, k_in.bytes());
  if (v_cache.data != v_in.data) std::memcpy(v_cache.data, v_in.data, v_in.bytes());
  if (z.tokens == 0) return {};

  const Layout layout(z, a_.rotary, c.input(kQNorm) != nullptr);
  uint8_t* const work = static_cast<uint8_t*>(c.workspace);
  const int32_t *const cum = c.input(kCumulative)->as<int32_t>(), *const past = c.input(kPast)->as<int32_t>();
  const int32_t* const table = c.input(kTable)->as<int32_t>();
  const size_t head = dtype_bytes(z.type) * static_cast<size_t>(z.D);
  const uint8_t* const q = query.as<uint8_t>();
  Vectors x{.a = a_,
            .z = z,
            .q = q,
            .k = z.packed ? q + head * static_cast<size_t>(a_.heads) : c.input(kKey)->as<uint8_t>(),
            .v = z.packed ? q + head * static_cast<size_t>(a_.heads + Nk) : c.input(kValue)->as<uint8_t>(),
            .q_stride = head * static_cast<size_t>(z.packed ? a_.heads + 2 * Nk : a_.heads),
            .kv_stride = head * static_cast<size_t>(z.packed ? a_.heads + 2 * Nk : Nk),
            .head = head,
            .cos = nullptr,
            .sin = nullptr,
            .dense = z.type != DType::f32,
            .q_norm = nullptr,
            .k_norm = nullptr,
            .kernels = cpu::attention_kernels()};
  if (a_.rotary) {
    x.cos = c.input(kCos)->as<float>();
    x.sin = c.input(kSin)->as<float>();
    if (x.dense) {
      float *const cos = reinterpret_cast<float*>(work), *const sin = cos + z.tokens * z.half;
      const size_t row = dtype_bytes(z.type) * static_cast<size_t>(z.half);
      for (int64_t b = 0; b < z.B; ++b) {
        for (int64_t t = cum[b]; t < cum[b + 1]; ++t) {
          const size_t from = row * static_cast<size_t>(past[b] + t - cum[b]);
          cpu::to_f32(z.type, c.input(kCos)->as<uint8_t>() + from, cos + t * z.half, z.half);
          cpu::to_f32(z.type, c.input(kSin)->as<uint8_t>() + from, sin + t * z.half, z.half);
        }
      }
      x.cos = cos;
      x.sin = sin;
    }
  }
  if (c.input(kQNorm)) {
    float* const w = reinterpret_cast<float*>(work + layout.norm);
    cpu::to_f32(z.type, c.input(kQNorm)->data, w, z.D);
    cpu::to_f32(z.type, c.input(kKNorm)->data, w + z.D, z.D);
    x.q_norm = w;
    x.k_norm = w + z.D;
  }

  // A head's rows one after the other: two tokens that name the same slot leave the later one there, on any number of threads.
  const ptrdiff_t vector = static_cast<ptrdiff_t>(dtype_bytes(z.cache)) * z.D, row = vector * Nk, page_bytes = row * z.page;
  const int32_t* const slots = c.input(kSlots) ? c.input(kSlots)->as<int32_t>() : nullptr;
  for_tasks(c.pool, Nk, z.tokens * Nk * z.D * 8 > kParallelWork, [&](int64_t g, int) {
    float buffer[kMaxHeadSize];
    for (int64_t b = 0; b < z.B; ++b) {
      for (int64_t t = cum[b]; t < cum[b + 1]; ++t) {
        const int64_t position = past[b] + t - cum[b], page = table[b * z.columns + position / z.page];
        const int64_t slot = slots ? slots[t] : page < 0 ? -1 : page * z.page + position % z.page;
        if (slot < 0) continue;
        const ptrdiff_t at = slot * row + g * vector;
        x.store(x.kv(x.k, t, g), buffer, true, t, position, g, c.input(kKScale), k_cache.as<uint8_t>() + at);
        x.store(x.kv(x.v, t, g), buffer, false, t, position, g, c.input(kVScale), v_cache.as<uint8_t>() + at);
      }
    }
  });

  KvRows* const pages = reinterpret_cast<KvRows*>(work + layout.pages);
  for (int64_t b = 0; b < z.B; ++b) {
    const int64_t n = cum[b + 1] - cum[b], total = past[b] + n;
    if (n == 0) continue;
    AttendEntry entry;
    entry.n_rows = n;
    entry.position = past[b];
    entry.limit = total;
    entry.pages = pages;
    const int64_t low = a_.window > 0 ? std::max<int64_t>(0, past[b] - a_.window + 1) : 0;
    for (int64_t i = low / z.page; i * z.page < total; ++i) {
      const int64_t page = table[b * z.columns + i];
      if (page < 0) continue;
      pages[entry.n_pages++] = {
          k_cache.as<uint8_t>() + page * page_bytes, v_cache.as<uint8_t>() + page * page_bytes, vector, row, vector, row, i * z.page,
          std::min(z.page, total - i * z.page)};
    }
    const Request request{&x, cum[b], past[b]};
    AttendParams p = params(z, n, total);
    p.entries = &entry;
    p.context = &request;
    p.load_query = [](const void* context, int64_t, int64_t h, int64_t s, float* to) {
      const Request& r = *static_cast<const Request*>(context);
      const Vectors& v = *r.vectors;
      cpu::to_f32(v.z.type, v.query(r.token + s, h), to, v.z.D);
      v.norm_and_rotate(to, r.token + s, r.position + s, v.q_norm);
    };
    if (a_.k_quant != Quant::none) p.k_scale = c.input(kKScale)->as<float>();
    if (a_.v_quant != Quant::none) p.v_scale = c.input(kVScale)->as<float>();
    if (a_.k_quant == Quant::per_channel) p.k_scale_head = z.D, p.k_scale_step = 1;
    if (a_.v_quant == Quant::per_channel) p.v_scale_head = z.D, p.v_scale_step = 1;
    p.sink = c.input(kSink);
    Tensor rows{out.as<uint8_t>() + head * static_cast<size_t>(a_.heads * cum[b]), out.dtype, Shape{n, a_.heads * z.D}};
    p.output = &rows;
    p.out_h = z.D;
    p.out_s = a_.heads * z.D;
    p.out_b = 0;
    attend(p, work + layout.attend, c.pool);
  }
  return {};
}

Result<std::unique_ptr<Kernel>> make_paged_attention(const OpContext& c) {
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
  const std::string layout = n.get_string("kv_cache_layout", "SEPARATE");
  if (layout != "SEPARATE") return c.fail(Code::unsupported, "kv_cache_layout is %s, supported: SEPARATE", model::quote(layout).c_str());
  for (const auto& [name, to] : {std::pair{"k_quant_type", &a.k_quant}, std::pair{"v_quant_type", &a.v_quant}}) {
    const std::string type = n.get_string(name, "NONE");
    if (type == "PER_TENSOR")
      *to = Quant::per_tensor;
    else if (type == "PER_CHANNEL")
      *to = Quant::per_channel;
    else if (type != "NONE")
      return c.fail(Code::invalid_model, "%s is %s, expected NONE, PER_TENSOR or PER_CHANNEL", name, model::quote(type).c_str());
  }
  if ((a.k_quant == Quant::none) != (a.v_quant == Quant::none))
    return c.fail(Code::invalid_model, "k_quant_type and v_quant_type must both be NONE or both not");
  for (const int i : {kQuery, kKeyCache, kValueCache, kCumulative, kPast, kTable})
    if (!c.has_input(i)) return c.fail(Code::invalid_model, "input %s is missing", kNames[i]);
  for (const auto& [i, j] : {std::pair{kKey, kValue}, std::pair{kCos, kSin}, std::pair{kQNorm, kKNorm}})
    if (c.has_input(i) != c.has_input(j)) return c.fail(Code::invalid_model, "only one of %s and %s is given", kNames[i], kNames[j]);
  if (a.rotary && !c.has_input(kCos)) return c.fail(Code::invalid_model, "do_rotary is 1 but cos_cache and sin_cache are missing");
  for (const int i : {kKScale, kVScale})
    if (a.k_quant != Quant::none && !c.has_input(i)) return c.fail(Code::invalid_model, "%s is missing, the cache is quantised", kNames[i]);
  for (const int i : {kKeyCacheOut, kValueCacheOut})
    if (!c.has_output(i)) return c.fail(Code::invalid_model, "output %d is missing: new keys and values have no place to go", i);
  return std::unique_ptr<Kernel>(std::make_unique<PagedAttention>(a));
}

}  // namespace

HOTSET_OPS(paged_attention, {"com.microsoft", "PagedAttention", 1, kLatest, make_paged_attention, {1, 17, 3}});

}  // namespace hotset::ops
