// SPDX-License-Identifier: Apache-2.0
// Tiles of attention. Where the keys are cut depends on sizes only, never on the number of threads: same bits on any of them.
#include "ops/attend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "cpu_avx/convert.h"

namespace hotset::ops {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int64_t kChunk = 512, kMaxChunks = 16;  // keys of a task when there are few rows
constexpr int64_t kMaxLogits = int64_t{1} << 20;  // floats of captured logits a thread

// How the heads and rows of one K/V head are cut: a tile has `positions` rows s of `heads` query heads.
struct Tiling {
  int64_t group, heads, head_tiles, positions, tiles;
  int rows;
  int64_t chunk = 0, chunks = 1, most_chunks = 1;  // most_chunks: of any shorter range of keys too
  explicit Tiling(const AttendParams& p) {
    int64_t most = cpu::kAttentionTileRows;
    if (p.qk_output != QkOutput::none && p.keys > 0) most = std::clamp<int64_t>(kMaxLogits / p.keys, 1, most);
    group = p.heads / p.kv_heads;
    heads = std::min(group, most);
    head_tiles = (group + heads - 1) / heads;
    positions = std::clamp<int64_t>(most / heads, 1, std::max<int64_t>(p.rows, 1));
    tiles = (p.rows + positions - 1) / positions;
    rows = static_cast<int>(heads * positions);
    if (tiles > 1 || p.qk_output != QkOutput::none) return;
    int64_t longest = 0;
    for (int64_t b = 0; p.entries && b < p.batch; ++b) longest = std::max(longest, p.entries[b].limit);
    if (!p.entries) longest = p.keys;
    if (p.window > 0) longest = std::min(longest, p.window + p.rows);
    chunk = std::max(kChunk, ((longest + kMaxChunks - 1) / kMaxChunks + 63) & ~int64_t{63});
    chunks = std::max<int64_t>(1, (longest + chunk - 1) / chunk);
    most_chunks = std::clamp<int64_t>((longest + kChunk - 1) / kChunk, 1, kMaxChunks);
  }
};

// Scratch of one thread, 64-byte aligned pieces:
//   q | acc | block scratch of the kernel | m | l | lo | hi | bias pointers | captured logits
struct Scratch {
  float *q, *acc, *block, *m, *l, *logits;
  int64_t *lo, *hi;
  const void** bias;
  size_t bytes;
  Scratch(const AttendParams& p, const Tiling& t, void* at) {
    const size_t rows = static_cast<size_t>(t.rows);
    uint8_t* const base = static_cast<uint8_t*>(at);
    size_t used = 0;
    const auto take = [&](size_t n) {
      const size_t offset = used;
      used += round_up_64(n);
      return base ? base + offset : nullptr;
    };
    q = reinterpret_cast<float*>(take(4 * rows * static_cast<size_t>(cpu::attention_ld(p.d))));
    acc = reinterpret_cast<float*>(take(4 * rows * static_cast<size_t>(cpu::attention_ld(p.dv))));
    block = reinterpret_cast<float*>(take(4 * cpu::attention_scratch_floats(t.rows, static_cast<int>(p.d), static_cast<int>(p.dv))));
    m = reinterpret_cast<float*>(take(4 * rows));
    l = reinterpret_cast<float*>(take(4 * rows));
    lo = reinterpret_cast<int64_t*>(take(8 * rows));
    hi = reinterpret_cast<int64_t*>(take(8 * rows));
    bias = reinterpret_cast<const void**>(take(sizeof(void*) * rows));
    logits = reinterpret_cast<float*>(take(p.qk_output == QkOutput::none ? 0 : 4 * rows * static_cast<size_t>(p.keys)));
    bytes = used;
  }
};

// Partial state of one chunk: m[rows] l[rows] acc[rows][ld].
size_t state_floats(const AttendParams& p, const Tiling& t) {
  return round_up_64(static_cast<size_t>(t.rows) * (2 + static_cast<size_t>(cpu::attention_ld(p.dv))));
}

float element(const Tensor& t, int64_t i) {
  switch (t.dtype) {
    case DType::f16:
      return f16_to_f32(t.as<uint16_t>()[i]);
    case DType::bf16:
      return bf16_to_f32(t.as<uint16_t>()[i]);
    default:
      return t.as<float>()[i];
  }
}

// One tile: rows [s0, s0 + n_s) of query heads [h0, h0 + n_h), all of K/V head g.
struct Tile {
  int64_t b, g, h0, n_h, s0, n_s;
  int rows() const { return static_cast<int>(n_h * n_s); }
};

class Job {
 public:
  Job(const AttendParams& p, const Tiling& t) : p_(p), t_(t), k_(cpu::attention_kernels()) {}

