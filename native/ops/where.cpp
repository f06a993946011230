// SPDX-License-Identifier: Apache-2.0
// Where: one of two operands by a condition, with broadcasting.
#include "ops/broadcast.h"
#include "ops/elements.h"

namespace hotset::ops {
namespace {

template <class T>
void select(const Broadcast<3>& layout, const Tensor* const (&in)[3], void* out, int64_t begin, int64_t end) {
  const int64_t run = layout.run(), *s = layout.stride[layout.rank - 1];
  layout.walk(begin, end, [&](const int64_t* at, int64_t r) {
    const uint8_t* condition = in[0]->as<uint8_t>() + at[0];
    if (s[0] == 0) {
      const int side = *condition ? 1 : 2;
      for (int64_t i = 0; i < run; ++i) store_at<T>(out, r * run + i, load_at<T>(in[side]->data, at[side] + i * s[side]));
    } else {
      for (int64_t i = 0; i < run; ++i) {
        const T a = load_at<T>(in[1]->data, at[1] + i * s[1]), b = load_at<T>(in[2]->data, at[2] + i * s[2]);
        store_at<T>(out, r * run + i, condition[i] ? a : b);
      }
    }
  });
}

class Where final : public Kernel {
 public:
  Status infer(InferContext& c) const override {
    HOTSET_FAIL_IF(c.dtype(0) != DType::boolean, invalid_model, "condition of type %s, expected bool", dtype_name(c.dtype(0)));
    HOTSET_FAIL_IF(c.dtype(1) != c.dtype(2), invalid_model, "operands of types %s and %s, expected equal types", dtype_name(c.dtype(1)), dtype_name(c.dtype(2)));
    const int64_t bytes = element_bytes(c.dtype(1));
    HOTSET_FAIL_IF(bytes == 0 || bytes > 8, unsupported, "not defined for type %s", dtype_name(c.dtype(1)));
    Shape out = c.shape(0);
    HOTSET_TRY(broadcast_shape(c.shape(1), &out));
    HOTSET_TRY(broadcast_shape(c.shape(2), &out));
    c.set_output(0, c.dtype(1), out);
    if (c.shape(1).size() == out.size()) c.may_overwrite(0, 1);
    else if (c.shape(2).size() == out.size()) c.may_overwrite(0, 2);
    return {};
  }
  Status run(const RunContext& c) const override {
    Tensor& out = *c.outputs[0];
    if (out.size() == 0) return {};
    const Tensor* const in[3] = {c.inputs[0], c.inputs[1], c.inputs[2]};
    const Broadcast<3> layout(out.shape, {&in[0]->shape, &in[1]->shape, &in[2]->shape});
    const auto part = [&](int64_t begin, int64_t end) {
      switch (element_bytes(out.dtype)) {
        case 1: return select<uint8_t>(layout, in, out.data, begin, end);
        case 2: return select<uint16_t>(layout, in, out.data, begin, end);
        case 4: return select<uint32_t>(layout, in, out.data, begin, end);
        default: return select<uint64_t>(layout, in, out.data, begin, end);
      }
    };
    over_range(c.pool, layout.n_runs(), std::max<int64_t>(1, kParallel / layout.run()), part);
    return {};
  }
};

}  // namespace

HOTSET_OPS(where, {"", "Where", 9, kLatest, [](const OpContext&) { return make_kernel<Where>(); }, {3, 3}});

}  // namespace hotset::ops
