// SPDX-License-Identifier: Apache-2.0
// Choice of the normalisation kernel.
#include "cpu_avx/norm.h"

#include "cpu_avx/cpu_features.h"
#include "cpu_avx/norm_isa.h"

namespace hotset::cpu {
namespace {

using NormFunction = void (*)(const NormRows& rows, int64_t r0, int64_t r1, float* temp);
constexpr Tiered<NormFunction> kTiers[] = {HOTSET_USUAL_TIERS(norm_rows)};

}  // namespace

void norm_rows(const NormRows& rows, int64_t r0, int64_t r1, float* temp) {
  static const NormFunction best = best_of(kTiers).kernel;
  best(rows, r0, r1, temp);
}

const char* norm_isa() { return cpu_level_name(best_of(kTiers).level); }

}  // namespace hotset::cpu
