// SPDX-License-Identifier: Apache-2.0
// Min, Max and Sum of any number of operands.
#include "ops/binary.h"

namespace hotset::ops {
namespace {

// NaN wins, as in NumPy.
struct MaxOp {
  template <class T>
  static T apply(T a, T b) {
    return a > b || a != a ? a : b;
  }
};
struct MinOp {
  template <class T>
  static T apply(T a, T b) {
    return a < b || a != a ? a : b;
  }
};
struct SumOp {
  template <class T>
  static T apply(T a, T b) {
    return a + b;
  }
};

class VariadicKernel final : public Kernel {
 public:
  VariadicKernel(const BinaryTable& table, int n_inputs) : table_(table), n_inputs_(n_inputs) {}
  Status infer(InferContext& c) const override {
    const DType type = c.dtype(0);
    HOTSET_FAIL_IF(!table_[static_cast<size_t>(type)], unsupported, "not defined for type %s", dtype_name(type));
    Shape out = c.shape(0);
    for (int i = 1; i < n_inputs_; ++i) {
      HOTSET_FAIL_IF(c.dtype(i) != type, invalid_model, "operands of types %s and %s, expected equal types", dtype_name(type), dtype_name(c.dtype(i)));
      HOTSET_TRY(broadcast_shape(c.shape(i), &out));
    }
    c.set_output(0, type, out);
    if (n_inputs_ == 1) c.alias(0, 0);
    return {};
  }
  Status run(const RunContext& c) const override {
    Tensor& out = *c.outputs[0];
    const BinaryLoop loop = table_[static_cast<size_t>(out.dtype)];
    if (n_inputs_ == 1) return {};
    // The first two fill the output, the others are joined into it.
    run_binary(loop, *c.inputs[0], *c.inputs[1], out, c.pool);
    for (int i = 2; i < n_inputs_; ++i) run_binary(loop, out, *c.inputs[static_cast<size_t>(i)], out, c.pool);
    return {};
  }

 private:
  const BinaryTable& table_;
  const int n_inputs_;
};

template <class Op, int types>
Result<std::unique_ptr<Kernel>> make_variadic(const OpContext& c) {
  if (c.n_inputs() < 1) return c.fail(Code::invalid_model, "no inputs");
  return make_kernel<VariadicKernel>(kBinaryTable<Op, types>, c.n_inputs());
}

}  // namespace

HOTSET_OPS(min_max,
           {"", "Max", 8, kLatest, make_variadic<MaxOp, kNumbers>},
           {"", "Min", 8, kLatest, make_variadic<MinOp, kNumbers>},
           {"", "Sum", 8, kLatest, make_variadic<SumOp, kFloats>});

}  // namespace hotset::ops