  Tile tile(int64_t index) const {
    Tile w;
    const int64_t per_tile = p_.batch * p_.kv_heads * t_.head_tiles;
    const int64_t step = t_.tiles - 1 - index / per_tile;  // last rows first: with a causal mask they take longest
    int64_t rest = index % per_tile;
    const int64_t head_tile = rest % t_.head_tiles;
    rest /= t_.head_tiles;
    w.g = rest % p_.kv_heads;
    w.b = rest / p_.kv_heads;
    w.h0 = w.g * t_.group + head_tile * t_.heads;
    w.n_h = std::min(t_.heads, (w.g + 1) * t_.group - w.h0);
    w.s0 = step * t_.positions;
    w.n_s = std::clamp<int64_t>(p_.entries[w.b].n_rows - w.s0, 0, t_.positions);
    return w;
  }

  // Query rows, visible ranges and bias pointers of a tile; rows are ordered by s, then by head.
  void load(const Tile& w, const Scratch& s) const {
    const AttendEntry& e = p_.entries[w.b];
    const int ldq = cpu::attention_ld(p_.d);
    const size_t bias_bytes = p_.bias ? dtype_bytes(p_.bias->dtype) : 0;
    for (int64_t r = 0; r < w.rows(); ++r) {
      const int64_t row = w.s0 + r / w.n_h, h = w.h0 + r % w.n_h, at = e.position + row;
      float* const q = s.q + r * ldq;
      p_.load_query(p_.context, w.b, h, row, q);
      k_.scale(q, p_.scale, p_.k_scale ? p_.k_scale + w.g * p_.k_scale_head : nullptr, p_.k_scale_step, q, p_.d);
      std::fill(q + p_.d, q + ldq, 0.0f);
      s.hi[r] = p_.causal ? std::clamp<int64_t>(at + 1, 0, e.limit) : e.limit;
      s.lo[r] = p_.window > 0 ? std::max<int64_t>(0, at - p_.window + 1) : 0;
      if (p_.bias) s.bias[r] = p_.bias->as<uint8_t>() + bias_bytes * static_cast<size_t>(w.b * p_.bias_b + h * p_.bias_h + row * p_.bias_s);
    }
  }

  // Adds keys [begin, end) to the state (m, l, acc) of rows [r0, r0 + rows).
  void add(const Tile& w, const Scratch& s, int r0, int rows, int64_t begin, int64_t end, float* m, float* l, float* acc) const {
    const int ldq = cpu::attention_ld(p_.d), lda = cpu::attention_ld(p_.dv);
    std::fill_n(m, rows, -kInf);
    std::fill_n(l, rows, 0.0f);
    std::memset(acc, 0, 4 * static_cast<size_t>(rows) * static_cast<size_t>(lda));
    cpu::AttentionTile a;
    a.rows = rows;
    a.d = static_cast<int>(p_.d);
    a.dv = static_cast<int>(p_.dv);
    a.q = s.q + static_cast<ptrdiff_t>(r0) * ldq;
    a.k_format = p_.k_format;
    a.v_format = p_.v_format;
    a.lo = s.lo + r0;
    a.hi = s.hi + r0;
    a.softcap = p_.softcap;
    a.bias_format = cpu::BiasFormat::none;
    if (p_.bias) {
      switch (p_.bias->dtype) {
        case DType::f16:
          a.bias_format = cpu::BiasFormat::f16;
          break;
        case DType::bf16:
          a.bias_format = cpu::BiasFormat::bf16;
          break;
        case DType::boolean:
          a.bias_format = cpu::BiasFormat::boolean;
          break;
        default:
          a.bias_format = cpu::BiasFormat::f32;
      }
    }
    a.bias = s.bias + r0;
    a.key_bias = p_.key_bias ? p_.key_bias + w.b * p_.keys : nullptr;
    a.m = m;
    a.l = l;
    a.acc = acc;
    a.logits = p_.qk_output == QkOutput::none ? nullptr : s.logits + r0 * p_.keys;
    a.logits_ld = p_.keys;
    a.scratch = s.block;
    const AttendEntry& e = p_.entries[w.b];
    const std::span<const KvRows> pieces = e.pages ? std::span(e.pages, static_cast<size_t>(e.n_pages)) : std::span(e.pieces);
    const auto is_before = [begin](const KvRows& page) { return page.first + page.count <= begin; };
    auto next = e.pages ? std::partition_point(pieces.begin(), pieces.end(), is_before) : pieces.begin();
    for (; next != pieces.end() && !(e.pages && next->first >= end); ++next) {
      const KvRows& piece = *next;
      a.k = piece.k + w.g * piece.k_head;
      a.v = piece.v + w.g * piece.v_head;
      a.k_stride = piece.k_row;
      a.v_stride = piece.v_row;
      a.first = piece.first;
      a.begin = std::max(begin, piece.first);
      a.end = std::min(end, piece.first + piece.count);
      if (a.begin < a.end) k_.attend(a);
    }
  }

