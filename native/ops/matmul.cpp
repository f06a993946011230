// SPDX-License-Identifier: Apache-2.0
// MatMul, FusedMatMul and Gemm.
//
// Float types: A as float32 rows (in place, or widened and turned in the workspace), B in its own bytes through float_gemm.
// Tasks are (batch, block of rows, block of columns); results that need more than a sum go through a tile of the thread:
//
//     workspace | A as float32 | thread 0: gemm scratch, tile | thread 1: ... |
#include "cpu_avx/float_gemm.h"
#include "ops/broadcast.h"
#include "ops/elements.h"

namespace hotset::ops {
namespace {

constexpr int64_t kRows = 512;        // rows of a task
constexpr int64_t kTile = 1 << 16;    // results of a task that goes through a tile, at least 256 columns of them
constexpr int64_t kSmall = 1 << 15;   // multiplications below which one thread is faster

struct Product {
  int64_t m = 0, n = 0, k = 0, batch = 1;
  Shape a_batch, b_batch, out;  // batch dimensions of the operands
};

Shape part(const Shape& s, int from, int to) { return Shape(std::span(s.dim + from, static_cast<size_t>(std::max(0, to - from)))); }

class MatMulKernel final : public Kernel {
 public:
  MatMulKernel(const OpContext& c, bool gemm, bool trans_a, bool trans_b, float alpha, float beta)
      : gemm_(gemm), trans_a_(trans_a), trans_b_(trans_b), alpha_(alpha), beta_(beta),
        type_(c.declared_type(c.declared_type(0) == DType::undefined ? 1 : 0)) {}
  std::string_view implementation() const override { return isa_of_float_loops(cpu::float_gemm().name, type_); }

  Status infer(InferContext& c) const override {
    const DType type = c.dtype(0);
    HOTSET_FAIL_IF(c.dtype(1) != type, invalid_model, "operands of types %s and %s, expected equal types", dtype_name(type), dtype_name(c.dtype(1)));
    HOTSET_FAIL_IF(!narrow(type) && !supported_wide(type), unsupported, "not defined for type %s", dtype_name(type));
    Product p;
    HOTSET_TRY(resolve(c.shape(0), c.shape(1), &p));
    if (gemm_ && c.has_input(2)) {
      HOTSET_FAIL_IF(c.dtype(2) != type, invalid_model, "C of type %s, expected %s", dtype_name(c.dtype(2)), dtype_name(type));
      Shape joined = p.out;
      const bool fits = broadcast_shape(c.shape(2), &joined).ok() && joined == p.out;
      HOTSET_FAIL_IF(!fits, invalid_argument, "C of shape %s does not broadcast to %s", to_text(c.shape(2)).c_str(), to_text(p.out).c_str());
    }
    c.set_output(0, type, p.out);
    if (narrow(type)) {
      const bool c_tile = gemm_ && c.has_input(2) && !row_bias(type, c.shape(2), p.n);
      c.set_workspace(a_bytes(type, c.shape(0).size()) + static_cast<size_t>(c.n_threads()) * thread_bytes(p, tiled(type, c_tile)));
    }
    return {};
  }

  Status run(const RunContext& c) const override {
    const Tensor &a = *c.inputs[0], &b = *c.inputs[1];
    const Tensor* bias = gemm_ ? c.input(2) : nullptr;
    Tensor& y = *c.outputs[0];
    Product p;
    HOTSET_TRY(resolve(a.shape, b.shape, &p));
    if (y.size() == 0) return {};
    if (narrow(a.dtype)) run_float(c, p, a, b, bias, y);
    else run_wide(c, p, a, b, bias, y);
    return {};
  }

