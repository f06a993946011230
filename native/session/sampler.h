// SPDX-License-Identifier: Apache-2.0
// The next token from a row of logits. The order of steps is that of hotset_sampler in the public header.
#pragma once
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "base/tensor.h"

namespace hotset {

class Sampler {
 public:
  struct Config {
    bool do_sample = false;
    int top_k = 0;
    float top_p = 1.0f;
    float temperature = 1.0f;
    float repetition_penalty = 1.0f;
    uint64_t seed = 0;
  };
  static Status check(const Config& config);
  explicit Sampler(const Config& config) : config_(config) {}

  // Tokens that the repetition penalty applies to from now on.
  Status accept(const int64_t* tokens, size_t n_tokens);
  // logits: n values of f32, f16 or bf16.
  Status next(DType dtype, const void* logits, int64_t n, int64_t* out);

  // The same from the best logits of a row of n alone: how many of them, or 0 when it takes the whole row, and they themselves, best
  // first, the lower id first among equals, id -1 behind the last that is no NaN.
  int64_t candidates(int64_t n) const;
  Status next_of(const int32_t* ids, const float* logits, int64_t n_candidates, int64_t* out);

 private:
  const float* penalised(DType dtype, const void* logits, int64_t n);
  int64_t draw(const float* x, int64_t n, float best);
  int64_t draw_one(const float* x, int64_t n, float best);
  bool is_greedy(float best) const;
  void keep_largest(const float* x, int64_t n, int64_t k);
  int64_t choose(const float* w, int64_t n, double total);
  double uniform();

  Config config_;
  uint64_t draws_ = 0;
  std::vector<int64_t> seen_;  // each once, when there is a penalty
  std::vector<bool> is_seen_;
  // Scratch, kept from token to token.
  std::vector<float> row_, maxima_, order_, kept_, weights_;
  std::vector<double> sums_;  // of blocks of weights_
  std::vector<int32_t> ids_;
};

}  // namespace hotset
