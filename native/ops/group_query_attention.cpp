// SPDX-License-Identifier: Apache-2.0
// com.microsoft GroupQueryAttention: rotary embedding, cache update and attention with grouped K/V heads.
//
// New rows go straight into present, which is then the only source of keys. Two cases cannot do that, since attention still
// needs rows that present loses or has no place for: a windowed cache that evicts, and a node without present outputs. They
// stage the new rows in the workspace, attend to past and staged rows, and write present last.
#include "ops/group_query_attention.h"

#include <cmath>
#include <cstring>

#include "cpu_avx/convert.h"
#include "ops/head_vector.h"

namespace hotset::ops {
namespace {

using namespace gqa;

// Workspace: [steps][entries][cos, sin rows as f32][norm weights as f32][staged rows][attend]
struct Layout {
  size_t entries, cos, norm, staged, attend;
  Layout(const Sizes& z, const Attributes& a, bool has_norm, bool stages) {
    const size_t B = static_cast<size_t>(z.B), S = static_cast<size_t>(z.S), half = static_cast<size_t>(z.half);
    entries = round_up_64(B * sizeof(Step));
    cos = entries + round_up_64(B * sizeof(AttendEntry));
    norm = cos + (a.rotary && z.type != DType::f32 ? round_up_64(B * S * half * 8) : 0);
    staged = norm + (has_norm ? round_up_64(static_cast<size_t>(z.D) * 8) : 0);
    const size_t rows = stages ? B * static_cast<size_t>(a.kv_heads * z.Skv) : 0;
    attend = staged + round_up_64(rows * z.k_row) + round_up_64(rows * z.v_row);
  }
};

// All that preparing one vector of Q, K or V needs.
struct Prepare {
  const Attributes& a;
  const Sizes& z;
  const uint8_t *q, *k, *v;  // row (b, s) at + (b * rows + s) * stride bytes
  size_t q_stride, kv_stride, element;
  const float *cos, *sin;  // rows of used positions if `dense`, else the tables
  bool dense;
  const int64_t* positions;
  bool first_prompt;
  const Step* steps;
  const float *q_norm, *k_norm;
  const cpu::AttentionKernels& kernels;

  int64_t position(int64_t b, int64_t s) const {
    if (!positions) return steps[b].total - steps[b].n_rows + s;
    return first_prompt ? positions[0] + s : positions[b * z.S + s];
  }
  void norm_and_rotate(float* x, int64_t b, int64_t s, const float* norm, float epsilon) const {
    if (norm) {
      rms_norm(x, norm, epsilon, z.D);
      round_to(z.type, x, z.D);
    }
    if (a.rotary) {
      const int64_t row = (dense ? b * z.S + s : position(b, s)) * z.half;
      kernels.rotate(x, cos + row, sin + row, z.half, a.interleaved);
      round_to(z.type, x, 2 * z.half);
    }
  }
  void query(int64_t b, int64_t h, int64_t s, float* x) const {
    cpu::to_f32(z.type, q + static_cast<size_t>(b * z.S + s) * q_stride + static_cast<size_t>(h * z.D) * element, x, z.D);
    norm_and_rotate(x, b, s, q_norm, a.q_epsilon);
  }
  const uint8_t* kv_at(const uint8_t* base, int64_t b, int64_t g, int64_t s) const {
    return base + static_cast<size_t>(b * z.Skv + s) * kv_stride + static_cast<size_t>(g * z.D) * element;
  }
  void store(const float* x, Quant quant, const Tensor* scale, int64_t g, uint8_t* to) const {
    if (quant == Quant::none) return cpu::from_f32(z.cache, x, to, z.D);
    const bool per_channel = scale->size() > 1;
    kernels.quantize(kv_format(z.cache, static_cast<int>(a.bits)), x, scale->as<float>() + (per_channel ? g * z.D : 0), per_channel, to,
                     z.D);
  }
};

const float* scale_of(const Tensor* t) { return t ? t->as<float>() : nullptr; }

class GroupQueryAttention final : public Kernel {
 public:
  explicit GroupQueryAttention(const Attributes& a) : a_(a) {}
  uint32_t shape_inputs() const override { return 1u << kTotal; }
  int in_place_input(int out) const override { return out == kPresentKey ? kPastKey : out == kPresentValue ? kPastValue : -1; }
  std::string_view implementation() const override { return cpu::attention_isa(); }
  Status infer(InferContext& context) const override;
  Status run(const RunContext& context) const override;