 private:
  static bool narrow(DType t) { return t == DType::f32 || t == DType::f16 || t == DType::bf16; }
  static bool supported_wide(DType t) { return t == DType::f64 || t == DType::i32 || t == DType::i64 || t == DType::u32 || t == DType::u64; }
  // C that the product adds itself: a float32 row.
  bool row_bias(DType type, const Shape& s, int64_t n) const { return type == DType::f32 && beta_ == 1 && alpha_ == 1 && s.size() == n && s.rank >= 1 && s[-1] == n; }
  bool tiled(DType type, bool c_tile) const { return type != DType::f32 || alpha_ != 1 || c_tile; }
  size_t a_bytes(DType type, int64_t size) const { return type == DType::f32 && !trans_a_ ? 0 : (static_cast<size_t>(size) * 4 + 63) / 64 * 64; }
  static size_t thread_bytes(const Product& p, bool tile) {
    const int64_t rows = std::clamp<int64_t>(p.m, 1, kRows);
    const size_t scratch = (cpu::float_gemm().scratch_bytes(rows, p.n, p.k) + 63) / 64 * 64;
    return scratch + (tile ? static_cast<size_t>(rows * tile_columns(p, rows)) * 4 + 63 : 0) / 64 * 64;
  }
  // Wide for few rows: B is then read in long runs.
  static int64_t tile_columns(const Product& p, int64_t rows) { return std::min(p.n, std::clamp<int64_t>(kTile / rows, 256, 2048)); }

  Status resolve(const Shape& a, const Shape& b, Product* p) const {
    HOTSET_FAIL_IF(a.rank == 0 || b.rank == 0 || (gemm_ && (a.rank != 2 || b.rank != 2)), invalid_argument, "operands of shapes %s and %s", to_text(a).c_str(),
                   to_text(b).c_str());
    const bool row = a.rank == 1, column = b.rank == 1;  // their dimension of size 1 is left out of the result
    p->m = row ? 1 : trans_a_ ? a[-1] : a[-2];
    p->k = row ? a[0] : trans_a_ ? a[-2] : a[-1];
    p->n = column ? 1 : trans_b_ ? b[-2] : b[-1];
    const int64_t k = column ? b[0] : trans_b_ ? b[-1] : b[-2];
    HOTSET_FAIL_IF(k != p->k, invalid_argument, "operands of shapes %s and %s: %lld columns meet %lld rows", to_text(a).c_str(), to_text(b).c_str(),
                   static_cast<long long>(p->k), static_cast<long long>(k));
    p->a_batch = part(a, 0, a.rank - 2);
    p->b_batch = part(b, 0, b.rank - 2);
    Shape batch = p->a_batch;
    HOTSET_TRY(broadcast_shape(p->b_batch, &batch));
    p->out = batch;
    HOTSET_FAIL_IF(batch.rank + 2 > kMaxRank + (row ? 1 : 0) + (column ? 1 : 0), unsupported, "rank of the result exceeds %d", kMaxRank);
    if (!row) p->out.dim[p->out.rank++] = p->m;
    if (!column) p->out.dim[p->out.rank++] = p->n;
    p->batch = batch.size();
    // One B for all: the rows of all of A are the rows of one product.
    if (p->b_batch.size() == 1 && !trans_a_ && p->a_batch.size() == p->batch) {
      p->m *= p->batch;
      p->batch = 1;
    }
    return {};
  }

