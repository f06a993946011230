// SPDX-License-Identifier: Apache-2.0
// Range and ConstantOfShape.
#include <cmath>

#include "ops/axes.h"

namespace hotset::ops {
namespace {

class Range final : public Kernel {
 public:
  uint32_t shape_inputs() const override { return 0b111; }
  Status infer(InferContext& c) const override {
    const DType type = c.dtype(0);
    const Tensor* t[3];
    for (int i = 0; i < 3; ++i) {
      HOTSET_FAIL_IF(c.dtype(i) != type, invalid_model, "input %d of type %s, expected %s", i, dtype_name(c.dtype(i)), dtype_name(type));
      HOTSET_FAIL_IF(c.shape(i).size() != 1, invalid_argument, "input %d of shape %s, expected one number", i, to_text(c.shape(i)).c_str());
      t[i] = c.known(i);
      if (!t[i]) return c.defer(i);
    }
    int64_t n = -1;
    bool zero = false;
    const bool defined = visit_number(type, [&](auto tag) {
      using T = decltype(tag);
      const Wide<T> start = load_at<T>(t[0]->data, 0), limit = load_at<T>(t[1]->data, 0), delta = load_at<T>(t[2]->data, 0);
      zero = delta == 0;
      if (zero) return;
      if constexpr (std::is_integral_v<T>) {
        // Differences as unsigned numbers: they may exceed the type.
        const bool up = delta > 0;
        if (up ? start >= limit : start <= limit) {
          n = 0;
        } else {
          const uint64_t distance = up ? static_cast<uint64_t>(limit) - static_cast<uint64_t>(start) : static_cast<uint64_t>(start) - static_cast<uint64_t>(limit);
          const uint64_t step = up ? static_cast<uint64_t>(delta) : uint64_t{0} - static_cast<uint64_t>(delta);
          const uint64_t count = (distance - 1) / step + 1;
          n = count > (uint64_t{1} << 55) ? -1 : static_cast<int64_t>(count);
        }
      } else {
        const double count = std::ceil((static_cast<double>(limit) - static_cast<double>(start)) / static_cast<double>(delta));
        n = count <= 0 ? 0 : count < 0x1p55 ? static_cast<int64_t>(count) : -1;
      }
    });
    HOTSET_FAIL_IF(!defined, unsupported, "not defined for type %s", dtype_name(type));
    HOTSET_FAIL_IF(zero, invalid_argument, "delta is 0");
    HOTSET_FAIL_IF(n < 0, invalid_argument, "start, limit and delta give no finite range");
    c.set_output(0, type, {n});
    return {};
  }
  Status run(const RunContext& c) const override {
    const Tensor& out = *c.outputs[0];
    visit_number(out.dtype, [&](auto tag) {
      using T = decltype(tag);
      const Wide<T> start = load_at<T>(c.inputs[0]->data, 0), delta = load_at<T>(c.inputs[2]->data, 0);
      for (int64_t i = 0, n = out.size(); i < n; ++i) {
        if constexpr (std::is_integral_v<T>)
          store_at<T>(out.data, i, static_cast<T>(static_cast<uint64_t>(start) + static_cast<uint64_t>(i) * static_cast<uint64_t>(delta)));
        else store_at<T>(out.data, i, static_cast<T>(start + static_cast<Wide<T>>(i) * delta));
      }
    });
    return {};
  }
};

class ConstantOfShape final : public Kernel {
 public:
  explicit ConstantOfShape(const model::Constant* value) : value_(value) {}
  uint32_t shape_inputs() const override { return 1; }
  Status infer(InferContext& c) const override {
    const Tensor* shape = c.known(0);
    if (!shape) return c.defer(0);
    IntList list;
    HOTSET_TRY(read_list(*shape, "shape", &list));
    HOTSET_FAIL_IF(list.n > kMaxRank, unsupported, "rank %d, at most %d", list.n, kMaxRank);
    c.set_output(0, value_ ? value_->tensor.dtype : DType::f32, Shape(std::span(list.value, static_cast<size_t>(list.n))));
    return {};
  }
  Status run(const RunContext& c) const override {
    const Tensor& out = *c.outputs[0];
    const int64_t bytes = element_bytes(out.dtype), n = out.size();
    const char zero[16] = {};
    const char* value = value_ ? value_->tensor.as<char>() : zero;
    if (n > 0) std::memcpy(out.data, value, static_cast<size_t>(bytes));
    // The filled part is copied behind itself, doubling each time.
    for (int64_t done = 1; done < n; done *= 2)
      std::memcpy(out.as<char>() + done * bytes, out.data, static_cast<size_t>(std::min(done, n - done) * bytes));
    return {};
  }

 private:
  const model::Constant* value_;
};

Result<std::unique_ptr<Kernel>> make_constant_of_shape(const OpContext& c) {
  const model::Constant* value = c.node().get_tensor("value");
  if (value && element_bytes(value->tensor.dtype) == 0) return c.fail(Code::unsupported, "value of %s", dtype_name(value->tensor.dtype));
  if (value && (value->tensor.size() != 1 || !value->tensor.data))
    return c.fail(Code::invalid_model, "value of %s and shape %s, expected one number", dtype_name(value->tensor.dtype), to_text(value->tensor.shape).c_str());
  return make_kernel<ConstantOfShape>(value);
}

}  // namespace

HOTSET_OPS(fill,
           {"", "Range", 11, kLatest, [](const OpContext&) { return make_kernel<Range>(); }, {3, 3}},
           {"", "ConstantOfShape", 9, kLatest, make_constant_of_shape, {1, 1}});

}  // namespace hotset::ops
