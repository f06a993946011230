// SPDX-License-Identifier: Apache-2.0
// Arithmetic and transcendental functions, tests and negations of one operand.
#include "ops/unary.h"

#include <cmath>

namespace hotset::ops {
namespace {

#define HOTSET_OP(Name, expression)             \
  struct Name {                                 \
    template <class T>                          \
    static auto apply(T x, const float*) {      \
      return expression;                        \
    }                                           \
  }
HOTSET_OP(ExpOp, std::exp(x));
HOTSET_OP(LogOp, std::log(x));
HOTSET_OP(SqrtOp, std::sqrt(x));
HOTSET_OP(ReciprocalOp, T(1) / x);
HOTSET_OP(SinOp, std::sin(x));
HOTSET_OP(CosOp, std::cos(x));
HOTSET_OP(TanOp, std::tan(x));
HOTSET_OP(AsinOp, std::asin(x));
HOTSET_OP(AcosOp, std::acos(x));
HOTSET_OP(AtanOp, std::atan(x));
HOTSET_OP(SinhOp, std::sinh(x));
HOTSET_OP(CoshOp, std::cosh(x));
HOTSET_OP(ErfOp, std::erf(x));
HOTSET_OP(FloorOp, std::floor(x));
HOTSET_OP(CeilOp, std::ceil(x));
HOTSET_OP(RoundOp, std::nearbyint(x));  // ties to even
HOTSET_OP(IsNanOp, x != x);
HOTSET_OP(NotOp, !x);
HOTSET_OP(BitNotOp, static_cast<T>(~x));
#undef HOTSET_OP

struct NegOp {
  template <class T>
  static T apply(T x, const float*) {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(0 - static_cast<std::make_unsigned_t<T>>(x));
    else return -x;
  }
};
struct AbsOp {
  template <class T>
  static T apply(T x, const float*) {
    if constexpr (std::is_integral_v<T>) return x < 0 ? NegOp::apply(x, nullptr) : x;
    else return std::fabs(x);
  }
};
struct SignOp {
  template <class T>
  static T apply(T x, const float*) {
    if constexpr (!std::is_integral_v<T>)
      if (x != x) return x;
    return static_cast<T>((x > 0) - (x < 0));
  }
};
// p: whether negative and positive infinity count.
struct IsInfOp {
  template <class T>
  static bool apply(T x, const float* p) {
    return std::isinf(x) && (x < 0 ? p[0] : p[1]) != 0;
  }
};

template <class Op>
constexpr UnaryTable with_integers(UnaryTable t, bool unsigned_too) {
  t[static_cast<size_t>(DType::i8)] = unary_loop<Op, int8_t>;
  t[static_cast<size_t>(DType::i16)] = unary_loop<Op, int16_t>;
  t[static_cast<size_t>(DType::i32)] = unary_loop<Op, int32_t>;
  t[static_cast<size_t>(DType::i64)] = unary_loop<Op, int64_t>;
  if (!unsigned_too) return t;
  t[static_cast<size_t>(DType::u8)] = unary_loop<Op, uint8_t>;
  t[static_cast<size_t>(DType::u16)] = unary_loop<Op, uint16_t>;
  t[static_cast<size_t>(DType::u32)] = unary_loop<Op, uint32_t>;
  t[static_cast<size_t>(DType::u64)] = unary_loop<Op, uint64_t>;
  return t;
}
constexpr UnaryTable only_bool() {
  UnaryTable t{};
  t[static_cast<size_t>(DType::boolean)] = unary_loop<NotOp, bool>;
  return t;
}
constexpr UnaryTable kNeg = with_integers<NegOp>(kFloatTable<NegOp>, false), kAbs = with_integers<AbsOp>(kFloatTable<AbsOp>, true),
                     kSign = with_integers<SignOp>(kFloatTable<SignOp>, true), kBitNot = with_integers<BitNotOp>(UnaryTable{}, true), kNot = only_bool();

Result<std::unique_ptr<Kernel>> make_is_inf(const OpContext& c) {
  return make_kernel<UnaryKernel>(c, kFloatTable<IsInfOp>, DType::boolean, static_cast<float>(c.node().get_int("detect_negative", 1)),
                                  static_cast<float>(c.node().get_int("detect_positive", 1)));
}

}  // namespace

HOTSET_OPS(unary,
           {"", "Neg", 6, kLatest, make_unary<kNeg>, {1, 1}},
           {"", "Abs", 6, kLatest, make_unary<kAbs>, {1, 1}},
           {"", "Sign", 9, kLatest, make_unary<kSign>, {1, 1}},
           {"", "Exp", 6, kLatest, make_vector_unary<ExpOp, cpu::Function::exp>, {1, 1}},
           {"", "Log", 6, kLatest, make_unary<kFloatTable<LogOp>>, {1, 1}},
           {"", "Sqrt", 6, kLatest, make_vector_unary<SqrtOp, cpu::Function::sqrt>, {1, 1}},
           {"", "Reciprocal", 6, kLatest, make_unary<kFloatTable<ReciprocalOp>>, {1, 1}},
           {"", "Sin", 7, kLatest, make_unary<kFloatTable<SinOp>>, {1, 1}},
           {"", "Cos", 7, kLatest, make_unary<kFloatTable<CosOp>>, {1, 1}},
           {"", "Tan", 7, kLatest, make_unary<kFloatTable<TanOp>>, {1, 1}},
           {"", "Asin", 7, kLatest, make_unary<kFloatTable<AsinOp>>, {1, 1}},
           {"", "Acos", 7, kLatest, make_unary<kFloatTable<AcosOp>>, {1, 1}},
           {"", "Atan", 7, kLatest, make_unary<kFloatTable<AtanOp>>, {1, 1}},
           {"", "Sinh", 9, kLatest, make_unary<kFloatTable<SinhOp>>, {1, 1}},
           {"", "Cosh", 9, kLatest, make_unary<kFloatTable<CoshOp>>, {1, 1}},
           {"", "Erf", 9, kLatest, make_vector_unary<ErfOp, cpu::Function::erf>, {1, 1}},
           {"", "Floor", 6, kLatest, make_unary<kFloatTable<FloorOp>>, {1, 1}},
           {"", "Ceil", 6, kLatest, make_unary<kFloatTable<CeilOp>>, {1, 1}},
           {"", "Round", 11, kLatest, make_unary<kFloatTable<RoundOp>>, {1, 1}},
           {"", "IsNaN", 9, kLatest, make_unary<kFloatTable<IsNanOp>, DType::boolean>, {1, 1}},
           {"", "IsInf", 10, kLatest, make_is_inf, {1, 1}},
           {"", "Not", 1, kLatest, make_unary<kNot>, {1, 1}},
           {"", "BitwiseNot", 18, kLatest, make_unary<kBitNot>, {1, 1}});

}  // namespace hotset::ops
