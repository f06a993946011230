// SPDX-License-Identifier: Apache-2.0
// Kernels hotset_attention_wgmma_<f16|bf16>_<64|128>: attention_wgmma.cuh; grid (N * row tiles, B), block 256. Empty but on sm_90a.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "cuda/attention_wgmma.cuh"
#define HOTSET_ATTENTION_WGMMA(T, DP) hotset::cuda::attn::attend_wgmma<T, DP>(p)
#else
#include "cuda/attention_device.cuh"
#define HOTSET_ATTENTION_WGMMA(T, DP)
#endif

extern "C" __global__ void __launch_bounds__(256, 1)
    hotset_attention_wgmma_f16_64(const __grid_constant__ hotset::cuda::AttentionParams p) {
  HOTSET_ATTENTION_WGMMA(__half, 64);
}
extern "C" __global__ void __launch_bounds__(256, 1)
    hotset_attention_wgmma_f16_128(const __grid_constant__ hotset::cuda::AttentionParams p) {
  HOTSET_ATTENTION_WGMMA(__half, 128);
}
extern "C" __global__ void __launch_bounds__(256, 1)
    hotset_attention_wgmma_bf16_64(const __grid_constant__ hotset::cuda::AttentionParams p) {
  HOTSET_ATTENTION_WGMMA(__nv_bfloat16, 64);
}
extern "C" __global__ void __launch_bounds__(256, 1)
    hotset_attention_wgmma_bf16_128(const __grid_constant__ hotset::cuda::AttentionParams p) {
  HOTSET_ATTENTION_WGMMA(__nv_bfloat16, 128);
}
