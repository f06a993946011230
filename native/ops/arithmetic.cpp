// SPDX-License-Identifier: Apache-2.0
// Add, Sub, Mul, Div, Mod, Pow.
#include <cmath>

#include "ops/binary.h"

namespace hotset::ops {
namespace {

// Integers wrap around: arithmetic in the unsigned type, at least 32 bits wide so that nothing promotes to a signed one.
template <class T>
using Wrapping = std::make_unsigned_t<std::conditional_t<(sizeof(T) < 4), int32_t, T>>;

#define HOTSET_WRAPPING_OP(Name, op)                                                         \
  struct Name {                                                                              \
    template <class T>                                                                       \
    static T apply(T a, T b) {                                                               \
      if constexpr (std::is_integral_v<T>)                                                   \
        return static_cast<T>(static_cast<Wrapping<T>>(a) op static_cast<Wrapping<T>>(b));   \
      else                                                                                   \
        return a op b;                                                                       \
    }                                                                                        \
  }
HOTSET_WRAPPING_OP(AddOp, +);
HOTSET_WRAPPING_OP(SubOp, -);
HOTSET_WRAPPING_OP(MulOp, *);
#undef HOTSET_WRAPPING_OP

// Integers: towards zero; the smallest one by -1 wraps. Zero divisors were refused before.
struct DivOp {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      if constexpr (std::is_signed_v<T>)
        if (b == T(-1)) return SubOp::apply(T(0), a);
      return static_cast<T>(a / b);
    } else {
      return a / b;
    }
  }
};

// The result has the sign of the divisor.
struct ModOp {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::is_signed_v<T>)
      if (b == T(-1)) return 0;
    const T r = static_cast<T>(a % b);
    return r != 0 && ((r < 0) != (b < 0)) ? static_cast<T>(r + b) : r;
  }
};

// The result has the sign of the dividend, as in C.
struct FmodOp {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      if constexpr (std::is_signed_v<T>)
        if (b == T(-1)) return 0;
      return static_cast<T>(a % b);
    } else {
      return std::fmod(a, b);
    }
  }
};

struct PowOp {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      if (b < 0) return a == 1 ? T(1) : a == T(-1) ? (b & 1 ? T(-1) : T(1)) : T(0);
      T result = 1;
      for (; b; b = static_cast<T>(b >> 1)) {
        if (b & 1) result = MulOp::apply(result, a);
        a = MulOp::apply(a, a);
      }
      return result;
    } else {
      return std::pow(a, b);
    }
  }
};

bool holds_zero(const Tensor& t) {
  bool zero = false;
  visit_integer(t.dtype, [&](auto tag) {
    using T = decltype(tag);
    for (int64_t i = 0, n = t.size(); i < n && !zero; ++i) zero = load_at<T>(t.data, i) == 0;
  });
  return zero;
}

// Div and Mod: integer divisors are checked first, a trap would end the process.
class DivisionKernel final : public BinaryKernel {
 public:
  using BinaryKernel::BinaryKernel;
  Status run(const RunContext& c) const override {
    HOTSET_FAIL_IF(!is_float(c.inputs[1]->dtype) && holds_zero(*c.inputs[1]), invalid_argument, "integer division by zero");
    return BinaryKernel::run(c);
  }
};

