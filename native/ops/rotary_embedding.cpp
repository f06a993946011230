// SPDX-License-Identifier: Apache-2.0
// RotaryEmbedding (com.microsoft and ai.onnx 23) and com.microsoft MRotaryEmbedding: rotates channels by position.
#include <cstring>

#include "cpu_avx/attention.h"
#include "cpu_avx/convert.h"
#include "ops/attend.h"
#include "ops/op.h"

namespace hotset::ops {
namespace {

enum class Form { contrib, standard, multi };  // multi: three position streams

struct Attributes {
  Form form = Form::contrib;
  bool interleaved = false;
  int64_t heads = 0, dim = 0;           // 0: from the shapes
  int64_t section[3] = {};              // multi: columns of each stream
  int64_t layout = 0;                   // multi: 0 one stream after the other, 1 in turns
  int positions = 1, cos = 2, sin = 3;  // inputs
};

struct Sizes {
  int64_t B = 0, S = 0, H = 0, D = 0, half = 0, table_rows = 0;
  int64_t b = 0, s = 0, h = 0;  // strides in elements
  bool tables = true;           // cos and sin are [M, R/2]; else [B, S, R/2]
};

class RotaryEmbedding final : public Kernel {
 public:
  explicit RotaryEmbedding(const Attributes& a) : a_(a) {}
  Status infer(InferContext& c) const override;
  Status run(const RunContext& c) const override;
  std::string_view implementation() const override { return cpu::attention_isa(); }

 private:
  Status sizes(const Shape& x, const Shape& cos, bool has_positions, Sizes* z) const;
  Status check_positions(const Tensor& ids, const Sizes& z) const;
  int stream(int64_t column) const {
    if (a_.layout == 0) return column < a_.section[0] ? 0 : column < a_.section[0] + a_.section[1] ? 1 : 2;
    const int turn = static_cast<int>(column % 3);
    return turn > 0 && column < 3 * a_.section[turn] ? turn : 0;
  }
  // Bytes of one thread: cos and sin of a row, one head.
  static size_t scratch(const Sizes& z) { return round_up_64(static_cast<size_t>(2 * z.half + z.D) * sizeof(float)); }