 private:
  Status check_positions(const Prepare& p, int64_t table_rows) const;
  bool stages(bool has_present) const { return a_.windowed_cache || !has_present; }
  AttendParams params(const Sizes& z, int64_t keys) const;

  const Attributes a_;
};

AttendParams GroupQueryAttention::params(const Sizes& z, int64_t keys) const {
  AttendParams p;
  p.batch = z.B;
  p.heads = a_.heads;
  p.kv_heads = a_.kv_heads;
  p.rows = z.S;
  p.keys = keys;
  p.d = p.dv = z.D;
  p.causal = a_.causal;
  p.window = a_.window;
  p.scale = a_.scale != 0 ? a_.scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(z.D)));
  p.softcap = a_.softcap;
  p.k_format = p.v_format = kv_format(z.cache, static_cast<int>(a_.bits));
  p.qk_output = a_.qk;
  return p;
}

Status GroupQueryAttention::infer(InferContext& c) const {
  const Tensor* const known = c.known(kTotal);
  if (!known) return c.defer(kTotal);
  HOTSET_FAIL_IF(known->dtype != DType::i32, invalid_argument, "total_sequence_length is %s, expected int32", dtype_name(known->dtype));
  HOTSET_FAIL_IF(known->shape.rank > 1 || known->size() != 1, invalid_argument,
                 "total_sequence_length has shape %s, expected a scalar or [1]", to_text(known->shape).c_str());
  const int64_t total = *known->as<int32_t>();
  Sizes z;
  HOTSET_TRY(check_call(a_, c, total, &z));
  const bool has_past = c.has_input(kPastKey), has_present = c.has_output(kPresentKey);
  c.set_output(kOut, z.type, Shape{z.B, z.S, a_.heads * z.D});
  if (has_present) {
    const int64_t Dc = a_.bits == 4 ? (z.D + 1) / 2 : z.D;
    for (const int i : {kPresentKey, kPresentValue}) {
      c.set_output(i, z.cache, Shape{z.B, a_.kv_heads, z.C, Dc});
      if (has_past && z.C == z.Cp) c.may_overwrite(i, i == kPresentKey ? kPastKey : kPastValue);
    }
  }
  if (c.has_output(kQk)) c.set_output(kQk, z.type, Shape{z.B, a_.heads, z.S, total});
  const Layout layout(z, a_, c.has_input(kQNorm), stages(has_present));
  c.set_workspace(layout.attend + attend_workspace(params(z, a_.qk == QkOutput::none ? std::max(z.C, total) : total), c.n_threads()));
  return {};
}

Status GroupQueryAttention::check_positions(const Prepare& p, int64_t table_rows) const {
  for (int64_t b = 0; b < p.z.B; ++b) {
    for (int64_t s = 0; s < p.steps[b].n_rows; ++s) {
      const int64_t at = p.position(b, s);
      HOTSET_FAIL_IF(at < 0 || at >= table_rows, invalid_argument, "position %lld of row [%lld,%lld] is outside cos_cache of %lld rows",
                     static_cast<long long>(at), static_cast<long long>(b), static_cast<long long>(s), static_cast<long long>(table_rows));
    }
  }
  return {};
}

