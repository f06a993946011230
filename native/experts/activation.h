// SPDX-License-Identifier: Apache-2.0
// Activations of an expert, between its first and its last matrix.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>

namespace hotset::experts {

enum class ActivationKind { relu, relu2, gelu, silu, identity, swiglu, geglu };

// Where the value that a gate multiplies comes from.
enum class Pairing {
  none,         // no value: FC1 has one row a feature
  interleaved,  // FC1 rows g0 l0 g1 l1 ...
  halves,       // FC1 rows: all gates, then all values
  separate,     // FC1 gates, FC3 values
};

struct Activation {
  ActivationKind kind = ActivationKind::relu;
  float alpha = 1, beta = 0;                             // swiglu only, as the two below
  float limit = std::numeric_limits<float>::infinity();
  bool limit_after = false;                              // clamp the activated gate, not the gate
};

inline float sigmoid(float x) {  // without overflow at either end
  const float z = std::exp(-std::fabs(x));
  return (x >= 0 ? 1.0f : z) / (1.0f + z);
}

inline float gelu_tanh(float x) { return 0.5f * x * (1.0f + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x))); }

// The gate alone; for swiglu and geglu see gated().
inline float activate(ActivationKind kind, float x) {
  switch (kind) {
    case ActivationKind::relu: return x < 0 ? 0.0f : x;  // NaN stays
    case ActivationKind::relu2: return x < 0 ? 0.0f : x * x;
    case ActivationKind::gelu: return 0.5f * x * (1.0f + std::erf(x * 0.70710678118654752f));
    case ActivationKind::silu: return x * sigmoid(x);
    case ActivationKind::geglu: return gelu_tanh(x);
    case ActivationKind::identity:
    case ActivationKind::swiglu: break;
  }
  return x;
}

// std::min and std::max return their first argument when one is NaN, so a NaN gate or value stays NaN.
inline float swiglu(const Activation& a, float gate, float value) {
  value = std::max(std::min(value, a.limit), -a.limit) + a.beta;
  if (a.limit_after) return std::min(gate * sigmoid(a.alpha * gate), a.limit) * value;
  gate = std::min(gate, a.limit);
  return gate * sigmoid(a.alpha * gate) * value;
}

inline float gated(const Activation& a, float gate, float value) {
  return a.kind == ActivationKind::swiglu ? swiglu(a, gate, value) : activate(a.kind, gate) * value;
}

}  // namespace hotset::experts