  // Keys that some row of a loaded tile sees, or an empty range.
  void range(const Tile& w, const Scratch& s, int64_t* begin, int64_t* end) const {
    const int n = w.rows();
    *begin = n ? s.lo[0] : 0;
    *end = n ? s.hi[n - 1] : 0;
  }

  // Writes row r of the tile from the states of `chunks` chunks, stride floats apart.
  void finish_row(const Tile& w, const Scratch& s, int r, float* m, float* l, float* acc, int64_t chunks, size_t stride) const {
    const int64_t row = w.s0 + r / w.n_h, h = w.h0 + r % w.n_h;
    const bool has_sink = p_.sink || p_.zero_sink;
    const float sink = p_.sink ? element(*p_.sink, h) : 0.0f;
    float top = has_sink ? sink : -kInf;
    for (int64_t c = 0; c < chunks; ++c) top = std::max(top, m[static_cast<size_t>(c) * stride]);
    const float base = top == -kInf ? 0.0f : top;
    float sum = has_sink ? std::exp(sink - base) : 0.0f;
    if (chunks == 1) {
      const float f = *m == base ? 1.0f : std::exp(*m - base);
      sum += *l * f;
      write(w, h, row, acc, sum == 0.0f ? 0.0f : f / sum);
    } else {
      const int64_t dv = p_.dv;
      for (int64_t c = 0; c < chunks; ++c) {
        const size_t at = static_cast<size_t>(c) * stride;
        const float f = std::exp(m[at] - base);
        sum += l[at] * f;
        for (int64_t i = 0; i < dv; ++i) acc[i] = c ? acc[i] + acc[at + static_cast<size_t>(i)] * f : acc[i] * f;
      }
      write(w, h, row, acc, sum == 0.0f ? 0.0f : 1.0f / sum);
    }
    if (p_.qk_output != QkOutput::none) write_qk(w, s, r, h, row, base, sum);
  }

  // The work of one task when the keys of a tile are not cut.
  void run_tile(const Tile& w, const Scratch& s) const {
    load(w, s);
    int64_t begin, end;
    range(w, s, &begin, &end);
    const int n = w.rows(), lda = cpu::attention_ld(p_.dv);
    if (n) add(w, s, 0, n, begin, end, s.m, s.l, s.acc);
    for (int r = 0; r < n; ++r) {
      // A weight of 0 does not hide a NaN or infinity of a value row that only later query rows see: take the row alone.
      float* const acc = s.acc + static_cast<ptrdiff_t>(r) * lda;
      if ((s.lo[r] != begin || s.hi[r] != end) && !finite(acc)) add(w, s, r, 1, s.lo[r], s.hi[r], s.m + r, s.l + r, acc);
      finish_row(w, s, r, s.m + r, s.l + r, acc, 1, 0);
    }
  }

  bool finite(const float* acc) const {
    float zero = 0;
    for (int64_t i = 0; i < p_.dv; ++i) zero += acc[i] * 0.0f;
    return zero == 0.0f;
  }

  // Rows of padding get zeros.
  void pad(int64_t b) const {
    for (int64_t row = p_.entries[b].n_rows; row < p_.rows; ++row) {
      for (int64_t h = 0; h < p_.heads; ++h) {
        std::memset(out(b, h, row), 0, dtype_bytes(p_.output->dtype) * static_cast<size_t>(p_.dv));
        if (p_.qk) std::memset(qk(b, h, row), 0, dtype_bytes(p_.qk->dtype) * static_cast<size_t>(p_.keys));
      }
    }
  }

