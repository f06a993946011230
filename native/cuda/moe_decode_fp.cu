// SPDX-License-Identifier: Apache-2.0
// Few rows by E2M1, E4M3 and 16-bit floats.
#include "cuda/moe_decode.cuh"

HOTSET_MOE_DECODE_ROWS(mxfp4, Fp4Codes<false>)
HOTSET_MOE_DECODE_ROWS(nvfp4, Fp4Codes<true>)
HOTSET_MOE_DECODE_ROWS(fp8, Fp8Codes)
HOTSET_MOE_DECODE(dense, Dense16, f16, RowsF16)
HOTSET_MOE_DECODE(dense, Dense16, bf16, RowsBf16)
