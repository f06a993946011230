// SPDX-License-Identifier: Apache-2.0
// Parameters of the elementwise kernels, for nvcc and the host compiler.
#pragma once
#include <cstdint>

namespace hotset::cuda {

enum class Binary : std::int32_t { add, sub, mul, div };

// out[i] = op(a[..], b[..]) over a dense `out` of `rank` merged dimensions; operands have strides in elements, 0 where they repeat.
struct BinaryParams {
  static constexpr int kMaxDims = 8;
  std::uint64_t a, b, out;  // device addresses
  std::int64_t n;           // elements of out
  Binary op;
  std::int32_t rank;
  std::int64_t dim[kMaxDims], stride_a[kMaxDims], stride_b[kMaxDims];
};
static_assert(sizeof(BinaryParams) == 40 + 3 * 64);

}  // namespace hotset::cuda
