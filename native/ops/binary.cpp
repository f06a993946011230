// SPDX-License-Identifier: Apache-2.0
// Shapes and the broadcasting walk of elementwise operators of two operands.
#include "ops/binary.h"

namespace hotset::ops {

std::string_view BinaryKernel::implementation() const {
  const cpu::ElementwiseKernels* const kernels = cpu::elementwise_kernels();
  const BinaryLoop loop = table_[static_cast<size_t>(DType::f32)];
  const bool has_vectors = kernels && std::any_of(kernels->arithmetic, kernels->arithmetic + cpu::kArithmetics,
                                                  [&](const auto& loops) { return loops[0] == loop; });
  return isa_of_float_loops(has_vectors ? cpu::elementwise_isa() : "scalar", type_);
}

Status BinaryKernel::infer(InferContext& c) const {
  const DType type = c.dtype(0);
  HOTSET_FAIL_IF(c.dtype(1) != type, invalid_model, "operands of types %s and %s, expected equal types", dtype_name(type), dtype_name(c.dtype(1)));
  HOTSET_FAIL_IF(static_cast<size_t>(type) >= table_.size() || !table_[static_cast<size_t>(type)], unsupported, "not defined for type %s",
                 dtype_name(type));
  Shape out = c.shape(0);
  HOTSET_TRY(broadcast_shape(c.shape(1), &out));
  const DType out_type = out_ == DType::undefined ? type : out_;
  c.set_output(0, out_type, out);
  if (out_type != type) return {};
  if (c.shape(0).size() == out.size()) c.may_overwrite(0, 0);
  else if (c.shape(1).size() == out.size()) c.may_overwrite(0, 1);
  return {};
}

BinaryTable with_vectors(BinaryTable table, cpu::Arithmetic op) {
  const cpu::ElementwiseKernels* kernels = cpu::elementwise_kernels();
  constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};
  for (int i = 0; kernels && i < 3; ++i) table[static_cast<size_t>(kTypes[i])] = kernels->arithmetic[static_cast<int>(op)][i];
  return table;
}

void run_binary(BinaryLoop loop, const Tensor& a, const Tensor& b, Tensor& out, ThreadPool* pool) {
  const int64_t n = out.size(), na = a.size(), nb = b.size();
  if (n == 0) return;
  const int64_t sa = element_bytes(a.dtype), sb = element_bytes(b.dtype), so = element_bytes(out.dtype);
  const char *pa = a.as<char>(), *pb = b.as<char>();
  char* po = out.as<char>();
  const bool a_one = na == 1, b_one = nb == 1;
  if ((na == n || a_one) && (nb == n || b_one)) {
    if (n < kParallel) return loop(pa, a_one && n > 1, pb, b_one && n > 1, po, n);
    over_range(pool, n, kParallel / 2, [&](int64_t begin, int64_t end) {
      loop(a_one ? pa : pa + begin * sa, a_one, b_one ? pb : pb + begin * sb, b_one, po + begin * so, end - begin);
    });
    return;
  }
  const Broadcast<2> layout(out.shape, {&a.shape, &b.shape});
  const int64_t run = layout.run(), *stride = layout.stride[layout.rank - 1];
  const bool a_fixed = stride[0] == 0, b_fixed = stride[1] == 0;
  const auto rows = [&](int64_t begin, int64_t end) {
    layout.walk(begin, end, [&](const int64_t* at, int64_t r) { loop(pa + at[0] * sa, a_fixed, pb + at[1] * sb, b_fixed, po + r * run * so, run); });
  };
  over_range(n < kParallel ? nullptr : pool, layout.n_runs(), std::max<int64_t>(1, kParallel / 2 / run), rows);
}

}  // namespace hotset::ops
