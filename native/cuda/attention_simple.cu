// SPDX-License-Identifier: Apache-2.0
// The plain attention kernel: grid (S, N, B), one block of 128 threads a query row of a head. Serves what the tensor-core
// kernels do not: head sizes that are no multiple of 8 or above 256, qk outputs.
#include "cuda/attention_row.cuh"

using namespace hotset::cuda;
using namespace hotset::cuda::attn;

template <class T>
__device__ void simple(const AttentionParams& p) {
  __shared__ float shared[kRowSharedFloats];
  wait_for_predecessor();
  release_successor();
  attend_row<T>(p, step_of(p, blockIdx.z), blockIdx.z, blockIdx.y, blockIdx.x, shared);
}

extern "C" __global__ void __launch_bounds__(128) hotset_attention_simple_f32(const __grid_constant__ AttentionParams p) {
  simple<float>(p);
}
extern "C" __global__ void __launch_bounds__(128) hotset_attention_simple_f16(const __grid_constant__ AttentionParams p) {
  simple<__half>(p);
}
extern "C" __global__ void __launch_bounds__(128) hotset_attention_simple_bf16(const __grid_constant__ AttentionParams p) {
  simple<bf16>(p);
}