  void run_float(const RunContext& c, const Product& p, const Tensor& a, const Tensor& b, const Tensor* bias, Tensor& y) const {
    const cpu::FloatGemm& gemm = cpu::float_gemm();
    const bool direct_bias = bias && row_bias(a.dtype, bias->shape, p.n), tile = tiled(a.dtype, bias && !direct_bias);
    char* workspace = static_cast<char*>(c.workspace);
    const float* x = a.as<float>();
    if (a_bytes(a.dtype, a.size())) {
      x = reinterpret_cast<const float*>(workspace);
      widen_a(c, p, a, reinterpret_cast<float*>(workspace));
      workspace += a_bytes(a.dtype, a.size());
    }
    const int64_t rows = std::min(p.m, kRows);
    const size_t own = thread_bytes(p, tile), scratch_bytes = (gemm.scratch_bytes(rows, p.n, p.k) + 63) / 64 * 64;
    // Columns of a task: enough tasks for all threads, each with at least kSmall multiplications.
    const int64_t row_blocks = (p.m + kRows - 1) / kRows;
    const int threads = p.batch * p.m * p.n * p.k < 2 * kSmall ? 1 : c.pool->size();
    int64_t width = tile ? tile_columns(p, rows) : p.n;
    if (threads > 1) {
      const int64_t wanted = (4 * threads + p.batch * row_blocks - 1) / (p.batch * row_blocks);
      const int64_t least = std::max<int64_t>(64, kSmall / std::max<int64_t>(1, rows * p.k));
      width = std::min(width, std::max(least, ((p.n + wanted - 1) / wanted + 63) / 64 * 64));
    }
    const int64_t column_blocks = (p.n + width - 1) / width;
    const int64_t a_size = p.m * p.k, b_size = p.k * p.n;
    const auto task = [&](int64_t t, int thread) {
      const int64_t column = t % column_blocks * width, row = t / column_blocks % row_blocks * kRows, batch = t / column_blocks / row_blocks;
      const int64_t n1 = std::min(p.n, column + width), m1 = std::min(p.m, row + kRows);
      int64_t a_at = 0, b_at = 0;
      if (p.batch > 1) offsets(p, batch, &a_at, &b_at);
      cpu::FloatMatrix w{b.as<char>() + b_at * b_size * element_bytes(b.dtype), static_cast<int>(b.dtype), p.n, p.k, 1, p.n};
      if (trans_b_ && b.shape.rank > 1) {
        w.stride_n = p.k;
        w.stride_k = 1;
      }
      char* scratch = workspace + own * static_cast<size_t>(thread);
      const float* xa = x + a_at * a_size;
      const int64_t out = batch * p.m * p.n;
      if (!tile) {
        gemm.multiply(w, xa, p.k, row, m1, column, n1, direct_bias ? bias->as<float>() : nullptr, y.as<float>() + out, p.n, scratch);
        return;
      }
      float* block = reinterpret_cast<float*>(scratch + scratch_bytes);
      const int64_t ld = n1 - column;
      gemm.multiply(w, xa, p.k, row, m1, column, n1, nullptr, block - row * ld - column, ld, scratch);
      for (int64_t i = row; i < m1; ++i) {
        float* line = block + (i - row) * ld;
        if (alpha_ != 1)
          for (int64_t j = 0; j < ld; ++j) line[j] *= alpha_;
        if (bias) add_c(*bias, i, column, ld, line);
        cpu::from_f32(y.dtype, line, y.as<char>() + (out + i * p.n + column) * element_bytes(y.dtype), ld);
      }
    };
    const int64_t tasks = p.batch * row_blocks * column_blocks;
    if (threads == 1)
      for (int64_t t = 0; t < tasks; ++t) task(t, 0);
    else c.pool->parallel_for(tasks, task);
  }

  // A[...][M][K] as float32, from A[...][K][M] when it is transposed.
  void widen_a(const RunContext& c, const Product& p, const Tensor& a, float* out) const {
    if (!trans_a_ || a.shape.rank == 1) {
      over_range(c.pool, a.size(), kParallel, [&](int64_t begin, int64_t end) {
        cpu::to_f32(a.dtype, a.as<char>() + begin * element_bytes(a.dtype), out + begin, end - begin);
      });
      return;
    }
    visit_float(a.dtype, [&](auto tag) {
      using T = decltype(tag);
      if constexpr (!std::is_same_v<T, double>)
        for (int64_t m = 0, n = a.size() / std::max<int64_t>(1, p.m * p.k); m < n; ++m)
          for (int64_t i = 0; i < p.m; ++i)
            for (int64_t k = 0; k < p.k; ++k) out[(m * p.m + i) * p.k + k] = load_at<T>(a.data, (m * p.k + k) * p.m + i);
    });
  }

  static void offsets(const Product& p, int64_t batch, int64_t* a, int64_t* b) {
    const int batch_rank = std::max(p.a_batch.rank, p.b_batch.rank);
    int64_t a_step = 1, b_step = 1;
    for (int i = 1; i <= batch_rank; ++i) {
      const int64_t da = i <= p.a_batch.rank ? p.a_batch[-i] : 1, db = i <= p.b_batch.rank ? p.b_batch[-i] : 1;
      const int64_t d = da == 1 ? db : da, at = batch % d;
      batch /= d;
      if (da != 1) *a += at * a_step;
      if (db != 1) *b += at * b_step;
      a_step *= da;
      b_step *= db;
    }
  }

  void add_c(const Tensor& t, int64_t i, int64_t column, int64_t n, float* line) const {
    const int64_t columns = t.shape.rank >= 1 ? t.shape[-1] : 1, rows = t.shape.rank >= 2 ? t.shape[-2] : 1;
    const int64_t base = rows == 1 ? 0 : i * columns;
    visit_float(t.dtype, [&](auto tag) {
      using T = decltype(tag);
      for (int64_t j = 0; j < n; ++j) line[j] += beta_ * static_cast<float>(load_at<T>(t.data, base + (columns == 1 ? 0 : column + j)));
    });
  }

