// SPDX-License-Identifier: Apache-2.0
// Choice of the conversions of weight rows.
#include "cpu_avx/weight_rows.h"

#include "cpu_avx/cpu_features.h"
#include "cpu_avx/weight_rows_isa.h"

namespace hotset::cpu {
namespace {

struct Levels {
  WeightRows list[4];
  int count = 0;

  Levels() {
    using Fill = void (*)(WeightRows*);
    const auto add = [&](Fill fill) {
      list[count] = count > 0 ? list[count - 1] : WeightRows{};
      fill(&list[count++]);
    };
    add(weight_rows_scalar);
#if defined(__x86_64__)
    const CpuFeatures& cpu = cpu_features();
    if (cpu.avx2) add(weight_rows_avx2);
    if (cpu.avx512) add(weight_rows_avx512);
    if (cpu.avx512vbmi) add(weight_rows_avx512vbmi);
#endif
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
