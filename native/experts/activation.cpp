// SPDX-License-Identifier: Apache-2.0
// Activations of rows. silu with a value is swiglu with other constants and shares its kernel.
#include "experts/activation.h"

#include <cmath>

#include "cpu_avx/swiglu.h"

namespace hotset::experts {
namespace {

float relu(float x) { return x < 0 ? 0.0f : x; }
float sigmoid(float x) {  // without overflow at either end
  const float z = std::exp(-std::fabs(x));
  return (x >= 0 ? 1.0f : z) / (1.0f + z);
}
float gelu_erf(float x) { return 0.5f * x * (1.0f + std::erf(x * 0.70710678118654752f)); }
float gelu_tanh(float x) { return 0.5f * x * (1.0f + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x))); }

template <class F>
void apply(F f, const float* gate, const float* value, bool interleaved, int64_t n, float* out) {
  if (interleaved) {
    for (int64_t i = 0; i < n; ++i) out[i] = f(gate[2 * i]) * gate[2 * i + 1];
  } else if (value) {
    for (int64_t i = 0; i < n; ++i) out[i] = f(gate[i]) * value[i];
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = f(gate[i]);
  }
}

}  // namespace

void activate(const Activation& a, const float* gate, const float* value, bool interleaved, int64_t n, float* out) {
  const auto with = [&](auto f) { apply(f, gate, value, interleaved, n, out); };
  switch (a.kind) {
    case ActivationKind::relu:
      return with(relu);
    case ActivationKind::relu2:
      return with([](float x) { return relu(x) * relu(x); });
    case ActivationKind::gelu:
      return with(gelu_erf);
    case ActivationKind::geglu:
      return with(gelu_tanh);
    case ActivationKind::identity:
      return with([](float x) { return x; });
    case ActivationKind::silu:
      if (!value) return with([](float x) { return x * sigmoid(x); });
      return cpu::swiglu({1, 0, std::numeric_limits<float>::infinity(), false}, gate, value, n, out);
    case ActivationKind::swiglu:
      return cpu::swiglu({a.alpha, a.beta, a.limit, a.limit_after}, gate, value, n, out);
  }
}

}  // namespace hotset::experts
