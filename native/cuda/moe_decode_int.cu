// SPDX-License-Identifier: Apache-2.0
// Few rows by raw codes of 2, 3 and 8 bits.
#include "cuda/moe_decode.cuh"

HOTSET_MOE_CODES(raw2, RawCodes<2>, 3, 4)
HOTSET_MOE_CODES(raw3, RawCodes<3>, 2, 3)
HOTSET_MOE_CODES(raw8, RawCodes<8>, 1, 2)
