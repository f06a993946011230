// SPDX-License-Identifier: Apache-2.0
// Few rows by SM80 tiles of 2- and 8-bit codes.
#include "cuda/moe_decode.cuh"

HOTSET_MOE_DECODE_ROWS(sm80_2, Sm80Codes<2>)
HOTSET_MOE_DECODE_ROWS(sm80_8, Sm80Codes<8>)
