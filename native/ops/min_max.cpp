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

// Elements [i, i + m) as float32, in the buffer unless they are that.
template <class T>
const float* widened(const void* p, bool one, int64_t i, int m, float* buffer) {
  if constexpr (std::is_same_v<T, float>) return static_cast<const float*>(p) + (one ? 0 : i);
  else if (one) buffer[0] = load_at<T>(p, 0);
  else cpu::to_f32(T::kType, static_cast<const char*>(p) + 2 * i, buffer, m);
  return buffer;
}

// A term more of a sum that is rounded once: A and R are float32 or the type of the terms T. A BinaryLoop.
template <class A, class T, class R>
void add_term(const void* a, bool a_one, const void* b, bool b_one, void* out, int64_t n) {
  float x[kChunk], y[kChunk], z[kChunk];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int m = static_cast<int>(std::min<int64_t>(kChunk, n - i));
    const float *p = widened<A>(a, a_one, i, m, x), *q = widened<T>(b, b_one, i, m, y);
    if constexpr (std::is_same_v<R, float>) {
      binary_loop<SumOp, float>(p, a_one, q, b_one, static_cast<float*>(out) + i, m);
    } else {
      binary_loop<SumOp, float>(p, a_one, q, b_one, z, m);
      cpu::from_f32(R::kType, z, static_cast<char*>(out) + 2 * i, m);
    }
  }
}

class VariadicKernel final : public Kernel {
 public:
  VariadicKernel(const BinaryTable& table, int n_inputs, bool rounds) : table_(table), n_inputs_(n_inputs), rounds_(rounds) {}
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
    if (in_float32(type)) c.set_workspace(static_cast<size_t>(out.size()) * sizeof(float));
    return {};
  }
  Status run(const RunContext& c) const override {
    Tensor& out = *c.outputs[0];
    const BinaryLoop loop = table_[static_cast<size_t>(out.dtype)];
    if (n_inputs_ == 1) return {};
    if (in_float32(out.dtype)) {
      if (out.dtype == DType::f16) sum<F16>(c, out);
      else sum<Bf16>(c, out);
      return {};
    }
    // The first two fill the output, the others are joined into it.
    run_binary(loop, *c.inputs[0], *c.inputs[1], out, c.pool);
    for (int i = 2; i < n_inputs_; ++i) run_binary(loop, out, *c.inputs[static_cast<size_t>(i)], out, c.pool);
    return {};
  }

 private:
  bool in_float32(DType type) const { return rounds_ && n_inputs_ > 2 && (type == DType::f16 || type == DType::bf16); }

  // The sum so far is in the workspace.
  template <class T>
  void sum(const RunContext& c, Tensor& out) const {
    Tensor total{c.workspace, DType::f32, out.shape};
    run_binary(add_term<T, T, float>, *c.inputs[0], *c.inputs[1], total, c.pool);
    for (int i = 2; i < n_inputs_; ++i) {
      const bool last = i + 1 == n_inputs_;
      run_binary(last ? add_term<float, T, T> : add_term<float, T, float>, total, *c.inputs[static_cast<size_t>(i)], last ? out : total, c.pool);
    }
  }

  const BinaryTable& table_;
  const int n_inputs_;
  const bool rounds_;  // Op gives numbers that are not among its operands
};

template <class Op, int types>
Result<std::unique_ptr<Kernel>> make_variadic(const OpContext& c) {
  if (c.n_inputs() < 1) return c.fail(Code::invalid_model, "no inputs");
  return make_kernel<VariadicKernel>(kBinaryTable<Op, types>, c.n_inputs(), std::is_same_v<Op, SumOp>);
}

}  // namespace

HOTSET_OPS(min_max,
           {"", "Max", 8, kLatest, make_variadic<MaxOp, kNumbers>, {1, kAny}},
           {"", "Min", 8, kLatest, make_variadic<MinOp, kNumbers>, {1, kAny}},
           {"", "Sum", 8, kLatest, make_variadic<SumOp, kFloats>, {1, kAny}});

}  // namespace hotset::ops
