// SPDX-License-Identifier: Apache-2.0
// com.microsoft::MatMulNBits: Y = A W^T + bias with weights of 2, 4 or 8 bits, one scale a block of K.
#include <algorithm>

#include "cpu_avx/convert.h"
#include "formats/sm80.h"
#include "ops/weight_product.h"

namespace hotset::ops {
namespace {

using experts::MatrixBytes;
using experts::MatrixForm;
using experts::Storage;
using experts::ZeroPoints;

constexpr int kA = 0, kB = 1, kScales = 2, kZeroPoints = 3, kGroupIndex = 4, kBias = 5;

constexpr size_t round_up_64(size_t n) { return (n + 63) & ~size_t{63}; }
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
long long ll(int64_t v) { return static_cast<long long>(v); }
size_t dtype_bytes(DType t) { return static_cast<size_t>(dtype_bits(t)) / 8; }

struct Attributes {
  int64_t n = 0, k = 0, block = 0;
  int bits = 4;
  bool prepacked = false, int8 = false;

  int64_t blocks() const { return ceil_div(k, block); }
};

class MatMulNBits final : public Kernel {
 public:
  explicit MatMulNBits(const Attributes& attributes) : a_(attributes) {}

  std::string_view implementation() const override {
    cpu::QuantMatrix w;
    w.bits = a_.bits;
    w.block = a_.block;
    w.k = a_.k;
    return cpu::quant_gemm_isa(a_.int8, w);
  }

  Status infer(InferContext& context) const override {
    const Shape& a = context.shape(kA);
    const DType dtype = context.dtype(kA);
    HOTSET_FAIL_IF(!is_activation_type(dtype), invalid_model, "A (input 0) is %s, expected float, float16 or bfloat16", dtype_name(dtype));
    HOTSET_FAIL_IF(a.rank < 1 || a[-1] != a_.k, invalid_model, "A (input 0) has shape %s, expected a last dimension of K = %lld",
                   to_text(a).c_str(), ll(a_.k));
    HOTSET_TRY(check_weights(context));

    Shape y = a;
    y[-1] = a_.n;
    context.set_output(0, dtype, y);
    const Call call{context.dtype(kScales), context.has_input(kZeroPoints) ? context.dtype(kZeroPoints) : DType::undefined,
                    context.has_input(kBias) ? context.dtype(kBias) : DType::undefined};
    const WeightProduct made = product(call, dtype, a.product(0, a.rank - 1), context.n_threads());
    context.set_workspace(made.workspace(), made.packing());
    return {};
  }

  Status run(const RunContext& context) const override {
    const Tensor &a = *context.input(kA), &b = *context.input(kB), &scales = *context.input(kScales);
    const Tensor *const zero_points = context.input(kZeroPoints), *const bias = context.input(kBias);
    const int64_t m = a.shape.product(0, a.shape.rank - 1);
    if (m == 0 || a_.n == 0) return {};
    if (a_.k == 0 || b.shape.size() == 0) {
      fill_with_bias(bias, *context.output(0), m, a_.n);
      return {};
    }
    const Call call{scales.dtype, zero_points ? zero_points->dtype : DType::undefined, bias ? bias->dtype : DType::undefined};
    const WeightProduct product = this->product(call, a.dtype, m, context.pool->size());
    const bool corrects = call.float_zero_points();
    float* const sums = static_cast<float*>(product.extra(context.workspace));
    const MatrixBytes bytes{b.as<const uint8_t>(), scales.as<const uint8_t>(),
                            zero_points && !corrects ? zero_points->as<const uint8_t>() : nullptr,
                            bias ? bias->as<const uint8_t>() : nullptr};
    product.run(
        context, bytes,
        [&](const float* x, float*, int64_t m0, int64_t m1) {
          if (corrects) sum_blocks(x, m0, m1, sums);
        },
        [&](float* y, int64_t ldy, int64_t m0, int64_t m1, int64_t n0, int64_t n1, void* scratch) {
          if (corrects) correct(scales, *zero_points, sums, m0, m1, n0, n1, y, ldy, static_cast<float*>(scratch));
        });
    return {};
  }

 private:
  struct Call {
    DType scales, zero_points, bias;  // undefined: none
    bool float_zero_points() const { return zero_points != DType::undefined && zero_points != DType::u8; }
  };

