// SPDX-License-Identifier: Apache-2.0
// Few rows by E2M1, E4M3 and 16-bit floats.
#include "cuda/moe_decode.cuh"

HOTSET_MOE_FLOATS(mxfp4, Fp4Codes<false>, any, 2)
HOTSET_MOE_FLOATS(nvfp4, Fp4Codes<true>, none, 2)
HOTSET_MOE_FLOATS(fp8, Fp8Codes, any, 1)
HOTSET_MOE_KERNELS(fp8, Fp8Codes, f16, RowsF16, 1, q, none, 5, 1, 2)
HOTSET_MOE_KERNELS(fp8, Fp8Codes, bf16, RowsBf16, 1, q, none, 5, 1, 2)
HOTSET_MOE_ROWS(dense, Dense16, f16, RowsF16, none, 1)
HOTSET_MOE_ROWS(dense, Dense16, bf16, RowsBf16, none, 1)
