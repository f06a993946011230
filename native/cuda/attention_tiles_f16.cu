// SPDX-License-Identifier: Apache-2.0
// attention_tiles.cuh for one type.
#include "cuda/attention_tiles.cuh"

HOTSET_ATTENTION_TILES(f16, __half)