  const Attributes a_;
};

Status RotaryEmbedding::sizes(const Shape& x, const Shape& cos, bool has_positions, Sizes* z) const {
  const auto number = [](int64_t n) { return static_cast<long long>(n); };
  HOTSET_FAIL_IF(x.rank != 3 && x.rank != 4, invalid_argument, "input has shape %s, expected 3 or 4 dimensions", to_text(x).c_str());
  z->tables = has_positions;
  const int rank = z->tables ? 2 : 3;
  HOTSET_FAIL_IF(cos.rank != rank, invalid_argument, "cos_cache has shape %s, expected %d dimensions", to_text(cos).c_str(), rank);
  z->half = cos[-1];
  z->table_rows = cos[0];
  z->B = x[0];
  if (x.rank == 4) {
    z->H = x[1];
    z->S = x[2];
    z->D = x[3];
    z->b = z->H * z->S * z->D;
    z->h = z->S * z->D;
    z->s = z->D;
  } else {
    z->S = x[1];
    const bool derived = a_.heads == 0 || (a_.form == Form::contrib && a_.dim == 0);
    z->D = derived ? 2 * z->half : x[2] / a_.heads;
    HOTSET_FAIL_IF(z->D == 0 || x[2] % z->D != 0 || (!derived && x[2] % a_.heads != 0), invalid_argument,
                   "input has shape %s, its last dimension does not split into heads of %lld channels", to_text(x).c_str(), number(z->D));
    z->H = x[2] / z->D;
    z->b = z->S * x[2];
    z->s = x[2];
    z->h = z->D;
  }
  const int64_t rotated = a_.dim > 0 ? a_.dim : z->D;
  HOTSET_FAIL_IF(rotated > z->D || 2 * z->half != rotated, invalid_argument,
                 "cos_cache has shape %s, expected %lld columns for %lld rotated channels of %lld", to_text(cos).c_str(),
                 number(rotated / 2), number(rotated), number(z->D));
  HOTSET_FAIL_IF(!z->tables && (cos[0] != z->B || cos[1] != z->S), invalid_argument,
                 "cos_cache has shape %s, expected [%lld,%lld,%lld] without position_ids", to_text(cos).c_str(), number(z->B), number(z->S),
                 number(z->half));
  HOTSET_FAIL_IF(a_.form == Form::multi && a_.section[0] + a_.section[1] + a_.section[2] != z->half, invalid_argument,
                 "mrope_section sums to %lld, cos_cache has %lld columns", number(a_.section[0] + a_.section[1] + a_.section[2]),
                 number(z->half));
  return {};
}

Status RotaryEmbedding::infer(InferContext& c) const {
  const DType type = c.dtype(0);
  HOTSET_FAIL_IF(type != DType::f32 && type != DType::f16 && type != DType::bf16, unsupported,
                 "input is %s, supported: float, float16, bfloat16", dtype_name(type));
  for (const int i : {a_.cos, a_.sin})
    HOTSET_FAIL_IF(c.dtype(i) != type, invalid_argument, "%s is %s, input is %s", i == a_.cos ? "cos_cache" : "sin_cache",
                   dtype_name(c.dtype(i)), dtype_name(type));
  HOTSET_FAIL_IF(!(c.shape(a_.cos) == c.shape(a_.sin)), invalid_argument, "cos_cache has shape %s, sin_cache %s",
                 to_text(c.shape(a_.cos)).c_str(), to_text(c.shape(a_.sin)).c_str());
  Sizes z;
  HOTSET_TRY(sizes(c.shape(0), c.shape(a_.cos), c.has_input(a_.positions), &z));
  if (c.has_input(a_.positions)) {
    const Shape& ids = c.shape(a_.positions);
    HOTSET_FAIL_IF(c.dtype(a_.positions) != DType::i64, invalid_argument, "position_ids is %s, expected int64",
                   dtype_name(c.dtype(a_.positions)));
    const bool one = a_.form == Form::contrib && (ids.rank == 0 || ids == Shape{1});
    const Shape expected = a_.form == Form::multi ? Shape{3, z.B, z.S} : Shape{z.B, z.S};
    HOTSET_FAIL_IF(!one && !(ids == expected), invalid_argument, "position_ids has shape %s, expected %s", to_text(ids).c_str(),
                   to_text(expected).c_str());
  }
  c.set_output(0, type, c.shape(0));
  c.may_overwrite(0, 0);  // each row of a head is read before it is written
  c.set_workspace(scratch(z) * static_cast<size_t>(c.n_threads()));
  return {};
}

Status RotaryEmbedding::check_positions(const Tensor& ids, const Sizes& z) const {
  const int64_t* const id = ids.as<int64_t>();
  const int64_t last = ids.shape.rank < 2 ? z.S - 1 : 0;  // an offset stands for positions up to offset + S - 1
  for (int64_t i = 0; i < ids.size(); ++i)
    HOTSET_FAIL_IF(id[i] < 0 || id[i] > z.table_rows - 1 - last, invalid_argument, "position_ids[%lld] is %lld, cos_cache has %lld rows",
                   static_cast<long long>(i), static_cast<long long>(id[i]), static_cast<long long>(z.table_rows));
  return {};
}

Status RotaryEmbedding::run(const RunContext& c) const {
  const Tensor& x = *c.input(0);
  const Tensor &cos = *c.input(a_.cos), &sin = *c.input(a_.sin);
  const Tensor* const ids = c.input(a_.positions);
  Sizes z;
  HOTSET_TRY(sizes(x.shape, cos.shape, ids != nullptr, &z));
  if (x.size() == 0) return {};
  if (ids) HOTSET_TRY(check_positions(*ids, z));
  const int64_t* const id = ids ? ids->as<int64_t>() : nullptr;
  const bool offset = ids && ids->shape.rank < 2;
  const size_t element = dtype_bytes(x.dtype);
  const cpu::AttentionKernels& kernels = cpu::attention_kernels();
  uint8_t* const out = c.output(0)->as<uint8_t>();

  const auto rotate_row = [&](int64_t row, int thread) {  // all heads of one (b, s)
    const int64_t b = row / z.S, s = row % z.S;
    float* const scratch_at = reinterpret_cast<float*>(static_cast<uint8_t*>(c.workspace) + scratch(z) * static_cast<size_t>(thread));
    const float* table[2] = {scratch_at, scratch_at + z.half};
    for (int t = 0; t < 2; ++t) {
      const Tensor& from = t == 0 ? cos : sin;
      float* const to = scratch_at + t * z.half;
      const auto at = [&](int64_t r) { return from.as<uint8_t>() + element * static_cast<size_t>(r * z.half); };
      if (a_.form == Form::multi) {
        for (int64_t i = 0; i < z.half; ++i)
          cpu::to_f32(x.dtype, at(id[stream(i) * z.B * z.S + row]) + element * static_cast<size_t>(i), to + i, 1);
        continue;
      }
      const int64_t position = !id ? row : offset ? id[0] + s : id[row];
      if (x.dtype == DType::f32)
        table[t] = reinterpret_cast<const float*>(at(position));
      else
        cpu::to_f32(x.dtype, at(position), to, z.half);
    }
    float* const wide = scratch_at + 2 * z.half;
    for (int64_t h = 0; h < z.H; ++h) {
      const size_t at = element * static_cast<size_t>(b * z.b + s * z.s + h * z.h);
      float* const y = x.dtype == DType::f32 ? reinterpret_cast<float*>(out + at) : wide;
      if (static_cast<const void*>(y) != x.as<uint8_t>() + at) cpu::to_f32(x.dtype, x.as<uint8_t>() + at, y, z.D);
      kernels.rotate(y, table[0], table[1], z.half, a_.interleaved);
      if (y == wide) cpu::from_f32(x.dtype, wide, out + at, z.D);
    }
  };
  constexpr int64_t kRows = 16;
  const int64_t rows = z.B * z.S;
  for_tasks(c.pool, (rows + kRows - 1) / kRows, rows > kRows && rows * z.H * z.D * 4 > kParallelWork, [&](int64_t task, int thread) {
    for (int64_t row = task * kRows; row < std::min((task + 1) * kRows, rows); ++row) rotate_row(row, thread);
  });
  return {};
}

Result<std::unique_ptr<Kernel>> make(const OpContext& c, Form form) {
  const model::Node& n = c.node();
  Attributes a;
  a.form = form;
  const int64_t interleaved = n.get_int("interleaved", 0);
  a.heads = n.get_int("num_heads", 0);
  a.dim = n.get_int("rotary_embedding_dim", 0);
  if (interleaved != 0 && interleaved != 1)
    return c.fail(Code::invalid_model, "interleaved is %lld, expected 0 or 1", static_cast<long long>(interleaved));
  a.interleaved = interleaved == 1;
  if (a.heads < 0) return c.fail(Code::invalid_model, "num_heads is %lld, expected at least 0", static_cast<long long>(a.heads));
  if (a.dim < 0 || a.dim % 2 != 0)
    return c.fail(Code::invalid_model, "rotary_embedding_dim is %lld, expected an even number", static_cast<long long>(a.dim));
  if (form == Form::standard) a.cos = 1, a.sin = 2, a.positions = 3;
  if (form == Form::contrib && a.dim > 0 && a.heads == 0)
    return c.fail(Code::invalid_model, "rotary_embedding_dim is %lld, which needs num_heads", static_cast<long long>(a.dim));
  if (form == Form::multi) {
    const std::vector<int64_t>* const section = n.get_ints("mrope_section");
    if (!section || section->size() != 3)
      return c.fail(Code::invalid_model, "mrope_section has %d elements, expected 3", section ? static_cast<int>(section->size()) : 0);
    for (int i = 0; i < 3; ++i) {
      a.section[i] = (*section)[static_cast<size_t>(i)];
      if (a.section[i] < 0 || a.section[i] > INT32_MAX)
        return c.fail(Code::invalid_model, "mrope_section[%d] is %lld", i, static_cast<long long>(a.section[i]));
    }
    a.layout = n.get_int("mrope_layout", 0);
    if (a.layout != 0 && a.layout != 1)
      return c.fail(Code::invalid_model, "mrope_layout is %lld, expected 0 or 1", static_cast<long long>(a.layout));
  }
  for (const int i : {0, a.cos, a.sin})
    if (!c.has_input(i)) return c.fail(Code::invalid_model, "input %d is missing", i);
  if (form != Form::standard && !c.has_input(a.positions)) return c.fail(Code::invalid_model, "input position_ids is missing");
  return std::unique_ptr<Kernel>(std::make_unique<RotaryEmbedding>(a));
}

Result<std::unique_ptr<Kernel>> make_contrib(const OpContext& c) { return make(c, Form::contrib); }
Result<std::unique_ptr<Kernel>> make_standard(const OpContext& c) { return make(c, Form::standard); }
Result<std::unique_ptr<Kernel>> make_multi(const OpContext& c) { return make(c, Form::multi); }

}  // namespace

HOTSET_OPS(rotary_embedding, {"com.microsoft", "RotaryEmbedding", 1, kLatest, make_contrib, {4, 4}},
           {"com.microsoft", "MRotaryEmbedding", 1, kLatest, make_multi, {4, 4}}, {"", "RotaryEmbedding", 23, kLatest, make_standard, {3, 4}});

}  // namespace hotset::ops
