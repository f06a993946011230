// SPDX-License-Identifier: Apache-2.0
// com.microsoft::MatMulNBits: Y = A W^T + bias with weights of 2, 4 or 8 bits, one scale a block of K.
#include <algorithm>
#include <cstring>

#include "cpu_avx/convert.h"
#include "experts/weight_matrix.h"
#include "formats/sm80.h"
#include "ops/op.h"

namespace hotset::ops {
namespace {

using experts::MatrixBytes;
using experts::MatrixForm;
using experts::Storage;
using experts::WeightMatrix;
using experts::ZeroPoints;

constexpr int kA = 0, kB = 1, kScales = 2, kZeroPoints = 3, kGroupIndex = 4, kBias = 5;
constexpr int64_t kRowsPerJob = 256, kColumnsPerJob = 512;
constexpr int64_t kInlineFloats = 24 << 10;  // prepared by the caller rather than by a region of its own

constexpr size_t round_up_64(size_t n) { return (n + 63) & ~size_t{63}; }
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
long long ll(int64_t v) { return static_cast<long long>(v); }
bool is_activation_type(DType t) { return t == DType::f32 || t == DType::f16 || t == DType::bf16; }
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
    const DType zero_points = context.has_input(kZeroPoints) ? context.dtype(kZeroPoints) : DType::undefined;
    const DType bias = context.has_input(kBias) ? context.dtype(kBias) : DType::undefined;
    const Call call(a_, dtype, context.dtype(kScales), zero_points, bias, a.product(0, a.rank - 1), context.n_threads());
    context.set_workspace(call.total);
    return {};
  }

  Status run(const RunContext& context) const override {
    const Tensor& a = *context.input(kA);
    const Tensor& y = *context.output(0);
    const Tensor *const scales = context.input(kScales), *const zero_points = context.input(kZeroPoints),
                        *const bias = context.input(kBias);
    const int64_t m = a.shape.product(0, a.shape.rank - 1), n = a_.n, k = a_.k;
    if (m == 0 || n == 0) return {};
    if (k == 0) {
      fill_bias(bias, y, m);
      return {};
    }
    const Call call(a_, a.dtype, scales->dtype, zero_points ? zero_points->dtype : DType::undefined, bias ? bias->dtype : DType::undefined,
                    m, context.pool->size());
    uint8_t* const space = static_cast<uint8_t*>(context.workspace);
    const size_t io = dtype_bytes(a.dtype);
    const bool is_float = a.dtype == DType::f32, corrects = call.float_zero_points;

    // Rows as the kernel wants them, and the sums of their blocks for float zero points.
    float* const float_a = reinterpret_cast<float*>(space + call.float_a);
    float* const sums = reinterpret_cast<float*>(space + call.sums);
    void* const prepared = space + call.prepared;
    const auto prepare = [&](int64_t m0, int64_t m1) {
      const float* x = a.as<const float>();
      if (!is_float) {
        cpu::to_f32(a.dtype, a.as<const uint8_t>() + static_cast<size_t>(m0 * k) * io, float_a + m0 * k, (m1 - m0) * k);
        x = float_a;
      }
      if (corrects) sum_blocks(x, m0, m1, sums);
      call.matrix.prepare(x, k, m, m0, m1, prepared);
    };
    constexpr int64_t kRows = 8;
    if (m * k <= kInlineFloats) {
      prepare(0, m);
    } else {
      context.pool->parallel_for(ceil_div(m, kRows), [&](int64_t i, int) { prepare(i * kRows, std::min(m, (i + 1) * kRows)); });
    }

    const MatrixBytes bytes{context.input(kB)->as<const uint8_t>(), scales->as<const uint8_t>(),
                            zero_points && !corrects ? zero_points->as<const uint8_t>() : nullptr,
                            bias ? bias->as<const uint8_t>() : nullptr};
    const int64_t row_jobs = ceil_div(m, kRowsPerJob);
    const int64_t bytes_per_column = static_cast<int64_t>(call.matrix.form().weight_bytes()) / n;
    const int64_t step = experts::columns_per_job(n, call.columns, row_jobs, context.pool->size(), bytes_per_column);
    const int64_t ranges = ceil_div(n, step);
    context.pool->parallel_for(row_jobs * ranges, [&](int64_t i, int thread) {
      const int64_t m0 = i % row_jobs * kRowsPerJob, m1 = std::min(m, m0 + kRowsPerJob);
      const int64_t n0 = i / row_jobs * step, n1 = std::min(n, n0 + step);
      uint8_t* const scratch = space + call.scratch + static_cast<size_t>(thread) * call.scratch_bytes;
      float* tile = reinterpret_cast<float*>(scratch);
      int64_t ld = n1 - n0;
      if (is_float) {
        tile = y.as<float>() + m0 * n + n0;
        ld = n;
      }
      call.matrix.multiply(bytes, prepared, m, m0, m1, n0, n1, tile, ld, scratch + call.tile_bytes);
      if (corrects) correct(*scales, *zero_points, sums, m0, m1, n0, n1, tile, ld, reinterpret_cast<float*>(scratch + call.tile_bytes));
      if (is_float) return;
      for (int64_t row = m0; row < m1; ++row)
        cpu::from_f32(y.dtype, tile + (row - m0) * ld, y.as<uint8_t>() + static_cast<size_t>(row * n + n0) * io, n1 - n0);
    });
    return {};
  }

