// SPDX-License-Identifier: Apache-2.0
// Dense products of many rows of float16 and bfloat16.
#include "cuda/matmul_gemm.cuh"

HOTSET_GEMM(hotset::cuda::Half, f16, nn_large, false, 128, 128, 64, 64)
HOTSET_GEMM(hotset::cuda::Half, f16, nt_large, true, 128, 128, 64, 64)
HOTSET_GEMM(hotset::cuda::Half, f16, nn_small, false, 64, 64, 32, 32)
HOTSET_GEMM(hotset::cuda::Half, f16, nt_small, true, 64, 64, 32, 32)
HOTSET_GEMM(hotset::cuda::Bfloat, bf16, nn_large, false, 128, 128, 64, 64)
HOTSET_GEMM(hotset::cuda::Bfloat, bf16, nt_large, true, 128, 128, 64, 64)
HOTSET_GEMM(hotset::cuda::Bfloat, bf16, nn_small, false, 64, 64, 32, 32)
HOTSET_GEMM(hotset::cuda::Bfloat, bf16, nt_small, true, 64, 64, 32, 32)
