// SPDX-License-Identifier: Apache-2.0
// Device half of the self-test: a pattern that the host can compute too.
//
// out  (n)   one thread owns one element
#include <cstdint>

extern "C" __global__ void hotset_fill_u32(std::uint32_t* __restrict__ out, std::uint32_t n, std::uint32_t seed) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = (i + seed) * 2654435761u;
}
