// SPDX-License-Identifier: Apache-2.0
// com.microsoft PagedAttention: attention of packed tokens of several requests over a cache of pages that a table names.
//
//   query        rows of request 0 | rows of request 1 | ...      row t of request b has position past_seqlens[b] + t - cum[b]
//   block_table  [request][position / block_size] -> page, -1: none
//   key_cache    [page][position % block_size][head][channel]
//
// In the layout LATENT there is one cache with one head, and the first channels of a key are its value. A uint8 cache holds two codes
// of four bits in a byte as that of GroupQueryAttention: plus 8, the even channel in the low half.
//
// All new rows are stored first. A request's visible pages are then the pieces that attend() reads, in the place where they lie.
#include <cmath>
#include <cstring>

#include "ops/paged_attention.h"

namespace hotset::ops {
namespace paged {
namespace {

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
  AttendParams params(const Sizes& z, int64_t rows, int64_t keys) const;
  size_t most_workspace(const Sizes& z, int n_threads) const;

  const Attributes a_;
};

AttendParams PagedAttention::params(const Sizes& z, int64_t rows, int64_t keys) const {
  AttendParams p;
  p.batch = 1;
  p.heads = a_.heads;
  p.kv_heads = a_.kv_heads;
  p.rows = rows;
  p.keys = keys;
  p.d = z.D;
  p.dv = z.Dv;
  p.causal = a_.causal;
  p.window = a_.window;
  p.scale = a_.scale != 0 ? a_.scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(z.D)));
  p.softcap = a_.softcap;
  p.k_format = p.v_format = kv_format(z.cache, z.bits());
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
  HOTSET_TRY(check(a_, c, &z));
  c.set_output(kOut, z.type, Shape{z.tokens, a_.heads * z.Dv});
  for (const int i : {kKeyCacheOut, kValueCacheOut}) {
    if (a_.latent && i == kValueCacheOut) continue;
    const int in = i == kKeyCacheOut ? kKeyCache : kValueCache;
    c.set_output(i, z.cache, c.shape(in));
    c.may_overwrite(i, in);
  }
  c.set_workspace(Layout(z, a_.rotary, c.has_input(kQNorm)).attend + most_workspace(z, c.n_threads()));
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
    kernels.quantize(kv_format(z.cache, z.bits()), x, scale->as<float>() + (per_channel ? g * z.D : 0), per_channel, to, z.D);
  }
};

// One request for attend(): rows from token `token` on, the first at `position`.
struct Request {
  const Vectors* vectors;
  int64_t token, position;
};

Status PagedAttention::run(const RunContext& c) const {
  const int64_t Nk = a_.kv_heads;
  const Tensor &query = *c.input(kQuery), &k_in = *c.input(kKeyCache);
  Tensor &k_cache = *c.output(kKeyCacheOut), &out = *c.output(kOut);
  Tensor& v_cache = a_.latent ? k_cache : *c.output(kValueCacheOut);
  Sizes z;
  z.type = query.dtype;
  z.cache = k_in.dtype;
  z.packed = !c.input(kKey);
  z.tokens = query.shape[0];
  z.D = query.shape[1] / (z.packed ? a_.heads + 2 * Nk : a_.heads);
  z.Dv = a_.v_width > 0 ? a_.v_width : z.D;
  z.n_pages = k_in.shape[0];
  z.page = k_in.shape[1];
  z.B = c.input(kPast)->shape[0];
  z.columns = c.input(kTable)->shape[1];
  z.half = c.input(kCos) ? c.input(kCos)->shape[1] : 0;
  HOTSET_TRY(check_requests(a_, c, z));
  if (k_cache.data != k_in.data) std::memcpy(k_cache.data, k_in.data, k_in.bytes());
  if (!a_.latent && v_cache.data != c.input(kValueCache)->data) std::memcpy(v_cache.data, c.input(kValueCache)->data, v_cache.bytes());
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
            .v = z.packed    ? q + head * static_cast<size_t>(a_.heads + Nk)
                 : a_.latent ? nullptr
                             : c.input(kValue)->as<uint8_t>(),
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
  const ptrdiff_t vector = static_cast<ptrdiff_t>(dtype_bytes(z.cache)) * z.key_columns(), row = vector * Nk, page_bytes = row * z.page;
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
        if (!a_.latent) x.store(x.kv(x.v, t, g), buffer, false, t, position, g, c.input(kVScale), v_cache.as<uint8_t>() + at);
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
    if (a_.latent) p.v_scale = p.k_scale, p.v_scale_head = p.k_scale_head, p.v_scale_step = p.k_scale_step;
    p.sink = c.input(kSink);
    const size_t first = dtype_bytes(z.type) * static_cast<size_t>(a_.heads * z.Dv * cum[b]);
    Tensor rows{out.as<uint8_t>() + first, out.dtype, Shape{n, a_.heads * z.Dv}};
    p.output = &rows;
    p.out_h = z.Dv;
    p.out_s = a_.heads * z.Dv;
    p.out_b = 0;
    attend(p, work + layout.attend, c.pool);
  }
  return {};
}

Result<std::unique_ptr<Kernel>> make(const OpContext& c) {
  HOTSET_ASSIGN(const Attributes a, parse(c));
  return std::unique_ptr<Kernel>(std::make_unique<PagedAttention>(a));
}

}  // namespace
}  // namespace paged

HOTSET_OPS(paged_attention, {"com.microsoft", "PagedAttention", 1, kLatest, paged::make, {1, 17, 3}});

}  // namespace hotset::ops
