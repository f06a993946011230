// SPDX-License-Identifier: Apache-2.0
// Softmax and LogSoftmax along one axis; before opset 13 over all dimensions from the axis on.
#include <cmath>
#include <limits>

#include "ops/elements.h"

namespace hotset::ops {
namespace {

class Softmax final : public Kernel {
 public:
  Softmax(bool log, const OpContext& c) : log_(log), flat_(c.node().opset < 13), axis_(c.node().get_int("axis", flat_ ? 1 : -1)) {}

  Status infer(InferContext& c) const override {
    const Shape& in = c.shape(0);
    int axis = 0;
    HOTSET_FAIL_IF(!is_float(c.dtype(0)), unsupported, "not defined for type %s", dtype_name(c.dtype(0)));
    HOTSET_FAIL_IF(in.rank > 0 && !normalize_axis(axis_, in.rank, &axis), invalid_argument, "axis %lld is out of range for shape %s",
                   static_cast<long long>(axis_), to_text(in).c_str());
    c.set_output(0, c.dtype(0), in);
    return {};
  }

  Status run(const RunContext& c) const override {
    const Tensor& in = *c.inputs[0];
    const Tensor& out = *c.outputs[0];
    if (in.size() == 0) return {};
    const int rank = in.shape.rank, axis = rank == 0 ? 0 : static_cast<int>(axis_ < 0 ? axis_ + rank : axis_);
    const int64_t outer = in.shape.product(0, axis);
    const int64_t n = flat_ ? in.shape.product(axis, rank) : rank == 0 ? 1 : in.shape[axis];
    const int64_t inner = flat_ || rank == 0 ? 1 : in.shape.product(axis + 1, rank);
    over_range(in.size() < (1 << 13) ? nullptr : c.pool, outer * inner, std::max<int64_t>(1, (1 << 12) / n), [&](int64_t begin, int64_t end) {
      visit_float(in.dtype, [&](auto tag) {
        for (int64_t r = begin; r < end; ++r) row<decltype(tag)>(in.data, out.data, r / inner * n * inner + r % inner, n, inner);
      });
    });
    return {};
  }

 private:
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
};

}  // namespace

HOTSET_OPS(softmax,
           {"", "Softmax", 1, kLatest, [](const OpContext& c) { return make_kernel<Softmax>(false, c); }},
           {"", "LogSoftmax", 1, kLatest, [](const OpContext& c) { return make_kernel<Softmax>(true, c); }});

}  // namespace hotset::ops
