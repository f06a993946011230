// SPDX-License-Identifier: Apache-2.0
// Rewrites of the graph that pay: fewer passes over memory, the same result within the rounding of the element type.
#pragma once
#include "model/graph.h"

namespace hotset {

// Dissolves every If: the nodes of both branches join the graph, guarded by the condition, and a Select a result takes the
// branch that ran. So a table chosen by a length stays a view of a constant, and shapes are inferred as for any node.
void dissolve_ifs(model::Graph& graph);

// MatMulNBits followed by Add of a constant row becomes MatMulNBits with a bias. Returns the number of nodes removed.
int fuse(model::Graph& graph);

// Removes nodes whose outputs reach no graph output. Returns their number.
int remove_dead_nodes(model::Graph& graph);

}  // namespace hotset
