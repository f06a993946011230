// SPDX-License-Identifier: Apache-2.0
// Elementwise operators of two operands: loops over an operation, and the kernel that broadcasts.
#pragma once
#include <array>
#include <memory>

#include "cpu_avx/elementwise.h"
#include "ops/broadcast.h"
#include "ops/elements.h"
#include "ops/op.h"

namespace hotset::ops {

// out[i] = op(a[i], b[i]); an operand with `one` set is a single element.
using BinaryLoop = void (*)(const void* a, bool a_one, const void* b, bool b_one, void* out, int64_t n);

// Op::apply(W, W) -> R with W = Wide<T>; R is W (stored as T) or bool.
template <class Op, class T>
void binary_loop(const void* a, bool a_one, const void* b, bool b_one, void* out, int64_t n) {
  using W = Wide<T>;
  using R = decltype(Op::apply(W{}, W{}));
  using Stored = std::conditional_t<std::is_same_v<R, bool>, bool, T>;
  if constexpr (kIs16<T>) {
    float x[kChunk], y[kChunk], z[kChunk];
    if (a_one) x[0] = load_at<T>(a, 0);
    if (b_one) y[0] = load_at<T>(b, 0);
    for (int64_t i = 0; i < n; i += kChunk) {
      const int m = static_cast<int>(std::min<int64_t>(kChunk, n - i));
      if (!a_one) cpu::to_f32(T::kType, static_cast<const char*>(a) + 2 * i, x, m);
      if (!b_one) cpu::to_f32(T::kType, static_cast<const char*>(b) + 2 * i, y, m);
      if constexpr (std::is_same_v<R, bool>) {
        binary_loop<Op, float>(x, a_one, y, b_one, static_cast<bool*>(out) + i, m);
      } else {
        binary_loop<Op, float>(x, a_one, y, b_one, z, m);
        cpu::from_f32(T::kType, z, static_cast<char*>(out) + 2 * i, m);
      }
    }
  } else if (!a_one && !b_one) {
    for (int64_t i = 0; i < n; ++i) store_at<Stored>(out, i, static_cast<Stored>(Op::apply(load_at<T>(a, i), load_at<T>(b, i))));
  } else if (b_one) {
    const W y = load_at<T>(b, 0);
    if (a_one) {
      const Stored r = static_cast<Stored>(Op::apply(load_at<T>(a, 0), y));
      for (int64_t i = 0; i < n; ++i) store_at<Stored>(out, i, r);
    } else {
      for (int64_t i = 0; i < n; ++i) store_at<Stored>(out, i, static_cast<Stored>(Op::apply(load_at<T>(a, i), y)));
    }
  } else {
    const W x = load_at<T>(a, 0);
    for (int64_t i = 0; i < n; ++i) store_at<Stored>(out, i, static_cast<Stored>(Op::apply(x, load_at<T>(b, i))));
  }
}

// The loops of an operation by element type; null where it is not defined.
using BinaryTable = std::array<BinaryLoop, kTypes>;
enum Types : int { kFloats = 1, kSigned = 2, kUnsigned = 4, kBool = 8, kIntegers = kSigned | kUnsigned, kNumbers = kFloats | kIntegers };

template <class Op, int types>
constexpr BinaryTable make_binary_table() {
  BinaryTable t{};
  const auto at = [&t](DType d) -> BinaryLoop& { return t[static_cast<size_t>(d)]; };
  if constexpr (types & kFloats) {
    at(DType::f32) = binary_loop<Op, float>;
    at(DType::f16) = binary_loop<Op, F16>;
    at(DType::bf16) = binary_loop<Op, Bf16>;
    at(DType::f64) = binary_loop<Op, double>;
  }
  if constexpr (types & kSigned) {
    at(DType::i8) = binary_loop<Op, int8_t>;
    at(DType::i16) = binary_loop<Op, int16_t>;
    at(DType::i32) = binary_loop<Op, int32_t>;
    at(DType::i64) = binary_loop<Op, int64_t>;
  }
  if constexpr (types & kUnsigned) {
    at(DType::u8) = binary_loop<Op, uint8_t>;
    at(DType::u16) = binary_loop<Op, uint16_t>;
    at(DType::u32) = binary_loop<Op, uint32_t>;
    at(DType::u64) = binary_loop<Op, uint64_t>;
  }
  if constexpr (types & kBool) at(DType::boolean) = binary_loop<Op, bool>;
  return t;
}
template <class Op, int types>
inline constexpr BinaryTable kBinaryTable = make_binary_table<Op, types>();

// The table with the vector loops of this CPU where it has them.
BinaryTable with_vectors(BinaryTable table, cpu::Arithmetic op);

// Applies a loop to two tensors that broadcast to `out`.
void run_binary(BinaryLoop loop, const Tensor& a, const Tensor& b, Tensor& out, ThreadPool* pool);

class BinaryKernel : public Kernel {
 public:
  // out: element type of the result; undefined: that of the operands.
  BinaryKernel(const OpContext& c, const BinaryTable& table, DType out = DType::undefined)
      : table_(table), out_(out), type_(c.declared_type(c.declared_type(0) == DType::undefined ? 1 : 0)) {}
  std::string_view implementation() const override;
  Status infer(InferContext& c) const override;
  Status run(const RunContext& c) const override {
    const Tensor& a = *c.inputs[0];
    run_binary(table_[static_cast<size_t>(a.dtype)], a, *c.inputs[1], *c.outputs[0], c.pool);
    return {};
  }

 protected:
  const BinaryTable& table_;
  const DType out_, type_;
};

template <class Op, int types, DType out = DType::undefined>
Result<std::unique_ptr<Kernel>> make_binary(const OpContext& c) {
  if (c.n_inputs() != 2) return c.fail(Code::invalid_model, "%d inputs, expected 2", c.n_inputs());
  return make_kernel<BinaryKernel>(c, kBinaryTable<Op, types>, out);
}

}  // namespace hotset::ops