class PowKernel final : public BinaryKernel {
 public:
  using BinaryKernel::BinaryKernel;
  // The exponent may have a type of its own.
  Status infer(InferContext& c) const override {
    if (c.dtype(0) == c.dtype(1)) return BinaryKernel::infer(c);
    for (int i = 0; i < 2; ++i)
      HOTSET_FAIL_IF(!table_[static_cast<size_t>(c.dtype(i))], unsupported, "not defined for type %s", dtype_name(c.dtype(i)));
    Shape out = c.shape(0);
    HOTSET_TRY(broadcast_shape(c.shape(1), &out));
    c.set_output(0, c.dtype(0), out);
    return {};
  }
  Status run(const RunContext& c) const override {
    const Tensor &a = *c.inputs[0], &b = *c.inputs[1];
    Tensor& out = *c.outputs[0];
    const BinaryLoop square = kBinaryTable<MulOp, kNumbers>[static_cast<size_t>(a.dtype)];
    if (b.size() == 1 && a.size() == out.size() && square) {  // x^2, as norms spell it
      bool two = false;
      visit_number(b.dtype, [&](auto tag) { two = load_at<decltype(tag)>(b.data, 0) == 2; });
      if (two) {
        run_binary(square, a, a, out, c.pool);
        return {};
      }
    }
    if (a.dtype == b.dtype) return BinaryKernel::run(c);
    const Broadcast<2> layout(out.shape, {&a.shape, &b.shape});
    const int64_t run = layout.run(), *stride = layout.stride[layout.rank - 1];
    if (out.size() == 0) return {};
    visit_number(a.dtype, [&](auto base_tag) {
      visit_number(b.dtype, [&](auto exponent_tag) {
        using T = decltype(base_tag);
        using E = decltype(exponent_tag);
        layout.walk(0, layout.n_runs(), [&](const int64_t* at, int64_t r) {
          for (int64_t i = 0; i < run; ++i) {
            const Wide<T> x = load_at<T>(a.data, at[0] + i * stride[0]);
            const Wide<E> y = load_at<E>(b.data, at[1] + i * stride[1]);
            double v = std::pow(static_cast<double>(x), static_cast<double>(y));
            if constexpr (std::is_integral_v<T>) {
              if constexpr (std::is_integral_v<E>) v = static_cast<double>(PowOp::apply(static_cast<int64_t>(x), static_cast<int64_t>(y)));
              store_at<T>(out.data, r * run + i, from_double<T>(v));
            } else {
              store_at<T>(out.data, r * run + i, static_cast<T>(static_cast<Wide<T>>(v)));
            }
          }
        });
      });
    });
    return {};
  }
};

template <class Op, cpu::Arithmetic op>
const BinaryTable& arithmetic_table() {
  static const BinaryTable table = with_vectors(kBinaryTable<Op, kNumbers>, op);
  return table;
}

template <class K, class Op, cpu::Arithmetic op>
Result<std::unique_ptr<Kernel>> make_arithmetic(const OpContext& c) {
  if (c.n_inputs() != 2) return c.fail(Code::invalid_model, "%d inputs, expected 2", c.n_inputs());
  return make_kernel<K>(c, arithmetic_table<Op, op>());
}

Result<std::unique_ptr<Kernel>> make_mod(const OpContext& c) {
  if (c.node().get_int("fmod", 0)) return make_kernel<DivisionKernel>(c, kBinaryTable<FmodOp, kNumbers>);
  return make_kernel<DivisionKernel>(c, kBinaryTable<ModOp, kIntegers>);
}

Result<std::unique_ptr<Kernel>> make_pow(const OpContext& c) {
  return make_kernel<PowKernel>(c, kBinaryTable<PowOp, kNumbers>);
}

}  // namespace

HOTSET_OPS(arithmetic,
           {"", "Add", 7, kLatest, make_arithmetic<BinaryKernel, AddOp, cpu::Arithmetic::add>, {2, 2}},
           {"", "Sub", 7, kLatest, make_arithmetic<BinaryKernel, SubOp, cpu::Arithmetic::sub>, {2, 2}},
           {"", "Mul", 7, kLatest, make_arithmetic<BinaryKernel, MulOp, cpu::Arithmetic::mul>, {2, 2}},
           {"", "Div", 7, kLatest, make_arithmetic<DivisionKernel, DivOp, cpu::Arithmetic::div>, {2, 2}},
           {"", "Mod", 10, kLatest, make_mod, {2, 2}},
           {"", "Pow", 7, kLatest, make_pow, {2, 2}});

}  // namespace hotset::ops
