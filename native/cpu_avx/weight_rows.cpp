// SPDX-License-Identifier: Apache-2.0
// Choice of the conversions of weight rows.
#include "cpu_avx/weight_rows.h"

#include <iterator>

#include "cpu_avx/cpu_features.h"
#include "cpu_avx/weight_rows_isa.h"

namespace hotset::cpu {
namespace {

using Fill = void (*)(WeightRows*);
constexpr Tiered<Fill> kTiers[] = {
    HOTSET_USUAL_TIERS(weight_rows),
#if defined(__x86_64__)
    {CpuLevel::kAvx512Vnni, weight_rows_avx512vbmi},
#endif
};

struct Levels {
  WeightRows list[std::size(kTiers)];
  int count = 0;

  Levels() {
    for (const Tiered<Fill>& tier : kTiers) {
      if (!cpu_may_run(tier.level) || (tier.level == CpuLevel::kAvx512Vnni && !cpu_features().avx512vbmi)) continue;
      if (count > 0) list[count] = list[count - 1];
      tier.kernel(&list[count++]);
    }
  }
};

const Levels& levels() {
  static const Levels all;
  return all;
}

}  // namespace

const WeightRows& weight_rows() { return levels().list[levels().count - 1]; }
const WeightRows* weight_rows_at(int i) { return i < levels().count ? &levels().list[i] : nullptr; }

}  // namespace hotset::cpu
