// SPDX-License-Identifier: Apache-2.0
// Passes over a row of logits for choosing a token. Every instruction set gives the same bits: sixteen chains, no fused
// multiply-add, one order of reduction.
#pragma once
#include <cstdint>

namespace hotset::cpu {

inline constexpr int64_t kSampleChunk = 1024;
inline constexpr int64_t kSampleSlack = 16;  // elements that the output arrays below have beyond n

struct SampleKernels {
  // The largest values of groups of x, sixteen a chunk: out[16 * c + j] for the x[kSampleChunk * c + j], ... + j + 16, ... of
  // chunk c. NaN is left out, -infinity stands where nothing is left.
  void (*group_maxima)(const float* x, int64_t n, float* out);
  // w[i] = exp((x[i] - largest) * scale), 0 for NaN and below exp(-87); relative error below 3e-7 (1 + |exponent|). Returns the sum.
  double (*exp_weights)(const float* x, int64_t n, float largest, float scale, float* w);
  // Positions with x[i] >= threshold in ascending order; returns their number.
  int64_t (*collect)(const float* x, int64_t n, float threshold, int32_t* ids);
  // Sum of the values > threshold.
  double (*sum_above)(const float* w, int64_t n, float threshold);
};

const SampleKernels& sample_kernels();
const char* sample_isa();  // name of the tier in use

const SampleKernels& sample_kernels_scalar();
const SampleKernels& sample_kernels_avx2();
const SampleKernels& sample_kernels_avx512();
const SampleKernels& sample_kernels_neon();

}  // namespace hotset::cpu
