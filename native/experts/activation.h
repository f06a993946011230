// SPDX-License-Identifier: Apache-2.0
// Activations of an expert, between its first and its last matrix.
#pragma once
#include <cstdint>
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
  float alpha = 1, beta = 0;  // swiglu only, as the two below
  float limit = std::numeric_limits<float>::infinity();
  bool limit_after = false;  // clamp the activated gate, not the gate
};

// n results. `value` null: there is none, or with `interleaved` it alternates with the gates in `gate`. NaN stays NaN.
void activate(const Activation& activation, const float* gate, const float* value, bool interleaved, int64_t n, float* out);

}  // namespace hotset::experts
