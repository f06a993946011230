// SPDX-License-Identifier: Apache-2.0
// Which experts a token visits and with which weights. All arithmetic is float32.
#pragma once
#include <cstdint>

namespace hotset::experts {

struct Router {
  int64_t n_experts = 0;
  int64_t k = 1;              // experts a token visits; at most n_experts
  bool normalize = false;     // divide the k weights by their sum
  bool sparse_mixer = false;  // two masked softmaxes instead of one; k is 2, nothing is normalised
};

// Routes one token: ids[k] by falling logit, the lower id first on ties; a NaN logit ranks as -infinity, and ids are always
// distinct. weights[k] are the softmax over all logits at these ids, or `given` [n_experts] at these ids when it is not null.
// A NaN or +infinity among the logits, or nothing but -infinity, makes softmax weights NaN.
void route(const Router& router, const float* logits, const float* given, int32_t* ids, float* weights);

}  // namespace hotset::experts
