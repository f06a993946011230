// SPDX-License-Identifier: Apache-2.0
// Elementwise operators of one operand.
#pragma once
#include <array>
#include <memory>

#include "cpu_avx/elementwise.h"
#include "ops/elements.h"

namespace hotset::ops {

// out[i] = op(in[i], p); p: up to two attributes.
using UnaryLoop = void (*)(const void* in, void* out, int64_t n, const float* p);
using UnaryTable = std::array<UnaryLoop, kTypes>;

// Op::apply(W, const float*) -> W or bool, W = Wide<T>.
template <class Op, class T>
void unary_loop(const void* in, void* out, int64_t n, const float* p) {
  using R = decltype(Op::apply(Wide<T>{}, p));
  if constexpr (kIs16<T>) {
    float x[kChunk];
    for (int64_t i = 0; i < n; i += kChunk) {
      const int m = static_cast<int>(std::min<int64_t>(kChunk, n - i));
      cpu::to_f32(T::kType, static_cast<const char*>(in) + 2 * i, x, m);
      if constexpr (std::is_same_v<R, bool>) {
        unary_loop<Op, float>(x, static_cast<bool*>(out) + i, m, p);
      } else {
        unary_loop<Op, float>(x, x, m, p);
        cpu::from_f32(T::kType, x, static_cast<char*>(out) + 2 * i, m);
      }
    }
  } else {
    using Stored = std::conditional_t<std::is_same_v<R, bool>, bool, T>;
    for (int64_t i = 0; i < n; ++i) store_at<Stored>(out, i, static_cast<Stored>(Op::apply(load_at<T>(in, i), p)));
  }
}

template <class Op>
constexpr UnaryTable make_float_table() {
  UnaryTable t{};
  t[static_cast<size_t>(DType::f32)] = unary_loop<Op, float>;
  t[static_cast<size_t>(DType::f16)] = unary_loop<Op, F16>;
  t[static_cast<size_t>(DType::bf16)] = unary_loop<Op, Bf16>;
  t[static_cast<size_t>(DType::f64)] = unary_loop<Op, double>;
  return t;
}
template <class Op>
inline constexpr UnaryTable kFloatTable = make_float_table<Op>();

// The table with the vector loops of this CPU where it has them.
inline UnaryTable with_vectors(UnaryTable table, cpu::Function f) {
  const cpu::ElementwiseKernels* kernels = cpu::elementwise_kernels();
  constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};
  for (int i = 0; kernels && i < 3; ++i) table[static_cast<size_t>(kTypes[i])] = kernels->function[static_cast<int>(f)][i];
  return table;
}

inline bool has_vectors(const UnaryTable& table) {
  const cpu::ElementwiseKernels* kernels = cpu::elementwise_kernels();
  const UnaryLoop loop = table[static_cast<size_t>(DType::f32)];
  return kernels && std::any_of(kernels->function, kernels->function + cpu::kFunctions, [&](const auto& loops) { return loops[0] == loop; });
}

// The plain loops of Op, or the vector loops of the same function.
template <class Op, cpu::Function f>
const UnaryTable& vector_table() {
  static const UnaryTable table = with_vectors(kFloatTable<Op>, f);
  return table;
}

class UnaryKernel final : public Kernel {
 public:
  UnaryKernel(const OpContext& c, const UnaryTable& table, DType out, float p0, float p1)
      : table_(table), out_(out), type_(c.declared_type(0)), p_{p0, p1} {}
  std::string_view implementation() const override {
    return isa_of_float_loops(has_vectors(table_) ? cpu::elementwise_isa() : "scalar", type_);
  }
  Status infer(InferContext& c) const override {
    const DType type = c.dtype(0);
    HOTSET_FAIL_IF(!table_[static_cast<size_t>(type)], unsupported, "not defined for type %s", dtype_name(type));
    c.set_output(0, out_ == DType::undefined ? type : out_, c.shape(0));
    if (out_ == DType::undefined || out_ == type) c.may_overwrite(0, 0);
    return {};
  }
  Status run(const RunContext& c) const override {
    const Tensor& in = *c.inputs[0];
    Tensor& out = *c.outputs[0];
    const UnaryLoop loop = table_[static_cast<size_t>(in.dtype)];
    const int64_t n = in.size(), from = element_bytes(in.dtype), to = element_bytes(out.dtype);
    if (n < kCostly) {
      if (n > 0) loop(in.data, out.data, n, p_);
      return {};
    }
    over_range(c.pool, n, kCostly / 2, [&](int64_t begin, int64_t end) {
      loop(in.as<char>() + begin * from, out.as<char>() + begin * to, end - begin, p_);
    });
    return {};
  }

 private:
  static constexpr int64_t kCostly = 1 << 14;  // elements from which transcendental functions are shared among threads
  const UnaryTable& table_;
  const DType out_, type_;
  const float p_[2];
};

template <const UnaryTable& table, DType out = DType::undefined>
Result<std::unique_ptr<Kernel>> make_unary(const OpContext& c) {
  return make_kernel<UnaryKernel>(c, table, out, 0.0f, 0.0f);
}

template <class Op, cpu::Function f>
Result<std::unique_ptr<Kernel>> make_vector_unary(const OpContext& c) {
  return make_kernel<UnaryKernel>(c, vector_table<Op, f>(), DType::undefined, 0.0f, 0.0f);
}

}  // namespace hotset::ops
