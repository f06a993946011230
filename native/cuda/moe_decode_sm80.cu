// SPDX-License-Identifier: Apache-2.0
// Few rows by SM80 tiles of 2- and 8-bit codes.
#include "cuda/moe_decode.cuh"

HOTSET_MOE_CODES(sm80_2, Sm80Codes<2>, 2, 3)
HOTSET_MOE_CODES(sm80_8, Sm80Codes<8>, 1, 2)
