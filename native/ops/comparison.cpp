// SPDX-License-Identifier: Apache-2.0
// Comparisons, boolean and bitwise operators.
#include "ops/binary.h"

namespace hotset::ops {
namespace {

#define HOTSET_OP(Name, expression)          \
  struct Name {                              \
    template <class T>                       \
    static auto apply(T a, T b) {            \
      return expression;                     \
    }                                        \
  }
HOTSET_OP(EqualOp, a == b);
HOTSET_OP(GreaterOp, a > b);
HOTSET_OP(GreaterOrEqualOp, a >= b);
HOTSET_OP(LessOp, a < b);
HOTSET_OP(LessOrEqualOp, a <= b);
HOTSET_OP(AndOp, static_cast<bool>(a && b));
HOTSET_OP(OrOp, static_cast<bool>(a || b));
HOTSET_OP(XorOp, a != b);
HOTSET_OP(BitAndOp, static_cast<T>(a & b));
HOTSET_OP(BitOrOp, static_cast<T>(a | b));
HOTSET_OP(BitXorOp, static_cast<T>(a ^ b));
// Shifting by the width of the type or more leaves zero.
HOTSET_OP(ShiftLeftOp, b < sizeof(T) * 8 ? static_cast<T>(a << b) : T(0));
HOTSET_OP(ShiftRightOp, b < sizeof(T) * 8 ? static_cast<T>(a >> b) : T(0));
#undef HOTSET_OP

Result<std::unique_ptr<Kernel>> make_shift(const OpContext& c) {
  const std::string direction = c.node().get_string("direction", "");
  if (direction == "LEFT") return make_binary<ShiftLeftOp, kUnsigned>(c);
  if (direction == "RIGHT") return make_binary<ShiftRightOp, kUnsigned>(c);
  return c.fail(Code::invalid_model, "direction '%s', expected LEFT or RIGHT", direction.c_str());
}

constexpr DType kBoolean = DType::boolean;

}  // namespace

HOTSET_OPS(comparison,
           {"", "Equal", 7, kLatest, make_binary<EqualOp, kNumbers | kBool, kBoolean>, {2, 2}},
           {"", "Greater", 7, kLatest, make_binary<GreaterOp, kNumbers, kBoolean>, {2, 2}},
           {"", "GreaterOrEqual", 12, kLatest, make_binary<GreaterOrEqualOp, kNumbers, kBoolean>, {2, 2}},
           {"", "Less", 7, kLatest, make_binary<LessOp, kNumbers, kBoolean>, {2, 2}},
           {"", "LessOrEqual", 12, kLatest, make_binary<LessOrEqualOp, kNumbers, kBoolean>, {2, 2}},
           {"", "And", 7, kLatest, make_binary<AndOp, kBool, kBoolean>, {2, 2}},
           {"", "Or", 7, kLatest, make_binary<OrOp, kBool, kBoolean>, {2, 2}},
           {"", "Xor", 7, kLatest, make_binary<XorOp, kBool, kBoolean>, {2, 2}},
           {"", "BitwiseAnd", 18, kLatest, make_binary<BitAndOp, kIntegers>, {2, 2}},
           {"", "BitwiseOr", 18, kLatest, make_binary<BitOrOp, kIntegers>, {2, 2}},
           {"", "BitwiseXor", 18, kLatest, make_binary<BitXorOp, kIntegers>, {2, 2}},
           {"", "BitShift", 11, kLatest, make_shift, {2, 2}});

}  // namespace hotset::ops
