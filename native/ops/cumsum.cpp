// SPDX-License-Identifier: Apache-2.0
// CumSum along one axis.
#include "ops/elements.h"

namespace hotset::ops {
namespace {

class CumSum final : public Kernel {
 public:
  explicit CumSum(const OpContext& c) : exclusive_(c.node().get_int("exclusive", 0) != 0), reverse_(c.node().get_int("reverse", 0) != 0) {}
  Status infer(InferContext& c) const override {
    HOTSET_FAIL_IF(!visit_number(c.dtype(0), [](auto) {}), unsupported, "not defined for type %s", dtype_name(c.dtype(0)));
    HOTSET_FAIL_IF((c.dtype(1) != DType::i64 && c.dtype(1) != DType::i32) || c.shape(1).size() != 1, invalid_model,
                   "axis of %s and shape %s, expected one int32 or int64", dtype_name(c.dtype(1)), to_text(c.shape(1)).c_str());
    c.set_output(0, c.dtype(0), c.shape(0));
    return {};
  }
  Status run(const RunContext& c) const override {
    const Tensor& in = *c.inputs[0];
    const Tensor& out = *c.outputs[0];
    int axis = 0;
    HOTSET_FAIL_IF(!normalize_axis(int_at(*c.inputs[1], 0), in.shape.rank, &axis), invalid_argument, "axis %lld is out of range for shape %s",
                   static_cast<long long>(int_at(*c.inputs[1], 0)), to_text(in.shape).c_str());
    const int64_t n = in.shape[axis], inner = in.shape.product(axis + 1, in.shape.rank), outer = in.shape.product(0, axis);
    visit_number(in.dtype, [&](auto tag) {
      using T = decltype(tag);
      // Floats in double, integers wrapping around.
      using A = std::conditional_t<std::is_integral_v<T>, uint64_t, double>;
      for (int64_t o = 0; o < outer; ++o)
        for (int64_t i = 0; i < inner; ++i) {
          A sum = 0;
          for (int64_t k = 0; k < n; ++k) {
            const int64_t at = (o * n + (reverse_ ? n - 1 - k : k)) * inner + i;
            const A before = sum;
            sum += static_cast<A>(static_cast<Wide<T>>(load_at<T>(in.data, at)));
            store_at<T>(out.data, at, static_cast<T>(static_cast<Wide<T>>(exclusive_ ? before : sum)));
          }
        }
    });
    return {};
  }

 private:
  const bool exclusive_, reverse_;
};

}  // namespace

HOTSET_OPS(cumsum, {"", "CumSum", 11, kLatest, [](const OpContext& c) { return make_kernel<CumSum>(c); }, {2, 2}});

}  // namespace hotset::ops
