// SPDX-License-Identifier: Apache-2.0
// DequantizeLinear: (x - zero_point) * scale, per tensor, along an axis or in blocks of an axis.
#include "ops/convert_elements.h"
#include "ops/elements.h"

namespace hotset::ops {
namespace {

class DequantizeLinear final : public Kernel {
 public:
  explicit DequantizeLinear(const OpContext& c)
      : axis_(c.node().get_int("axis", 1)), block_(c.node().get_int("block_size", 0)), out_(static_cast<DType>(c.node().get_int("output_dtype", 0))) {}

  Status infer(InferContext& c) const override {
    const Shape &x = c.shape(0), &scale = c.shape(1);
    const DType type = c.dtype(0), scale_type = c.dtype(1), out = out_ == DType::undefined ? scale_type : out_;
    HOTSET_FAIL_IF(!convertible(type) || type == DType::boolean || is_float(type), unsupported, "input of type %s", dtype_name(type));
    HOTSET_FAIL_IF(scale_type != DType::f32 && scale_type != DType::f16 && scale_type != DType::bf16 && scale_type != DType::f8e8m0, unsupported,
                   "scale of type %s", dtype_name(scale_type));
    HOTSET_FAIL_IF(out != DType::f32 && out != DType::f16 && out != DType::bf16, unsupported, "output of type %s", dtype_name(out));
    if (c.has_input(2)) {
      HOTSET_FAIL_IF(c.dtype(2) != type, invalid_model, "zero point of type %s, input of type %s", dtype_name(c.dtype(2)), dtype_name(type));
      HOTSET_FAIL_IF(!(c.shape(2) == scale), invalid_argument, "zero point of shape %s, scale of shape %s", to_text(c.shape(2)).c_str(), to_text(scale).c_str());
    }
    if (scale.size() != 1 || block_) {
      int axis = 0;
      HOTSET_FAIL_IF(!normalize_axis(axis_, x.rank, &axis), invalid_argument, "axis %lld is out of range for shape %s", static_cast<long long>(axis_),
                     to_text(x).c_str());
      bool fits = block_ ? scale.rank == x.rank : scale.rank == 1 && scale[0] == x[axis];
      for (int i = 0; block_ && fits && i < x.rank; ++i) fits = scale[i] == (i == axis ? blocks_of(x[i]) : x[i]);
      HOTSET_FAIL_IF(!fits, invalid_argument, "scale of shape %s for input of shape %s, axis %d, block_size %lld", to_text(scale).c_str(), to_text(x).c_str(),
                     axis, static_cast<long long>(block_));
    }
    c.set_output(0, out, x);
    return {};
  }

  Status run(const RunContext& c) const override {
    const Tensor &x = *c.inputs[0], &scale = *c.inputs[1];
    const Tensor* zero = c.input(2);
    const Tensor& out = *c.outputs[0];
    const int64_t n = x.size();
    if (n == 0) return {};
    const int rank = x.shape.rank;
    const bool one = scale.size() == 1 && !block_;
    const int axis = one ? 0 : static_cast<int>(axis_ < 0 ? axis_ + rank : axis_);
    const int64_t inner = one ? n : x.shape.product(axis + 1, rank), size = one ? 1 : x.shape[axis], blocks = block_ ? blocks_of(size) : size;
    // Chunks of inner rows; the scale's position follows from (outer, axis, inner).
    const int64_t chunks_a_row = (inner + kChunk - 1) / kChunk, tasks = n / inner * chunks_a_row;
    const auto part = [&](int64_t begin, int64_t end) {
      float value[kChunk], factor[kChunk], offset[kChunk];
      for (int64_t t = begin; t < end; ++t) {
        const int64_t row = t / chunks_a_row, column = t % chunks_a_row * kChunk, m = std::min<int64_t>(kChunk, inner - column), at = row * inner + column;
        const int64_t a = row % size;
        read(x, at, m, value);
        if (block_) {
          const int64_t s = (row / size * blocks + a / block_) * inner + column;
          read(scale, s, m, factor);
          if (zero) read(*zero, s, m, offset);
        } else {
          read(scale, one ? 0 : a, 1, factor);
          if (zero) read(*zero, one ? 0 : a, 1, offset);
        }
        for (int64_t i = 0; i < m; ++i) {
          const int64_t s = block_ ? i : 0;
          value[i] = (zero ? value[i] - offset[s] : value[i]) * factor[s];
        }
        cpu::from_f32(out.dtype, value, out.as<char>() + at * element_bytes(out.dtype), m);
      }
    };
    over_range(n < kParallel ? nullptr : c.pool, tasks, std::max<int64_t>(1, kParallel / 2 * tasks / n), part);
    return {};
  }

 private:
  int64_t blocks_of(int64_t n) const { return n / block_ + (n % block_ != 0); }  // no sum: block_ may be any number
  // Elements [at, at + n) of any type as float32.
  static void read(const Tensor& t, int64_t at, int64_t n, float* out) {
    if (dtype_bits(t.dtype) >= 8) {
      convert_elements(t.dtype, t.as<char>() + at * element_bytes(t.dtype), DType::f32, out, 0, n);
      return;
    }
    float pair[kChunk + 1];  // a 4-bit range may begin in the middle of a byte
    const int64_t odd = at & 1;
    convert_elements(t.dtype, t.as<char>() + at / 2, DType::f32, pair, 0, n + odd);
    std::copy(pair + odd, pair + odd + n, out);
  }

  const int64_t axis_, block_;
  const DType out_;
};

Result<std::unique_ptr<Kernel>> make(const OpContext& c) {
  const int64_t block = c.node().get_int("block_size", 0);
  if (c.n_inputs() < 2) return c.fail(Code::invalid_model, "%d inputs, expected 2 or 3", c.n_inputs());
  const int64_t out = c.node().get_int("output_dtype", 0);
  if (out < 0 || out >= kTypes) return c.fail(Code::invalid_model, "output_dtype is %lld, no element type", static_cast<long long>(out));
  if (block < 0) return c.fail(Code::invalid_model, "block_size %lld", static_cast<long long>(block));
  return make_kernel<DequantizeLinear>(c);
}

}  // namespace

HOTSET_OPS(dequantize_linear, {"", "DequantizeLinear", 10, kLatest, make, {2, 3}}, {"com.microsoft", "DequantizeLinear", 1, kLatest, make, {2, 3}});

}  // namespace hotset::ops
