// SPDX-License-Identifier: Apache-2.0
// One mixture-of-experts layer on the CPU, after routing: y_t = sum over j of weight[t][j] * FC2(act(FC1(x_t))) of expert ids[t][j].
//
// Everything inside an expert is float32. The row that an expert adds is rounded to the layer's type, then rows are summed in
// float32 in the order of routes and the sum is rounded once. So it does not matter for the result where a row was computed.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/thread_pool.h"
#include "experts/activation.h"
#include "experts/weight_matrix.h"

namespace hotset::experts {

struct ExpertLayer {
  DType dtype = DType::f32;  // of x and y
  int64_t hidden = 0, inter = 0, n_experts = 0, k = 1;
  Activation activation;
  Pairing pairing = Pairing::none;
  WeightMatrix fc1, fc2, fc3;  // fc3: Pairing::separate only. fc2 without its bias: that is added to the rounded row
  DType fc2_bias = DType::undefined;
  size_t working_bytes = size_t{256} << 20;  // what a call uses besides its arguments, as far as one row fits
  int64_t together = INT64_MAX;              // experts that LayerCall::fetch has room for at once, each with both parts
};

// Where the matrices of one expert lie now: in a mapped file, a cache, a slot.
struct ExpertBytes {
  MatrixBytes fc1, fc2, fc3;
};

// Brings experts into memory while a layer runs, and is told in which order they will be used. A part of an expert: 0 is FC1 with
// FC3, 1 is FC2.
class ExpertFetch {
 public:
  virtual ~ExpertFetch() = default;
  virtual bool is_at_hand(int32_t expert) const = 0;
  // The n experts of a piece of the call, in the order of use; reading begins. `end` gives them up.
  virtual void begin(const int32_t* experts, int64_t n) = 0;
  virtual void end() = 0;
  // The experts [from, result) of the order are brought in together; those before `from` have been used for the last time as far
  // as this part goes. The result is n when there is room for all, as ExpertLayer::together says.
  virtual int64_t next(int part, int64_t from) = 0;
  // Returns when the bytes of the part that LayerCall::experts points at can be read. False: they never will be, and neither
  // are the results of the call of any use. Any thread, for experts of the range that `next` gave.
  virtual bool wait(int part, int64_t i) = 0;
};

struct LayerCall {
  const void* x = nullptr;  // [n_tokens][hidden], 64-byte aligned as y
  void* y = nullptr;
  int64_t n_tokens = 0;
  const int32_t* ids = nullptr;  // [n_tokens][k], distinct within a token; -1 is a route that was dropped and adds nothing
  const float* weights = nullptr;
  const ExpertBytes* experts = nullptr;  // [n_experts]
  void* workspace = nullptr;             // 64-byte aligned
  ThreadPool* pool = nullptr;
  ExpertFetch* fetch = nullptr;  // null: all experts can be read
};

// Long calls are split into pieces of tokens, so the workspace has a bound.
size_t expert_layer_workspace(const ExpertLayer& layer, int64_t n_tokens, int n_threads);
// Of that, the scratch of threads: weights in another form, tiles of products.
size_t expert_layer_packing(const ExpertLayer& layer, int64_t n_tokens, int n_threads);
void run_expert_layer(const ExpertLayer& layer, const LayerCall& call);

}  // namespace hotset::experts
