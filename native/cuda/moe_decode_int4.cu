// SPDX-License-Identifier: Apache-2.0
// Few rows by 4-bit integer codes.
#include "cuda/moe_decode.cuh"

HOTSET_MOE_CODES(raw4, RawCodes<4>, 2, 3)
HOTSET_MOE_CODES(sm80_4, Sm80Codes<4>, 2, 3)
