// SPDX-License-Identifier: Apache-2.0
// Choice of the float products.
#include "cpu_avx/float_gemm.h"

#include "cpu_avx/cpu_features.h"
#include "cpu_avx/float_gemm_isa.h"

namespace hotset::cpu {

const FloatGemm* float_gemm_at(int i) {
  const FloatGemm* list[3] = {&kFloatGemmScalar};
  int n = 1;
#if defined(__x86_64__) || defined(_M_X64)
  if (cpu_features().avx2) list[n++] = &kFloatGemmAvx2;
  if (cpu_features().avx512) list[n++] = &kFloatGemmAvx512;
#endif
  return i >= 0 && i < n ? list[i] : nullptr;
}

const FloatGemm& float_gemm() {
  static const FloatGemm* const best = [] {
    const FloatGemm* found = float_gemm_at(0);
    for (int i = 1; const FloatGemm* next = float_gemm_at(i); ++i) found = next;
    return found;
  }();
  return *best;
}

}  // namespace hotset::cpu
