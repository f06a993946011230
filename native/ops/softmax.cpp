// SPDX-License-Identifier: Apache-2.0
// Softmax and LogSoftmax along one axis; before opset 13 over all dimensions from the axis on.
#include <cmath>
#include <limits>

#include "cpu_avx/elementwise.h"
#include "ops/elements.h"

namespace hotset::ops {
namespace {

class Softmax final : public Kernel {
 public:
  Softmax(bool log, const OpContext& c) : log_(log), flat_(c.node().opset < 13), axis_(c.node().get_int("axis", flat_ ? 1 : -1)), isa_(isa(c)) {}
  std::string_view implementation() const override { return isa_; }

  Status infer(InferContext& c) const override {
    const Shape& in = c.shape(0);
    int axis = 0;
    HOTSET_FAIL_IF(!is_float(c.dtype(0)), unsupported, "not defined for type %s", dtype_name(c.dtype(0)));
    HOTSET_FAIL_IF(in.rank > 0 && !normalize_axis(axis_, in.rank, &axis), invalid_argument, "axis %lld is out of range for shape %s",
                   static_cast<long long>(axis_), to_text(in).c_str());
    c.set_output(0, c.dtype(0), in);
    if (rows_of(in, axis).inner == 1 && dtype_bits(c.dtype(0)) == 16)  // a row as float32 for each thread
      c.set_workspace(static_cast<size_t>(rows_of(in, axis).n) * sizeof(float) * static_cast<size_t>(c.n_threads()));
    return {};
  }

  Status run(const RunContext& c) const override {
    const Tensor& in = *c.inputs[0];
    const Tensor& out = *c.outputs[0];
    if (in.size() == 0) return {};
    const int rank = in.shape.rank, axis = rank == 0 ? 0 : static_cast<int>(axis_ < 0 ? axis_ + rank : axis_);
    const Rows rows = rows_of(in.shape, axis);
    const int64_t n = rows.n, inner = rows.inner;
    const cpu::ElementwiseKernels* kernels = cpu::elementwise_kernels();
    if (kernels && !log_ && inner == 1 && in.dtype != DType::f64) {
      run_rows(c, rows.outer, n, kernels->softmax);
      return {};
    }
    over_range(in.size() < kShared ? nullptr : c.pool, rows.outer * inner, std::max<int64_t>(1, kShared / 2 / n), [&](int64_t begin, int64_t end) {
      visit_float(in.dtype, [&](auto tag) {
        for (int64_t r = begin; r < end; ++r) row<decltype(tag)>(in.data, out.data, r / inner * n * inner + r % inner, n, inner);
      });
    });
    return {};
  }

 private:
  // The vector loop takes rows whose elements are neighbours.
  std::string_view isa(const OpContext& c) const {
    const std::string_view vectors = log_ ? "scalar" : cpu::elementwise_isa();
    const bool known = c.has_input(0) && c.declared(0)->has_shape;
    const bool last = flat_ || axis_ == -1 || (known && axis_ == static_cast<int64_t>(c.declared(0)->shape.size()) - 1);
    if (!last && !known && vectors != "scalar") return "by shape";
    return isa_of_float_loops(last ? vectors : "scalar", c.declared_type(0));
  }

  static constexpr int64_t kShared = 1 << 13;  // elements from which rows are shared among threads

  struct Rows {
    int64_t outer, n, inner;
  };
  Rows rows_of(const Shape& s, int axis) const {
    if (s.rank == 0) return {1, 1, 1};
    return {s.product(0, axis), flat_ ? s.product(axis, s.rank) : s[axis], flat_ ? 1 : s.product(axis + 1, s.rank)};
  }

  static void run_rows(const RunContext& c, int64_t rows, int64_t n, cpu::SoftmaxRow softmax) {
    const Tensor& in = *c.inputs[0];
    const Tensor& out = *c.outputs[0];
    const int64_t bytes = element_bytes(in.dtype);
    const auto row = [&](int64_t r, int thread) {
      const char* from = in.as<char>() + r * n * bytes;
      char* to = out.as<char>() + r * n * bytes;
      if (in.dtype == DType::f32) return softmax(reinterpret_cast<const float*>(from), reinterpret_cast<float*>(to), n);
      float* wide = static_cast<float*>(c.workspace) + n * thread;
      cpu::to_f32(in.dtype, from, wide, n);
      softmax(wide, wide, n);
      cpu::from_f32(in.dtype, wide, to, n);
    };
    if (rows * n < 4 * kShared) {
      for (int64_t r = 0; r < rows; ++r) row(r, 0);
      return;
    }
    const int64_t step = std::max<int64_t>(1, kShared / n);
    c.pool->parallel_for((rows + step - 1) / step, [&](int64_t task, int thread) {
      for (int64_t r = task * step, end = std::min(rows, r + step); r < end; ++r) row(r, thread);
    });
  }

  // Exponentials are formed twice for 16-bit types rather than rounded in between.
  template <class T>
  void row(const void* in, void* out, int64_t base, int64_t n, int64_t step) const {
    using W = Wide<T>;
    W largest = -std::numeric_limits<W>::infinity();
    for (int64_t i = 0; i < n; ++i) {
      const W v = load_at<T>(in, base + i * step);
      largest = v > largest || v != v ? v : largest;
    }
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      const W e = std::exp(static_cast<W>(load_at<T>(in, base + i * step)) - largest);
      sum += static_cast<double>(e);
      if constexpr (!kIs16<T>)
        if (!log_) store_at<T>(out, base + i * step, e);
    }
    const W scale = static_cast<W>(1 / sum), shift = static_cast<W>(std::log(sum));
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = base + i * step;
      W v;
      if (log_) v = static_cast<W>(load_at<T>(in, at)) - largest - shift;
      else if constexpr (kIs16<T>) v = std::exp(static_cast<W>(load_at<T>(in, at)) - largest) * scale;
      else v = load_at<T>(out, at) * scale;
      store_at<T>(out, at, static_cast<T>(v));
    }
  }

  const bool log_, flat_;
  const int64_t axis_;
  const std::string_view isa_;
};

}  // namespace

HOTSET_OPS(softmax,
           {"", "Softmax", 1, kLatest, [](const OpContext& c) { return make_kernel<Softmax>(false, c); }, {1, 1}},
           {"", "LogSoftmax", 1, kLatest, [](const OpContext& c) { return make_kernel<Softmax>(true, c); }, {1, 1}});

}  // namespace hotset::ops
