// SPDX-License-Identifier: Apache-2.0
// Dense products of many rows of float32.
#include "cuda/matmul_gemm.cuh"

HOTSET_GEMM(float, f32, nn_large, false, 128, 128, 64, 32)
HOTSET_GEMM(float, f32, nt_large, true, 128, 128, 64, 32)
HOTSET_GEMM(float, f32, nn_small, false, 64, 64, 32, 32)
HOTSET_GEMM(float, f32, nt_small, true, 64, 64, 32, 32)
