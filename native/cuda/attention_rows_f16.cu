// SPDX-License-Identifier: Apache-2.0
// attention_rows.cuh for one type of activations; quantised caches are computed with in the third type.
#include "cuda/attention_rows.cuh"

HOTSET_ATTENTION_ROWS(f16, __half, __half)
