// SPDX-License-Identifier: Apache-2.0
// The gated unit without vector instructions: the reference of the other tiers.
#include <cmath>

#include "cpu_avx/swiglu_isa.h"

namespace hotset::cpu {
namespace {

float sigmoid(float x) {  // without overflow at either end
  const float z = std::exp(-std::fabs(x));
  return (x >= 0 ? 1.0f : z) / (1.0f + z);
}

float at_most(float x, float limit) { return x > limit ? limit : x; }  // NaN stays

}  // namespace

void swiglu_scalar(const Swiglu& unit, const float* gate, const float* value, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    float g = value ? gate[i] : gate[2 * i], l = value ? value[i] : gate[2 * i + 1];
    l = at_most(l, unit.limit);
    l = (l < -unit.limit ? -unit.limit : l) + unit.beta;
    if (unit.limit_after) {
      out[i] = at_most(g * sigmoid(unit.alpha * g), unit.limit) * l;
    } else {
      g = at_most(g, unit.limit);
      out[i] = g * sigmoid(unit.alpha * g) * l;
    }
  }
}

}  // namespace hotset::cpu
