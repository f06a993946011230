// SPDX-License-Identifier: Apache-2.0
// Products of a mixture-of-experts layer in any form and size: what the fast kernels are checked against, and what computes sizes that
// they do not take. A warp owns one feature of one group, lanes go along k, 4 rows share each weight.
#include "cuda/moe_common.cuh"

namespace {

using namespace hotset::cuda;
using namespace hotset::cuda::moe;

constexpr int kRows = 4;

__device__ float warp_sum(float x) {
  for (int step = 16; step; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// Sums over k of weight row n times rows [m0, m0 + kRows) of a group, the same in all lanes.
template <class RowAt>
__device__ void multiply(const MoeProductParams& p, const MoeForm& f, const MoePlace& place, uint32_t n, uint32_t m0, uint32_t rows,
                         RowAt row_at, float (&sums)[kRows]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) sums[i] = 0;
  for (uint32_t k = threadIdx.x % 32; k < f.k; k += 32) {
    const float w = weight_at(f, place, n, k);
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      if (m0 + i < rows) sums[i] = fmaf(w, load_row_element(p.in, p.type, p.x, row_at(m0 + i), f.k, k), sums[i]);
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) sums[i] = round_to(p.type, warp_sum(sums[i]) * place.global_scale);
}

}  // namespace

// Grid: features over warps, groups.
extern "C" __global__ void hotset_moe_first_simple(const __grid_constant__ MoeProductParams p) {
  wait_for_predecessor();
  release_successor();
  const uint32_t feature = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (feature >= p.inter || blockIdx.y >= p.counts[0]) return;
  const MoeGroup group = p.groups[blockIdx.y];
  const MoeExpert& e = p.experts[group.expert];
  const auto row_at = [&](uint32_t m) { return static_cast<uint64_t>(p.order[group.first + m] / p.k); };
  bool third;
  const uint32_t gate_row = first_row(p.pairing, p.inter, feature, 0, &third),
                 value_row = first_row(p.pairing, p.inter, feature, 1, &third);
  for (uint32_t m0 = 0; m0 < group.rows; m0 += kRows) {
    float gate[kRows], value[kRows] = {};
    multiply(p, p.form, e.fc[0], gate_row, m0, group.rows, row_at, gate);
    if (p.pairing != MoePairing::none) multiply(p, third ? p.third : p.form, e.fc[third ? 2 : 0], value_row, m0, group.rows, row_at, value);
    if (threadIdx.x % 32) continue;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (m0 + i >= group.rows) break;
      const float a = gate[i] + bias_at(p.form.bias_type, e.fc[0], gate_row);
      const float b =
          value[i] +
          (p.pairing == MoePairing::none ? 0.0f : bias_at(third ? p.third.bias_type : p.form.bias_type, e.fc[third ? 2 : 0], value_row));
      store_row_element(p.out, p.type, p.y, group.first + m0 + i, p.inter, feature, activate(p.activation, p.pairing, a, b));
    }
  }
}

// Writes rows of routes, for hotset_moe_sum.
extern "C" __global__ void hotset_moe_second_simple(const __grid_constant__ MoeProductParams p) {
  wait_for_predecessor();
  release_successor();
  const uint32_t n = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (n >= p.form.n || blockIdx.y >= p.counts[0]) return;
  const MoeGroup group = p.groups[blockIdx.y];
  const auto row_at = [&](uint32_t m) { return static_cast<uint64_t>(group.first + m); };
  for (uint32_t m0 = 0; m0 < group.rows; m0 += kRows) {
    float sums[kRows];
    multiply(p, p.form, p.experts[group.expert].fc[1], n, m0, group.rows, row_at, sums);
    if (threadIdx.x % 32) continue;
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      if (m0 + i < group.rows) store_as(p.type, p.y, static_cast<uint64_t>(p.order[group.first + m0 + i]) * p.form.n + n, sums[i]);
  }
}
