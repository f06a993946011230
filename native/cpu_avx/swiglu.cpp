// SPDX-License-Identifier: Apache-2.0
// Choice of the gated unit.
#include "cpu_avx/swiglu.h"

#include "cpu_avx/cpu_features.h"
#include "cpu_avx/swiglu_isa.h"

namespace hotset::cpu {
namespace {

using SwigluFunction = void (*)(const Swiglu& unit, const float* gate, const float* value, int64_t n, float* out);
constexpr Tiered<SwigluFunction> kTiers[] = {HOTSET_USUAL_TIERS(swiglu)};

}  // namespace

void swiglu(const Swiglu& unit, const float* gate, const float* value, int64_t n, float* out) {
  static const SwigluFunction best = best_of(kTiers).kernel;
  best(unit, gate, value, n, out);
}

const char* swiglu_isa() { return cpu_level_name(best_of(kTiers).level); }

}  // namespace hotset::cpu
