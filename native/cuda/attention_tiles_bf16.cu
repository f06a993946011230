// SPDX-License-Identifier: Apache-2.0
// attention_tiles.cuh for one type.
#include "cuda/attention_tiles.cuh"

HOTSET_ATTENTION_TILES(bf16, __nv_bfloat16)
