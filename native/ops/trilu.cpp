// SPDX-License-Identifier: Apache-2.0
// Trilu: the upper or lower triangle of matrices.
#include "ops/elements.h"

namespace hotset::ops {
namespace {

class Trilu final : public Kernel {
 public:
  explicit Trilu(bool upper) : upper_(upper) {}
  Status infer(InferContext& c) const override {
    HOTSET_FAIL_IF(c.shape(0).rank < 2, invalid_argument, "input of shape %s, expected matrices", to_text(c.shape(0)).c_str());
    HOTSET_FAIL_IF(element_bytes(c.dtype(0)) == 0, unsupported, "input of type %s", dtype_name(c.dtype(0)));
    HOTSET_FAIL_IF(c.has_input(1) && (c.dtype(1) != DType::i64 || c.shape(1).size() != 1), invalid_model, "k of %s and shape %s, expected one int64",
                   dtype_name(c.dtype(1)), to_text(c.shape(1)).c_str());
    c.set_output(0, c.dtype(0), c.shape(0));
    return {};
  }
  Status run(const RunContext& c) const override {
    const Tensor& in = *c.inputs[0];
    if (in.size() == 0) return {};
    const int64_t rows = in.shape[-2], columns = in.shape[-1], bytes = element_bytes(in.dtype), n = in.size() / columns;
    const int64_t k = c.input(1) ? std::clamp<int64_t>(int_at(*c.input(1), 0), -rows, columns) : 0;
    for (int64_t r = 0; r < n; ++r) {
      const char* from = in.as<char>() + r * columns * bytes;
      char* to = c.outputs[0]->as<char>() + r * columns * bytes;
      // Upper keeps columns from `cut` on, lower those before it.
      const int64_t cut = std::clamp<int64_t>(r % rows + k + (upper_ ? 0 : 1), 0, columns) * bytes, end = columns * bytes;
      std::memcpy(to, from, static_cast<size_t>(end));
      if (upper_) std::memset(to, 0, static_cast<size_t>(cut));
      else std::memset(to + cut, 0, static_cast<size_t>(end - cut));
    }
    return {};
  }

 private:
  const bool upper_;
};

}  // namespace

HOTSET_OPS(trilu, {"", "Trilu", 14, kLatest, [](const OpContext& c) { return make_kernel<Trilu>(c.node().get_int("upper", 1) != 0); }, {1, 2}});

}  // namespace hotset::ops
