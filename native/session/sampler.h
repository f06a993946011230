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

 private:
  struct Candidate {
    float logit;
    int32_t id;
  };
  const float* scaled_logits(DType dtype, const void* logits, int64_t n);
  int64_t draw(const float* x, int64_t n, float largest);
  void largest(const float* x, int64_t n, size_t k);
  double uniform();

  Config config_;
  uint64_t draws_ = 0;
  std::vector<int64_t> seen_;       // each once, when there is a penalty
  std::vector<bool> is_seen_;
  std::vector<float> row_;
  std::vector<Candidate> candidates_;
};

}  // namespace hotset
