// SPDX-License-Identifier: Apache-2.0
// Many rows by SM80 tiles of 2- and 8-bit codes.
#include "cuda/moe_gemm.cuh"

HOTSET_MOE_GEMM_ROWS(sm80_2, Sm80Codes<2>)
HOTSET_MOE_GEMM_ROWS(sm80_8, Sm80Codes<8>)
