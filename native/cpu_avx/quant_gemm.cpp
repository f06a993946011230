// SPDX-License-Identifier: Apache-2.0
// Choice of the quantised GEMM table for this CPU and matrix.
#include "cpu_avx/quant_gemm.h"

#include "cpu_avx/cpu_features.h"
#include "cpu_avx/quant_gemm_isa.h"

namespace hotset::cpu {
namespace {

struct Choice {
  const QuantGemm* table;
  const char* isa;
};

#if defined(__x86_64__)
bool fast_shape(const QuantMatrix& w, int64_t smallest_block) {
  const bool width = w.bits == 2 || w.bits == 4 || w.bits == 8;
  const bool power_of_two = w.block >= smallest_block && (w.block & (w.block - 1)) == 0;
  return width && w.k > 0 && (power_of_two || w.block >= w.k);
}
#endif

Choice choose(bool int8_activations, const QuantMatrix& w) {
#if defined(__x86_64__)
  const CpuFeatures& cpu = cpu_features();
  if (fast_shape(w, int8_activations ? 32 : 16)) {
    const int width = w.bits == 2 ? 0 : w.bits == 4 ? 1 : 2;
    if (int8_activations) {
      if (cpu.avx512vnni) return {&kQuantI8Avx512Vnni[width], "avx512vnni"};
      if (cpu.avx2) return {&kQuantI8Avx2[width], "avx2"};
    } else {
      if (cpu.avx512) return {&kQuantF32Avx512[width], "avx512"};
      if (cpu.avx2) return {&kQuantF32Avx2[width], "avx2"};
    }
  }
#else
  (void)w;
#endif
  return {int8_activations ? &kQuantI8Scalar : &kQuantF32Scalar, "scalar"};
}

}  // namespace

const QuantGemm& quant_gemm(bool int8_activations, const QuantMatrix& w) { return *choose(int8_activations, w).table; }

const char* quant_gemm_isa(bool int8_activations, const QuantMatrix& w) { return choose(int8_activations, w).isa; }

}  // namespace hotset::cpu