  // factor * v; of an integer without its fraction, and the nearest T when the product is outside.
  template <class T>
  static T scaled(float factor, T v) {
    if (factor == 1) return v;
    const double product = static_cast<double>(factor) * static_cast<double>(v);
    if constexpr (std::is_integral_v<T>) {
      using Limits = std::numeric_limits<T>;
      if (!(product > static_cast<double>(Limits::min()))) return Limits::min();
      if (product >= static_cast<double>(Limits::max())) return Limits::max();
    }
    return static_cast<T>(product);
  }

  // double and integers: plain loops.
  void run_wide(const RunContext& c, const Product& p, const Tensor& a, const Tensor& b, const Tensor* bias, Tensor& y) const {
    visit_number(a.dtype, [&](auto tag) {
      using T = decltype(tag);
      if constexpr (sizeof(T) >= 4 && !std::is_same_v<T, float>) {
        using W = std::conditional_t<std::is_integral_v<T>, std::make_unsigned_t<std::conditional_t<std::is_integral_v<T>, T, int>>, double>;
        over_range(c.pool, p.batch * p.m, std::max<int64_t>(1, kSmall / std::max<int64_t>(1, p.n * p.k)), [&](int64_t begin, int64_t end) {
          for (int64_t r = begin; r < end; ++r) {
            int64_t a_at = 0, b_at = 0;
            if (p.batch > 1) offsets(p, r / p.m, &a_at, &b_at);
            const int64_t i = r % p.m, a0 = a_at * p.m * p.k + (trans_a_ ? i : i * p.k), a_step = trans_a_ ? p.m : 1, b0 = b_at * p.k * p.n;
            for (int64_t j = 0; j < p.n; ++j) {
              W sum = 0;
              for (int64_t k = 0; k < p.k; ++k)
                sum += static_cast<W>(load_at<T>(a.data, a0 + k * a_step)) * static_cast<W>(load_at<T>(b.data, b0 + (trans_b_ ? j * p.k + k : k * p.n + j)));
              sum = static_cast<W>(scaled(alpha_, static_cast<T>(sum)));
              if (bias) {
                const Shape& s = bias->shape;
                const int64_t columns = s.rank >= 1 ? s[-1] : 1, rows = s.rank >= 2 ? s[-2] : 1;
                sum += static_cast<W>(scaled(beta_, load_at<T>(bias->data, (rows == 1 ? 0 : i * columns) + (columns == 1 ? 0 : j))));
              }
              store_at<T>(y.data, r * p.n + j, static_cast<T>(sum));
            }
          }
        });
      }
    });
  }

  const bool gemm_, trans_a_, trans_b_;
  const float alpha_, beta_;
  const DType type_;
};

Result<std::unique_ptr<Kernel>> make_fused(const OpContext& c) {
  const model::Node& node = c.node();
  if (node.get_int("transBatchA", 0) || node.get_int("transBatchB", 0)) return c.fail(Code::unsupported, "transBatchA and transBatchB");
  return make_kernel<MatMulKernel>(c, false, node.get_int("transA", 0) != 0, node.get_int("transB", 0) != 0, node.get_float("alpha", 1.0f), 0.0f);
}

Result<std::unique_ptr<Kernel>> make_gemm(const OpContext& c) {
  const model::Node& node = c.node();
  return make_kernel<MatMulKernel>(c, true, node.get_int("transA", 0) != 0, node.get_int("transB", 0) != 0, node.get_float("alpha", 1.0f),
                                   node.get_float("beta", 1.0f));
}

}  // namespace

HOTSET_OPS(matmul,
           {"", "MatMul", 1, kLatest, [](const OpContext& c) { return make_kernel<MatMulKernel>(c, false, false, false, 1.0f, 0.0f); }, {2, 2}},
           {"", "Gemm", 7, kLatest, make_gemm, {2, 3}},
           {"com.microsoft", "FusedMatMul", 1, kLatest, make_fused, {2, 2}});

}  // namespace hotset::ops
