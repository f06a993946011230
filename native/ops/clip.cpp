// SPDX-License-Identifier: Apache-2.0
// Clip: limits as inputs, or as attributes before opset 11.
#include <limits>

#include "ops/elements.h"

namespace hotset::ops {
namespace {

class Clip final : public Kernel {
 public:
  explicit Clip(const OpContext& c)
      : low_(c.node().opset < 11 ? c.node().get_float("min", std::numeric_limits<float>::lowest()) : -std::numeric_limits<float>::infinity()),
        high_(c.node().opset < 11 ? c.node().get_float("max", std::numeric_limits<float>::max()) : std::numeric_limits<float>::infinity()) {}

  Status infer(InferContext& c) const override {
    HOTSET_FAIL_IF(!visit_number(c.dtype(0), [](auto) {}), unsupported, "not defined for type %s", dtype_name(c.dtype(0)));
    for (int i = 1; i < 3; ++i)
      HOTSET_FAIL_IF(c.has_input(i) && (c.dtype(i) != c.dtype(0) || c.shape(i).size() != 1), invalid_model, "%s of %s and shape %s, expected one %s",
                     i == 1 ? "min" : "max", dtype_name(c.dtype(i)), to_text(c.shape(i)).c_str(), dtype_name(c.dtype(0)));
    c.set_output(0, c.dtype(0), c.shape(0));
    c.may_overwrite(0, 0);
    return {};
  }
  Status run(const RunContext& c) const override {
    const Tensor& in = *c.inputs[0];
    const Tensor& out = *c.outputs[0];
    visit_number(in.dtype, [&](auto tag) {
      using T = decltype(tag);
      using W = Wide<T>;
      W low = std::numeric_limits<W>::lowest(), high = std::numeric_limits<W>::max();
      if constexpr (!std::is_integral_v<W>) {
        low = low_;
        high = high_;
      }
      if (c.input(1)) low = load_at<T>(c.input(1)->data, 0);
      if (c.input(2)) high = load_at<T>(c.input(2)->data, 0);
      over_range(c.pool, in.size(), kParallel, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          W v = load_at<T>(in.data, i);
          v = v < low ? low : v;
          store_at<T>(out.data, i, static_cast<T>(v > high ? high : v));
        }
      });
    });
    return {};
  }

 private:
  const float low_, high_;
};

}  // namespace

HOTSET_OPS(clip, {"", "Clip", 6, kLatest, [](const OpContext& c) { return make_kernel<Clip>(c); }, {1, 3}});

}  // namespace hotset::ops
