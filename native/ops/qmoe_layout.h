// SPDX-License-Identifier: Apache-2.0
// How the matrices of a QMoE node are stored, decided from attributes and shapes alone.
#pragma once
#include "base/status.h"
#include "base/tensor.h"
#include "experts/weight_matrix.h"

namespace hotset::ops {

// One matrix as declared. Null shapes: the input is absent.
struct DeclaredMatrix {
  const char* name = nullptr;  // "fc1"
  const Shape* weights = nullptr;
  const Shape* scales = nullptr;
  const Shape* zero_points = nullptr;
  DType scale_dtype = DType::undefined;
  int bits = 4;
  int64_t n = 0, k = 0;  // what the node needs
};

// Integers. weights_prepacked: -1 decides by shape, 0 raw, 1 prepacked. block_size <= 0: one scale a row.
// Shapes that cannot be what the node needs are refused. `has_fc3`: decides nodes whose matrices are all square.
// *is_guess is set when nothing but the habit of exporters tells.
Status decide_layout(const DeclaredMatrix* matrices, int count, int64_t n_experts, int64_t weights_prepacked, bool has_fc3,
                     bool* prepacked, bool* is_guess);

// Scales and zero points of one integer matrix; its storage as raw, which the verdict of decide_layout may change.
Status describe_matrix(const DeclaredMatrix& matrix, int64_t n_experts, int64_t block_size, experts::MatrixForm* form);

// E2M1 codes with one scale for each `block` of them. by_k: neighbours along K share a byte, else neighbours along N.
Status describe_fp4(const DeclaredMatrix& matrix, int64_t n_experts, int64_t block, bool by_k, experts::MatrixForm* form);

// E4M3 weights; block_size <= 0: one scale an expert, no tensor of scales.
Status describe_fp8(const DeclaredMatrix& matrix, int64_t n_experts, int64_t block_size, experts::MatrixForm* form);

}  // namespace hotset::ops
