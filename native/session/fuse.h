// SPDX-License-Identifier: Apache-2.0
// Rewrites of the graph that pay: fewer passes over memory, the same result within the rounding of the element type.
#pragma once
#include "model/graph.h"

namespace hotset {

// MatMulNBits followed by Add of a constant row becomes MatMulNBits with a bias. Returns the number of nodes removed.
int fuse(model::Graph& graph);

// Removes nodes whose outputs reach no graph output. Returns their number.
int remove_dead_nodes(model::Graph& graph);

}  // namespace hotset
