// SPDX-License-Identifier: Apache-2.0
// MatMulNBits of few rows with codes of 4 bits.
#include "cuda/matmul_nbits_gemv.cuh"

HOTSET_NBITS_GEMV(hotset::cuda::Half, f16, 4, 1)
HOTSET_NBITS_GEMV(hotset::cuda::Half, f16, 4, 2)
HOTSET_NBITS_GEMV(hotset::cuda::Bfloat, bf16, 4, 1)
HOTSET_NBITS_GEMV(hotset::cuda::Bfloat, bf16, 4, 2)
HOTSET_NBITS_GEMV(float, f32, 4, 1)
HOTSET_NBITS_GEMV(float, f32, 4, 2)
HOTSET_NBITS_GEMV(float, f32, 4, 3)