 private:
  uint8_t* out(int64_t b, int64_t h, int64_t s) const {
    return p_.output->as<uint8_t>() + dtype_bytes(p_.output->dtype) * static_cast<size_t>(b * p_.out_b + h * p_.out_h + s * p_.out_s);
  }
  uint8_t* qk(int64_t b, int64_t h, int64_t s) const {
    return p_.qk->as<uint8_t>() + dtype_bytes(p_.qk->dtype) * static_cast<size_t>(((b * p_.heads + h) * p_.rows + s) * p_.keys);
  }
  void write(const Tile& w, int64_t h, int64_t row, float* acc, float factor) const {
    const float* const s = p_.v_scale ? p_.v_scale + w.g * p_.v_scale_head : nullptr;
    uint8_t* const to = out(w.b, h, row);
    if (factor == 0.0f) std::fill_n(acc, p_.dv, 0.0f);  // nothing visible: 0 even where acc is not finite
    if (p_.output->dtype == DType::f32) return k_.scale(acc, factor, s, p_.v_scale_step, reinterpret_cast<float*>(to), p_.dv);
    k_.scale(acc, factor, s, p_.v_scale_step, acc, p_.dv);
    cpu::from_f32(p_.output->dtype, acc, to, p_.dv);
  }
  void write_qk(const Tile& w, const Scratch& s, int r, int64_t h, int64_t row, float base, float sum) const {
    float* const x = s.logits + r * p_.keys;
    std::fill(x, x + s.lo[r], p_.qk_hidden);
    std::fill(x + std::max(s.lo[r], s.hi[r]), x + p_.keys, p_.qk_hidden);
    if (p_.qk_output == QkOutput::weights)
      for (int64_t j = s.lo[r]; j < s.hi[r]; ++j) x[j] = sum == 0.0f ? 0.0f : std::exp(x[j] - base) / sum;
    cpu::from_f32(p_.qk->dtype, x, qk(w.b, h, row), p_.keys);
  }

  const AttendParams& p_;
  const Tiling& t_;
  const cpu::AttentionKernels& k_;
};

}  // namespace

size_t attend_workspace(const AttendParams& p, int n_threads) {
  const Tiling t(p);
  const size_t scratch = Scratch(p, t, nullptr).bytes * static_cast<size_t>(n_threads);
  if (t.most_chunks == 1) return scratch;
  return scratch + 4 * state_floats(p, t) * static_cast<size_t>(p.batch * p.kv_heads * t.head_tiles * t.most_chunks);
}

void attend(const AttendParams& p, void* workspace, ThreadPool* pool) {
  const Tiling t(p);
  const Job job(p, t);
  int64_t work = 0;
  for (int64_t b = 0; b < p.batch; ++b) {
    work += p.entries[b].n_rows * p.entries[b].limit;
    if (p.entries[b].n_rows < p.rows) job.pad(b);
  }
  const int64_t n_tiles = p.batch * p.kv_heads * t.head_tiles * t.tiles;
  const bool parallel = pool->size() > 1 && n_tiles * t.chunks > 1 && work * p.heads * (p.d + p.dv) > kParallelWork;
  uint8_t* const base = static_cast<uint8_t*>(workspace);
  const size_t per_thread = Scratch(p, t, nullptr).bytes;
  if (t.chunks == 1) {
    for_tasks(pool, n_tiles, parallel, [&](int64_t i, int thread) {
      const Tile w = job.tile(i);
      if (w.n_s > 0) job.run_tile(w, Scratch(p, t, base + per_thread * static_cast<size_t>(thread)));
    });
    return;
  }

  float* const states = reinterpret_cast<float*>(base + per_thread * static_cast<size_t>(pool->size()));
  const size_t stride = state_floats(p, t);
  const size_t rows = static_cast<size_t>(t.rows), lda = static_cast<size_t>(cpu::attention_ld(p.dv));
  for_tasks(pool, n_tiles * t.chunks, parallel, [&](int64_t i, int thread) {
    const Scratch s(p, t, base + per_thread * static_cast<size_t>(thread));
    const Tile w = job.tile(i / t.chunks);
    if (w.n_s == 0) return;
    job.load(w, s);
    int64_t begin, end;
    job.range(w, s, &begin, &end);
    begin += i % t.chunks * t.chunk;
    float* const state = states + stride * static_cast<size_t>(i);
    job.add(w, s, 0, w.rows(), begin, std::min(end, begin + t.chunk), state, state + rows, state + 2 * rows);
  });
  const Scratch s(p, t, base);
  for (int64_t i = 0; i < n_tiles; ++i) {
    const Tile w = job.tile(i);
    float* const state = states + stride * static_cast<size_t>(i * t.chunks);
    bool redo = false;  // see run_tile
    for (size_t c = 0; c < static_cast<size_t>(t.chunks) && w.n_s > 1 && !redo; ++c)
      for (int r = 0; r < w.rows(); ++r) redo = redo || !job.finite(state + c * stride + 2 * rows + static_cast<size_t>(r) * lda);
    if (redo) job.load(w, s);
    for (int r = 0; r < w.rows(); ++r) {
      float* const m = state + r;
      float* const acc = state + 2 * rows + static_cast<size_t>(r) * lda;
      if (redo) job.add(w, s, r, 1, s.lo[r], s.hi[r], m, m + rows, acc);
      job.finish_row(w, s, r, m, m + rows, acc, redo ? 1 : t.chunks, redo ? 0 : stride);
    }
  }
}