  // Float zero points are no part of the matrix: the caller corrects the product by the sums of the blocks of A.
  WeightProduct product(const Call& call, DType dtype, int64_t m, int n_threads) const {
    MatrixForm form;
    form.storage = a_.prepacked ? Storage::sm80 : Storage::raw;
    form.zero_points = call.zero_points == DType::u8 ? ZeroPoints::packed : ZeroPoints::middle;
    form.bits = a_.bits;
    form.dtype = call.scales;
    form.bias_dtype = call.bias;
    form.n = a_.n;
    form.k = a_.k;
    form.block = a_.block;
    form.row_bytes = a_.blocks() * (a_.block * a_.bits / 8);  // the last block of a row is padded
    const size_t line = static_cast<size_t>(a_.blocks()) * sizeof(float);
    const bool corrects = call.float_zero_points();
    return WeightProduct(form, a_.int8, dtype, m, n_threads, false, corrects ? static_cast<size_t>(m) * line : 0,
                         corrects ? 2 * round_up_64(line) : 0);
  }

  // B without elements stands for a projection that is left out; what belongs to it may be empty too.
  bool is_left_out(const Shape& b) const {
    if (a_.prepacked || b.rank != 3 || b.size() != 0 || a_.n == 0 || a_.k == 0) return false;
    const int64_t wanted[3] = {a_.n, a_.blocks(), a_.block * a_.bits / 8};
    for (int i = 0; i < 3; ++i)
      if (b[i] != 0 && b[i] != wanted[i]) return false;
    return true;
  }

  Status check_weights(const InferContext& context) const {
    const int64_t blocks = a_.blocks(), expected = a_.n * blocks * (a_.block * a_.bits / 8);
    const bool left_out = is_left_out(context.shape(kB));
    const auto check = [&](int input, const char* name, int64_t size) -> Status {
      const int64_t there = context.shape(input).size();
      HOTSET_FAIL_IF(there != size && !(left_out && there == 0), invalid_model,
                     "%s (input %d) has shape %s, expected %lld elements for N %lld, K %lld, block_size %lld and %d bits", name, input,
                     to_text(context.shape(input)).c_str(), ll(size), ll(a_.n), ll(a_.k), ll(a_.block), a_.bits);
      return {};
    };
    HOTSET_FAIL_IF(context.dtype(kB) != DType::u8, invalid_model, "B (input 1) is %s, expected uint8", dtype_name(context.dtype(kB)));
    HOTSET_FAIL_IF(!is_activation_type(context.dtype(kScales)), invalid_model,
                   "scales (input 2) are %s, expected float, float16 or bfloat16", dtype_name(context.dtype(kScales)));
    HOTSET_TRY(check(kB, "B", expected));
    HOTSET_TRY(check(kScales, "scales", a_.n * blocks));
    if (context.has_input(kZeroPoints)) {
      const DType dtype = context.dtype(kZeroPoints);
      HOTSET_FAIL_IF(dtype != DType::u8 && !is_activation_type(dtype), invalid_model,
                     "zero_points (input 3) are %s, expected uint8 or the type of A", dtype_name(dtype));
      HOTSET_TRY(check(kZeroPoints, "zero_points", a_.n * (dtype == DType::u8 ? ceil_div(blocks * a_.bits, 8) : blocks)));
    }
    if (context.has_input(kBias)) {
      HOTSET_FAIL_IF(!is_activation_type(context.dtype(kBias)), invalid_model, "bias (input 5) is %s, expected the type of A",
                     dtype_name(context.dtype(kBias)));
      HOTSET_FAIL_IF(context.shape(kBias).size() != a_.n, invalid_model, "bias (input 5) has shape %s, expected [%lld]",
                     to_text(context.shape(kBias)).c_str(), ll(a_.n));
    }
    return {};
  }

  void sum_blocks(const float* x, int64_t m0, int64_t m1, float* sums) const {
    const int64_t blocks = a_.blocks();
    for (int64_t row = m0; row < m1; ++row) {
      for (int64_t b = 0; b < blocks; ++b) {
        float sum = 0;
        for (int64_t i = b * a_.block; i < std::min(a_.k, (b + 1) * a_.block); ++i) sum += x[row * a_.k + i];
        sums[row * blocks + b] = sum;
      }
    }
  }

