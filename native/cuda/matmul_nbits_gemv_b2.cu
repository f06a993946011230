// SPDX-License-Identifier: Apache-2.0
// MatMulNBits of few rows with codes of 2 bits.
#include "cuda/matmul_nbits_gemv.cuh"

HOTSET_NBITS_GEMV(hotset::cuda::Half, f16, 2, 1)
HOTSET_NBITS_GEMV(hotset::cuda::Half, f16, 2, 2)
HOTSET_NBITS_GEMV(hotset::cuda::Bfloat, bf16, 2, 1)
HOTSET_NBITS_GEMV(hotset::cuda::Bfloat, bf16, 2, 2)
HOTSET_NBITS_GEMV(float, f32, 2, 1)
HOTSET_NBITS_GEMV(float, f32, 2, 2)
HOTSET_NBITS_GEMV(float, f32, 2, 3)