Status GroupQueryAttention::run(const RunContext& c) const {
  const int64_t Nk = a_.kv_heads;
  const Tensor& query = *c.input(kQuery);
  const Tensor *const past_k = c.input(kPastKey), *const past_v = c.input(kPastValue);
  const Tensor *const present_k = c.output(kPresentKey), *const present_v = c.output(kPresentValue);
  const Tensor *const k_scale = c.input(kKScale), *const v_scale = c.input(kVScale);
  Sizes z;
  z.packed = !c.input(kKey);
  z.B = query.shape[0];
  z.S = query.shape[1];
  z.D = query.shape[2] / (z.packed ? a_.heads + 2 * Nk : a_.heads);
  z.Skv = z.packed ? z.S : c.input(kKey)->shape[1];
  z.shared = z.Skv == 0 && z.S > 0;
  z.Cp = past_k ? past_k->shape[2] : 0;
  z.C = present_k ? present_k->shape[2] : z.Cp;
  z.half = c.input(kCos) ? c.input(kCos)->shape[1] : 0;
  z.type = query.dtype;
  z.cache = past_k ? past_k->dtype : present_k ? present_k->dtype : a_.bits == 4 ? DType::u8 : a_.bits == 8 ? DType::i8 : z.type;
  z.k_row = z.v_row = dtype_bytes(z.cache) * static_cast<size_t>(a_.bits == 4 ? (z.D + 1) / 2 : z.D);
  if (z.B == 0) return {};
  HOTSET_FAIL_IF(
      z.Cp > 0 && z.C != z.Cp && ((present_k && past_k->data == present_k->data) || (present_v && past_v->data == present_v->data)),
      invalid_argument, "past and present share a buffer but differ in capacity: %lld and %lld", static_cast<long long>(z.Cp),
      static_cast<long long>(z.C));
  const int64_t total = *c.input(kTotal)->as<int32_t>();

  const Layout layout(z, a_, c.input(kQNorm) != nullptr, stages(present_k != nullptr));
  uint8_t* const work = static_cast<uint8_t*>(c.workspace);
  Step* const steps = reinterpret_cast<Step*>(work);
  AttendEntry* const entries = reinterpret_cast<AttendEntry*>(work + layout.entries);
  HOTSET_TRY(plan_steps(a_, c, z, total, steps));

  const size_t element = dtype_bytes(z.type), q_bytes = element * static_cast<size_t>(query.shape[2]);
  const uint8_t* const q = query.as<uint8_t>();
  const size_t head = element * static_cast<size_t>(z.D);
  Prepare p{.a = a_,
            .z = z,
            .q = q,
            .k = z.packed ? q + head * static_cast<size_t>(a_.heads) : c.input(kKey)->as<uint8_t>(),
            .v = z.packed ? q + head * static_cast<size_t>(a_.heads + Nk) : c.input(kValue)->as<uint8_t>(),
            .q_stride = q_bytes,
            .kv_stride = z.packed ? q_bytes : head * static_cast<size_t>(Nk),
            .element = element,
            .cos = nullptr,
            .sin = nullptr,
            .dense = z.type != DType::f32,
            .positions = c.input(kPositions) ? c.input(kPositions)->as<int64_t>() : nullptr,
            .first_prompt = !c.input(kQuerySeqlens) && z.S == total,
            .steps = steps,
            .q_norm = nullptr,
            .k_norm = nullptr,
            .kernels = cpu::attention_kernels()};
  if (a_.rotary) {
    HOTSET_TRY(check_positions(p, c.input(kCos)->shape[0]));
    p.cos = c.input(kCos)->as<float>();
    p.sin = c.input(kSin)->as<float>();
    if (p.dense) {
      float* const cos = reinterpret_cast<float*>(work + layout.cos);
      float* const sin = cos + z.B * z.S * z.half;
      for (int64_t b = 0; b < z.B; ++b) {
        for (int64_t s = 0; s < steps[b].n_rows; ++s) {
          const size_t from = element * static_cast<size_t>(p.position(b, s) * z.half);
          cpu::to_f32(z.type, c.input(kCos)->as<uint8_t>() + from, cos + (b * z.S + s) * z.half, z.half);
          cpu::to_f32(z.type, c.input(kSin)->as<uint8_t>() + from, sin + (b * z.S + s) * z.half, z.half);
        }
      }
      p.cos = cos;
      p.sin = sin;
    }
  }
  if (c.input(kQNorm)) {
    float* const w = reinterpret_cast<float*>(work + layout.norm);
    cpu::to_f32(z.type, c.input(kQNorm)->data, w, z.D);
    cpu::to_f32(z.type, c.input(kKNorm)->data, w + z.D, z.D);
    p.q_norm = w;
    p.k_norm = w + z.D;
  }

  // Where keys are read: one side (K or V) of one batch entry, head 0.
  const size_t n_staged = static_cast<size_t>(Nk * z.Skv);
  uint8_t* const staged_k = work + layout.staged;
  uint8_t* const staged_v = staged_k + round_up_64(static_cast<size_t>(z.B) * n_staged * z.k_row);
  struct Side {
    const uint8_t* past;
    uint8_t *present, *staged;
    size_t row, past_head, present_head, staged_head;
  };
  const auto side = [&](const Tensor* past, const Tensor* present, uint8_t* staged, size_t row, int64_t b) {
    Side s{past ? past->as<uint8_t>() : nullptr,
           present ? present->as<uint8_t>() : nullptr,
           staged,
           row,
           row * static_cast<size_t>(z.Cp),
           row * static_cast<size_t>(z.C),
           row * static_cast<size_t>(z.Skv)};
    if (s.past) s.past += static_cast<size_t>(b * Nk) * s.past_head;
    if (s.present) s.present += static_cast<size_t>(b * Nk) * s.present_head;
    s.staged += static_cast<size_t>(b * Nk) * s.staged_head;
    return s;
  };
  int64_t most_added = 0, moved = 0;
  for (int64_t b = 0; b < z.B; ++b) {
    const Step& s = steps[b];
    most_added = std::max(most_added, s.added);
    moved += s.added * 8 + (past_k && present_k && past_k->data != present_k->data ? s.held : 0);
    AttendEntry& e = entries[b];
    e = {};
    e.n_rows = s.n_rows;
    e.position = s.total - s.n_rows;
    e.limit = s.total;
    const Side k = side(past_k, present_k, staged_k, z.k_row, b), v = side(past_v, present_v, staged_v, z.v_row, b);
    const auto stride = [](size_t n) { return static_cast<ptrdiff_t>(n); };
    if (s.staged) {
      if (s.held > 0)
        e.pieces[0] = {k.past, v.past, stride(k.past_head), stride(k.row), stride(v.past_head), stride(v.row), s.cached - s.held, s.held};
      e.pieces[1] = {k.staged, v.staged, stride(k.staged_head), stride(k.row), stride(v.staged_head), stride(v.row), s.cached, s.added};
    } else {
      e.pieces[0] = {k.present,     v.present,         stride(k.present_head), stride(k.row), stride(v.present_head),
                     stride(v.row), s.cached - s.held, s.held + s.added};
    }
  }

  // New rows into the cache; the first chunk of a head also brings the old rows when present is another buffer.
  constexpr int64_t kRows = 64;
  const int64_t chunks = std::max<int64_t>(1, (most_added + kRows - 1) / kRows);
  const bool plain = !a_.rotary && !p.k_norm && a_.k_quant == Quant::none;
  const auto append = [&](int64_t task, int) {
    const int64_t chunk = task % chunks, g = task / chunks % Nk, b = task / chunks / Nk;
    const Step& s = steps[b];
    const Side sides[2] = {side(past_k, present_k, staged_k, z.k_row, b), side(past_v, present_v, staged_v, z.v_row, b)};
    uint8_t* to[2];
    for (int i = 0; i < 2; ++i) {
      const Side& d = sides[i];
      to[i] = s.staged ? d.staged + static_cast<size_t>(g) * d.staged_head : d.present + static_cast<size_t>(g) * d.present_head;
      if (s.staged) continue;
      if (chunk == 0 && s.held > 0 && d.past != d.present)
        std::memcpy(to[i], d.past + static_cast<size_t>(g) * d.past_head, static_cast<size_t>(s.held) * d.row);
      to[i] += static_cast<size_t>(s.held) * d.row;
    }
    float x[kMaxHeadSize];
    for (int64_t i = chunk * kRows; i < std::min((chunk + 1) * kRows, s.added); ++i) {
      const uint8_t *const k = p.kv_at(p.k, b, g, i), *const v = p.kv_at(p.v, b, g, i);
      uint8_t* const k_to = to[0] + static_cast<size_t>(i) * z.k_row;
      uint8_t* const v_to = to[1] + static_cast<size_t>(i) * z.v_row;
      if (plain) {
        std::memcpy(k_to, k, z.k_row);
      } else {
        cpu::to_f32(z.type, k, x, z.D);
        p.norm_and_rotate(x, b, i, p.k_norm, a_.k_epsilon);
        p.store(x, a_.k_quant, k_scale, g, k_to);
      }
      if (a_.v_quant == Quant::none) {
        std::memcpy(v_to, v, z.v_row);
      } else {
        cpu::to_f32(z.type, v, x, z.D);
        p.store(x, a_.v_quant, v_scale, g, v_to);
      }
    }
  };
  for_tasks(c.pool, z.B * Nk * chunks, moved * Nk * z.D > kParallelWork, append);

  AttendParams t = params(z, total);
  t.entries = entries;
  t.context = &p;
  t.load_query = [](const void* context, int64_t b, int64_t h, int64_t s, float* x) {
    static_cast<const Prepare*>(context)->query(b, h, s, x);
  };
  t.k_scale = a_.k_quant == Quant::none ? nullptr : scale_of(k_scale);
  t.v_scale = a_.v_quant == Quant::none ? nullptr : scale_of(v_scale);
  if (a_.k_quant == Quant::per_channel) t.k_scale_head = z.D, t.k_scale_step = 1;
  if (a_.v_quant == Quant::per_channel) t.v_scale_head = z.D, t.v_scale_step = 1;
  if (const Tensor* const bias = c.input(kBias)) {
    t.bias = bias;
    t.bias_s = total;
    t.bias_h = bias->shape[1] == 1 ? 0 : z.S * total;
    t.bias_b = bias->shape[0] == 1 ? 0 : bias->shape[1] * z.S * total;
  }
  t.sink = c.input(kSink);
  t.zero_sink = a_.smooth;
  t.output = c.output(kOut);
  t.out_h = z.D;
  t.out_s = a_.heads * z.D;
  t.out_b = z.S * t.out_s;
  t.qk = c.output(kQk);
  attend(t, work + layout.attend, c.pool);

  // Present of staged entries: what is kept of the old rows, then of the new ones.
  for (int64_t b = 0; b < z.B && present_k; ++b) {
    const Step& s = steps[b];
    if (!s.staged) continue;
    const int64_t fresh = std::min(s.added, s.kept), old = s.kept - fresh;
    for (const Side& d : {side(past_k, present_k, staged_k, z.k_row, b), side(past_v, present_v, staged_v, z.v_row, b)}) {
      for (size_t g = 0; g < static_cast<size_t>(Nk); ++g) {
        uint8_t* const to = d.present + g * d.present_head;
        if (old > 0)
          std::memmove(to, d.past + g * d.past_head + static_cast<size_t>(s.held - old) * d.row, static_cast<size_t>(old) * d.row);
        std::memcpy(to + static_cast<size_t>(old) * d.row, d.staged + g * d.staged_head + static_cast<size_t>(s.added - fresh) * d.row,
                    static_cast<size_t>(fresh) * d.row);
      }
    }
  }
  // Rows of a present of its own that hold no token: what lay in that memory before is nobody's business.
  for (int64_t b = 0; b < z.B && present_k; ++b) {
    const size_t kept = static_cast<size_t>(steps[b].kept), spare = static_cast<size_t>(z.C) - kept;
    for (const Side& d : {side(past_k, present_k, staged_k, z.k_row, b), side(past_v, present_v, staged_v, z.v_row, b)}) {
      if (spare == 0 || d.past == d.present) continue;
      for (size_t g = 0; g < static_cast<size_t>(Nk); ++g) std::memset(d.present + g * d.present_head + kept * d.row, 0, spare * d.row);
    }
  }
  return {};
}

Result<std::unique_ptr<Kernel>> make_group_query_attention(const OpContext& c) {
  HOTSET_ASSIGN(Attributes a, parse(c));
  return std::unique_ptr<Kernel>(std::make_unique<GroupQueryAttention>(a));
}

}  // namespace

HOTSET_OPS(group_query_attention, {"com.microsoft", "GroupQueryAttention", 1, kLatest, make_group_query_attention, {1, 17, 4}});

}  // namespace hotset::ops
