// SPDX-License-Identifier: Apache-2.0
// Passes over a row of logits for choosing a token. Every instruction set gives the same bits: sixteen chains, no fused
// multiply-add, one order of reduction.
#pragma once
#include <cstdint>

namespace hotset::cpu {

inline constexpr int64_t kSampleSlack = 16;  // elements that the output arrays below have beyond n

struct SampleKernels {
  // out[j] = largest of x[j * block, (j + 1) * block), NaN left out, -infinity when nothing is left. block is a multiple of 16.
  void (*block_maxima)(const float* x, int64_t n, int64_t block, float* out);
  // w[i] = exp((x[i] - largest) * scale), 0 for NaN and below exp(-87); relative error below 3e-7. Returns the sum.
  double (*exp_weights)(const float* x, int64_t n, float largest, float scale, float* w);
  // Positions with x[i] >= threshold in ascending order; returns their number.
  int64_t (*collect)(const float* x, int64_t n, float threshold, int32_t* ids);
  // Parts w into values >= pivot and the others, in their order; returns the sum of the first part.
  double (*split)(const float* w, int64_t n, float pivot, float* high, int64_t* n_high, float* low);
  // Sum of the values > threshold.
  double (*sum_above)(const float* w, int64_t n, float threshold);
};

const SampleKernels& sample_kernels();

const SampleKernels& sample_kernels_scalar();
const SampleKernels& sample_kernels_avx2();
const SampleKernels& sample_kernels_avx512();

}  // namespace hotset::cpu
