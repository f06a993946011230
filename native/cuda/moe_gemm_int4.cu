// SPDX-License-Identifier: Apache-2.0
// Many rows by 4-bit integer codes.
#include "cuda/moe_gemm.cuh"

HOTSET_MOE_GEMM_ROWS(raw4, RawCodes<4>)
HOTSET_MOE_GEMM_ROWS(sm80_4, Sm80Codes<4>)