void HeadRows::set_piece(KvRows* piece, int64_t batch, int64_t first, bool values) const {
  const ptrdiff_t element = static_cast<ptrdiff_t>(dtype_bytes(dtype));
  (values ? piece->v : piece->k) = rows > 0 ? at(batch, 0, 0) : nullptr;
  (values ? piece->v_head : piece->k_head) = rows > 0 ? element * h : 0;
  (values ? piece->v_row : piece->k_row) = element * s;
  piece->first = first;
  piece->count = rows;
}

HeadRows head_rows(const Tensor& t, int64_t heads, int part) {
  const Shape& z = t.shape;
  if (z.rank == 3) return {t.as<uint8_t>(), t.dtype, heads, z[1], z[2] / heads, z[1] * z[2], z[2] / heads, z[2]};
  if (z.rank == 4) return {t.as<uint8_t>(), t.dtype, z[1], z[2], z[3], z[1] * z[2] * z[3], z[2] * z[3], z[3]};
  uint8_t* const data = t.data ? t.as<uint8_t>() + dtype_bytes(t.dtype) * static_cast<size_t>(part * z[4]) : nullptr;
  return {data, t.dtype, z[2], z[1], z[4], z.product(1, 5), z[3] * z[4], z.product(2, 5)};
}

void write_present(const Tensor* past, const HeadRows& rows, Tensor* present, ThreadPool* pool) {
  const size_t row = dtype_bytes(present->dtype) * static_cast<size_t>(rows.width);
  const int64_t old = past ? past->shape[2] : 0, all = present->shape[2], heads = rows.heads;
  for_tasks(pool, present->shape[0] * heads, present->size() > kParallelWork, [&](int64_t task, int) {
    uint8_t* to = present->as<uint8_t>() + static_cast<size_t>(task * all) * row;
    if (old > 0) std::memcpy(to, past->as<uint8_t>() + static_cast<size_t>(task * old) * row, static_cast<size_t>(old) * row);
    to += static_cast<size_t>(old) * row;
    for (int64_t s = 0; s < rows.rows; ++s) std::memcpy(to + static_cast<size_t>(s) * row, rows.at(task / heads, task % heads, s), row);
  });
}

bool bias_strides(const Shape& bias, int64_t batch, int64_t heads, int64_t rows, int64_t keys, AttendParams* p) {
  if (bias.rank < 1 || bias.rank > 4 || bias[-1] != keys) return false;
  const int64_t sizes[3] = {rows, heads, batch};
  int64_t* const strides[3] = {&p->bias_s, &p->bias_h, &p->bias_b};
  int64_t dense = keys;
  for (int i = 0; i < 3; ++i) {
    const int64_t n = i + 1 < bias.rank ? bias[-2 - i] : 1;
    if (n != 1 && n != sizes[i]) return false;
    *strides[i] = n == 1 ? 0 : dense;
    dense *= n;
  }
  return true;
}

cpu::KvFormat kv_format(DType type, int bits) {
  switch (type) {
    case DType::f16:
      return cpu::KvFormat::f16;
    case DType::bf16:
      return cpu::KvFormat::bf16;
    case DType::i8:
      return cpu::KvFormat::i8;
    case DType::f8e4m3fn:
      return cpu::KvFormat::f8;
    case DType::u8:
      return bits == 4 ? cpu::KvFormat::i4 : cpu::KvFormat::i8;
    default:
      return cpu::KvFormat::f32;
  }
}

}  // namespace hotset::ops
