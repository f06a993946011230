// SPDX-License-Identifier: Apache-2.0
// The gated unit between the matrices of an expert.
#pragma once
#include <stdint.h>

namespace hotset::cpu {

// out = G * sigmoid(alpha * G) * (L + beta) with G = min(gate, limit) and L = value clamped to [-limit, limit]; limit may be
// infinite. limit_after: the gate is not clamped but the activated gate: min(g * sigmoid(alpha * g), limit) * (L + beta).
// NaN stays NaN.
struct Swiglu {
  float alpha, beta, limit;
  bool limit_after;
};

// n results. `value` null: gate and value alternate in `gate`, 2 n floats. `out` overlaps neither input.
void swiglu(const Swiglu& unit, const float* gate, const float* value, int64_t n, float* out);

const char* swiglu_isa();  // name of the tier in use

}  // namespace hotset::cpu