  // The product took the middle for zero: add scale * (middle - zero) * (sum of the block).
  void correct(const Tensor& scales, const Tensor& zero_points, const float* sums, int64_t m0, int64_t m1, int64_t n0, int64_t n1, float* y,
               int64_t ldy, float* scratch) const {
    const int64_t blocks = a_.blocks();
    const float middle = static_cast<float>(1 << (a_.bits - 1));
    float* const factor = scratch;
    float* const zeros = scratch + round_up_64(static_cast<size_t>(blocks) * sizeof(float)) / sizeof(float);
    const auto row_of = [&](const Tensor& t, int64_t n, float* out) {
      cpu::to_f32(t.dtype, t.as<const uint8_t>() + static_cast<size_t>(n * blocks) * dtype_bytes(t.dtype), out, blocks);
    };
    for (int64_t n = n0; n < n1; ++n) {
      row_of(scales, n, factor);
      row_of(zero_points, n, zeros);
      for (int64_t b = 0; b < blocks; ++b) factor[b] *= middle - zeros[b];
      for (int64_t row = m0; row < m1; ++row) {
        float sum = 0;
        for (int64_t b = 0; b < blocks; ++b) sum += factor[b] * sums[row * blocks + b];
        y[(row - m0) * ldy + (n - n0)] += sum;
      }
    }
  }

  const Attributes a_;
};

Result<std::unique_ptr<Kernel>> make_matmul_nbits(const OpContext& context) {
  const model::Node& node = context.node();
  Attributes a;
  for (const char* name : {"K", "N", "block_size"})
    if (!node.find(name)) return context.fail(Code::invalid_model, "attribute %s is missing", name);
  a.k = node.get_int("K", -1);
  a.n = node.get_int("N", -1);
  a.block = node.get_int("block_size", 0);
  const int64_t bits = node.get_int("bits", 4), prepacked = node.get_int("weight_prepacked", 0);
  constexpr int64_t kMost = int64_t{1} << 40;  // so that sizes below cannot overflow
  if (a.k < 0 || a.n < 0 || a.k > kMost || a.n > kMost || (a.k > 0 && a.n > kMost * 1024 / a.k))
    return context.fail(Code::invalid_model, "attributes N %lld and K %lld are not the sizes of a matrix", ll(a.n), ll(a.k));
  if (bits != 2 && bits != 4 && bits != 8) return context.fail(Code::invalid_model, "attribute bits is %lld, supported: 2 4 8", ll(bits));
  if (a.block < 16 || a.block > kMost || (a.block & (a.block - 1)) != 0)
    return context.fail(Code::invalid_model, "attribute block_size is %lld, expected a power of two of at least 16", ll(a.block));
  if (prepacked == 2) return context.fail(Code::unsupported, "weight_prepacked 2 (the SM90 layout) is not supported, only 0 and 1");
  if (prepacked != 0 && prepacked != 1)
    return context.fail(Code::invalid_model, "attribute weight_prepacked is %lld, expected 0, 1 or 2", ll(prepacked));
  a.bits = static_cast<int>(bits);
  a.prepacked = prepacked == 1;
  if (a.prepacked && !formats::sm80_fits(a.n, a.k, a.bits))
    return context.fail(Code::invalid_model, "weight_prepacked 1 with N %lld and K %lld: K must be a multiple of 64 and N of %d", ll(a.n),
                        ll(a.k), 16 / a.bits);
  for (int input : {kA, kB, kScales})
    if (!context.has_input(input)) return context.fail(Code::invalid_model, "input %d is missing", input);
  if (context.has_input(kGroupIndex)) return context.fail(Code::unsupported, "g_idx (input 4) is not supported");

  switch (context.config().cpu_activation) {
    // The level is a permission; a block that splits groups of activations is served better without it.
    case CpuActivation::by_node:
      a.int8 = node.get_int("accuracy_level", 0) == 4 && a.block >= 32;
      break;
    case CpuActivation::exact:
      a.int8 = false;
      break;
    case CpuActivation::int8:
      a.int8 = true;
      break;
  }
  return std::unique_ptr<Kernel>(std::make_unique<MatMulNBits>(a));
}

}  // namespace

HOTSET_OPS(matmul_nbits, {"com.microsoft", "MatMulNBits", 1, kLatest, make_matmul_nbits, {3, 6}});

}  // namespace hotset::ops
