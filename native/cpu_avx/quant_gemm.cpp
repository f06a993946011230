// SPDX-License-Identifier: Apache-2.0
// Choice of the quantised GEMM table for this CPU and matrix.
#include "cpu_avx/quant_gemm.h"

#include "cpu_avx/cpu_features.h"
#include "cpu_avx/quant_gemm_isa.h"

namespace hotset::cpu {
namespace {

// Each kernel is an array for 2, 4 and 8 bits; null: the scalar table.
using Tables = Tiered<const QuantGemm*>;

// Blocks of at least 32 codes.
constexpr Tables kExact[] = {
    {CpuLevel::kScalar, nullptr},
#if defined(__x86_64__)
    {CpuLevel::kAvx2, kQuantF32Avx2},
    {CpuLevel::kAvx512, kQuantF32Avx512},
    {CpuLevel::kAvx512Vnni, kQuantF32Avx512Vnni},
#elif defined(__aarch64__)
    {CpuLevel::kNeon, kQuantF32Neon},
#endif
};

// Blocks of 16 codes.
constexpr Tables kExactBlock16[] = {
    {CpuLevel::kScalar, nullptr},
#if defined(__x86_64__)
    {CpuLevel::kAvx2, kQuantF32Avx2},
    {CpuLevel::kAvx512, kQuantF32Avx512},
#elif defined(__aarch64__)
    {CpuLevel::kNeon, kQuantF32Neon},
#endif
};

constexpr Tables kInt8[] = {
    {CpuLevel::kScalar, nullptr},
#if defined(__x86_64__)
    {CpuLevel::kAvx2, kQuantI8Avx2}, {CpuLevel::kAvx2Vnni, kQuantI8Avx2Vnni}, {CpuLevel::kAvx512Vnni, kQuantI8Avx512Vnni},
    {CpuLevel::kAmx, kQuantI8Amx},
#elif defined(__aarch64__)
    {CpuLevel::kNeon, kQuantI8Neon},
    {CpuLevel::kNeonDot, kQuantI8NeonDot},
    {CpuLevel::kNeonI8mm, kQuantI8NeonI8mm},
#endif
};

// Blocks of 16 codes.
constexpr Tables kInt8Block16[] = {
    {CpuLevel::kScalar, nullptr},
#if defined(__x86_64__)
    {CpuLevel::kAvx2, kQuantI8Avx2Block16},
    {CpuLevel::kAvx2Vnni, kQuantI8Avx2VnniBlock16},
    {CpuLevel::kAmx, kQuantI8AmxBlock16},
#elif defined(__aarch64__)
    {CpuLevel::kNeon, kQuantI8NeonBlock16},
    {CpuLevel::kNeonDot, kQuantI8NeonDotBlock16},
    {CpuLevel::kNeonI8mm, kQuantI8NeonI8mmBlock16},
#endif
};

struct Choice {
  const QuantGemm* table;
  const char* isa;
};

bool fast_shape(const QuantMatrix& w) {
  const bool width = w.bits == 2 || w.bits == 4 || w.bits == 8;
  const bool power_of_two = w.block >= 16 && (w.block & (w.block - 1)) == 0;
  return width && w.k > 0 && (power_of_two || w.block >= w.k);
}

Choice choose(bool int8_activations, const QuantMatrix& w) {
  if (fast_shape(w)) {
    const bool block16 = w.block == 16 && w.k > 16;
    const Tables& best =
        int8_activations ? (block16 ? best_of(kInt8Block16) : best_of(kInt8)) : (block16 ? best_of(kExactBlock16) : best_of(kExact));
    const int width = w.bits == 2 ? 0 : w.bits == 4 ? 1 : 2;
    if (best.kernel) return {best.kernel + width, cpu_level_name(best.level)};
  }
  return {int8_activations ? &kQuantI8Scalar : &kQuantF32Scalar, cpu_level_name(CpuLevel::kScalar)};
}

}  // namespace

const QuantGemm& quant_gemm(bool int8_activations, const QuantMatrix& w) { return *choose(int8_activations, w).table; }

const char* quant_gemm_isa(bool int8_activations, const QuantMatrix& w) { return choose(int8_activations, w).isa; }

QuantGemmPacked quant_gemm_packed(bool int8_activations, Packing packing, const QuantMatrix& w) {
#if defined(__x86_64__)
  // AMX leaves few rows to AVX-512 VNNI.
  const bool small_block = w.block < 32 && w.k > w.block;
  if (!fast_shape(w) || small_block || !cpu_may_run(CpuLevel::kAvx512Vnni)) return nullptr;
  if (packing == Packing::sm80) {
    if (w.bits == 2) return nullptr;
    return (int8_activations ? kQuantI8Sm80Avx512Vnni : kQuantF32Sm80Avx512Vnni)[w.bits / 8];
  }
  if (!cpu_features().avx512vbmi) return nullptr;
  return int8_activations ? kQuantI8Stream3Avx512Vbmi : kQuantF32Stream3Avx512Vbmi;
#else
  (void)int8_activations, (void)packing, (void)w;
  return nullptr;
#endif
}

}  // namespace hotset::cpu