 private:
  // The kernel and the places in the workspace for m rows:
  //   float_a [m][K] when A is not float32 | sums [m][blocks] with float zero points | prepared rows
  //   scratch [threads]: tile when Y is not float32, then what the product needs
  struct Call {
    WeightMatrix matrix;
    bool float_zero_points;
    int64_t columns;  // most of a job
    size_t float_a, sums, prepared, tile_bytes, scratch_bytes, scratch, total;

    Call(const Attributes& a, DType dtype, DType scales, DType zero_points, DType bias, int64_t m, int n_threads) {
      MatrixForm form;
      form.storage = a.prepacked ? Storage::sm80 : Storage::raw;
      form.zero_points = zero_points == DType::u8 ? ZeroPoints::packed : ZeroPoints::middle;
      form.bits = a.bits;
      form.dtype = scales;
      form.bias_dtype = bias;
      form.n = a.n;
      form.k = a.k;
      form.block = a.block;
      form.row_bytes = a.blocks() * (a.block * a.bits / 8);  // the last block of a row is padded
      matrix = WeightMatrix(form, a.int8);
      float_zero_points = zero_points != DType::undefined && zero_points != DType::u8;
      columns = std::min(ceil_div(a.n, WeightMatrix::kColumnStep) * WeightMatrix::kColumnStep, kColumnsPerJob);

      const size_t rows = static_cast<size_t>(m);
      float_a = 0;
      sums = float_a + round_up_64(dtype == DType::f32 ? 0 : rows * static_cast<size_t>(a.k) * sizeof(float));
      prepared = sums + round_up_64(float_zero_points ? rows * static_cast<size_t>(a.blocks()) * sizeof(float) : 0);
      scratch = prepared + round_up_64(matrix.prepared_bytes(m));
      tile_bytes = dtype == DType::f32 ? 0 : round_up_64(static_cast<size_t>(std::min(m, kRowsPerJob) * columns) * sizeof(float));
      const size_t correction = float_zero_points ? 2 * round_up_64(static_cast<size_t>(a.blocks()) * sizeof(float)) : 0;
      scratch_bytes = tile_bytes + round_up_64(std::max(matrix.scratch_bytes(m, columns), correction));
      total = scratch + scratch_bytes * static_cast<size_t>(n_threads);
    }
  };

  Status check_weights(const InferContext& context) const {
    const int64_t blocks = a_.blocks(), expected = a_.n * blocks * (a_.block * a_.bits / 8);
    const auto check = [&](int input, const char* name, int64_t size) -> Status {
      HOTSET_FAIL_IF(context.shape(input).size() != size, invalid_model,
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
      HOTSET_TRY(check(kBias, "bias", a_.n));
    }
    return {};
  }

  // K is 0: every product is empty.
  void fill_bias(const Tensor* bias, const Tensor& y, int64_t m) const {
    std::memset(y.data, 0, y.bytes());
    if (!bias) return;
    for (int64_t row = 0; row < m; ++row) {
      for (int64_t c = 0; c < a_.n; ++c) {
        float value;
        cpu::to_f32(bias->dtype, bias->as<const uint8_t>() + static_cast<size_t>(c) * dtype_bytes(bias->dtype), &value, 1);
        cpu::from_f32(y.dtype, &value, y.as<uint8_t>() + static_cast<size_t>(row * a_.n + c) * dtype_bytes(y.dtype), 1);
      }
    }
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
