// SPDX-License-Identifier: Apache-2.0
// What the processor and the operating system allow kernels to use.
#pragma once
#include <cstddef>
#include <cstdint>

namespace hotset::cpu {

// Tiers of the two architectures, each in the order in which HOTSET_CPU=<tier> cuts them off: the named tier and those before it
// may be used. avx2vnni and avx512bf16 are extras that not every processor with a later tier has.
enum class CpuLevel { kScalar, kAvx2, kAvx2Vnni, kAvx512, kAvx512Vnni, kAvx512Bf16, kAmx, kNeon, kNeonDot, kNeonI8mm };
inline constexpr int kCpuLevels = 10;

struct CpuFeatures {
  CpuLevel level = CpuLevel::kScalar;  // the last tier below
  bool avx2 = false;                   // AVX2, FMA, F16C
  bool avx2vnni = false;               // AVX-VNNI: dot products of bytes without AVX-512
  bool avx512 = false;                 // AVX-512 F, BW, CD, DQ, VL
  bool avx512vnni = false;
  bool avx512vbmi = false;  // no tier: an extra beside avx512vnni
  bool avx512bf16 = false;
  bool amx_int8 = false;  // tile and int8 units; amx_permitted() before the first tile instruction
  bool amx_bf16 = false;
  bool neon = false;
  bool neon_dotprod = false;  // sdot
  bool neon_i8mm = false;     // smmla

  bool has(CpuLevel level) const;
};

// What an x86 processor and its operating system say: registers of CPUID leaves 1 and 7 and XCR0 (0 without OSXSAVE).
struct X86Words {
  uint32_t leaf1_c = 0, leaf7_b = 0, leaf7_c = 0, leaf7_d = 0, leaf7_1a = 0;
  uint64_t xcr0 = 0;
};
// What may be used of that, up to `cap`.
CpuFeatures x86_features(const X86Words& words, CpuLevel cap);

// The same of the words AT_HWCAP and AT_HWCAP2 of Linux on 64-bit ARM.
CpuFeatures arm_features(uint64_t hwcap, uint64_t hwcap2, CpuLevel cap);

// Detected at the first call, with the cap of HOTSET_CPU; the environment is read once.
const CpuFeatures& cpu_features();

// What the machine has, whatever HOTSET_CPU says.
const CpuFeatures& cpu_machine_features();

// Asks the system for the tile registers, once a process: Linux hands out their 8 KiB a thread on request only, and may refuse.
// False without amx_int8.
bool amx_permitted();

// "scalar", "avx2", "avx2vnni", "avx512", "avx512vnni", "avx512bf16", "amx", "neon", "neondot" or "neoni8mm".
const char* cpu_level_name(CpuLevel level);

// Why HOTSET_CPU cannot be followed: no such tier, or one that this machine does not have. Null when it is fine or not set.
// With a problem, sessions refuse to start; cpu_features() is then what the machine has.
const char* cpu_override_problem();

// One implementation of something and the tier it needs.
template <class T>
struct Tiered {
  CpuLevel level;
  T kernel;
};

// Whether kernels of a tier may run: cpu_features(), and for AMX the system's permission.
bool cpu_may_run(CpuLevel level);

// The last one that may run; the first needs nothing.
template <class T, size_t N>
const Tiered<T>& best_of(const Tiered<T> (&tiers)[N]) {
  size_t i = N - 1;
  while (i > 0 && !cpu_may_run(tiers[i].level)) --i;
  return tiers[i];
}

// The i-th of those that may run, null past the last: for tests and benchmarks of all of them.
template <class T, size_t N>
const Tiered<T>* tier_at(const Tiered<T> (&tiers)[N], int i) {
  for (const Tiered<T>& tier : tiers)
    if (cpu_may_run(tier.level) && i-- == 0) return &tier;
  return nullptr;
}

// The entries of a table of tiers for a family with one function an architecture's usual tier: name_scalar, name_avx2 ...
#if defined(__x86_64__)
#define HOTSET_USUAL_TIERS(name) \
  {CpuLevel::kScalar, name##_scalar}, {CpuLevel::kAvx2, name##_avx2}, { CpuLevel::kAvx512, name##_avx512 }
#elif defined(__aarch64__)
#define HOTSET_USUAL_TIERS(name) \
  {CpuLevel::kScalar, name##_scalar}, { CpuLevel::kNeon, name##_neon }
#else
#define HOTSET_USUAL_TIERS(name) {CpuLevel::kScalar, name##_scalar}
#endif

}  // namespace hotset::cpu
