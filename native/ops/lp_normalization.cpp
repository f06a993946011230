// SPDX-License-Identifier: Apache-2.0
// LpNormalization: vectors of one axis by their norm; a vector of zeros stays zero.
#include <cmath>

#include "ops/elements.h"

namespace hotset::ops {
namespace {

class LpNormalization final : public Kernel {
 public:
  LpNormalization(int64_t p, int64_t axis) : p_(p), axis_(axis) {}
  Status infer(InferContext& c) const override {
    int axis = 0;
    HOTSET_FAIL_IF(!is_float(c.dtype(0)), unsupported, "not defined for type %s", dtype_name(c.dtype(0)));
    HOTSET_FAIL_IF(!normalize_axis(axis_, c.shape(0).rank, &axis), invalid_argument, "axis %lld is out of range for shape %s", static_cast<long long>(axis_),
                   to_text(c.shape(0)).c_str());
    c.set_output(0, c.dtype(0), c.shape(0));
    return {};
  }
  Status run(const RunContext& c) const override {
    const Tensor& in = *c.inputs[0];
    const Tensor& out = *c.outputs[0];
    if (in.size() == 0) return {};
    const int rank = in.shape.rank, axis = static_cast<int>(axis_ < 0 ? axis_ + rank : axis_);
    const int64_t n = in.shape[axis], inner = in.shape.product(axis + 1, rank);
    over_range(in.size() < kParallel ? nullptr : c.pool, in.size() / n, std::max<int64_t>(1, kParallel / 4 / n), [&](int64_t begin, int64_t end) {
      visit_float(in.dtype, [&](auto tag) {
        using T = decltype(tag);
        for (int64_t r = begin; r < end; ++r) {
          const int64_t base = r / inner * n * inner + r % inner;
          const auto value = [&](int64_t i) { return static_cast<double>(static_cast<Wide<T>>(load_at<T>(in.data, base + i * inner))); };
          double norm = 0;
          for (int64_t i = 0; i < n; ++i) norm += p_ == 2 ? value(i) * value(i) : std::fabs(value(i));
          if (p_ == 2) norm = std::sqrt(norm);
          const double scale = norm == 0 ? 0 : 1 / norm;
          for (int64_t i = 0; i < n; ++i) store_at<T>(out.data, base + i * inner, static_cast<T>(static_cast<Wide<T>>(value(i) * scale)));
        }
      });
    });
    return {};
  }

 private:
  const int64_t p_, axis_;
};

Result<std::unique_ptr<Kernel>> make(const OpContext& c) {
  const int64_t p = c.node().get_int("p", 2);
  if (p != 1 && p != 2) return c.fail(Code::invalid_model, "p is %lld, expected 1 or 2", static_cast<long long>(p));
  return make_kernel<LpNormalization>(p, c.node().get_int("axis", -1));
}

}  // namespace

HOTSET_OPS(lp_normalization, {"", "LpNormalization", 1, kLatest, make, {1, 1}});

}  // namespace hotset::ops
