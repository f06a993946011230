// SPDX-License-Identifier: Apache-2.0
// Many rows by raw codes of 2, 3 and 8 bits.
#include "cuda/moe_gemm.cuh"

HOTSET_MOE_GEMM_ROWS(raw2, RawCodes<2>)
HOTSET_MOE_GEMM_ROWS(raw3, RawCodes<3>)
HOTSET_MOE_GEMM_ROWS(raw8, RawCodes<8>)
