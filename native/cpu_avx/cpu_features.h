// SPDX-License-Identifier: Apache-2.0
// What the processor and the operating system allow kernels to use.
#pragma once
#include <cstdint>

namespace hotset::cpu {

// Levels of one architecture, each containing those before it. HOTSET_CPU=<name> caps the level of the process.
enum class CpuLevel { kScalar, kAvx2, kAvx512, kAvx512Vnni, kAmx, kNeon };

struct CpuFeatures {
  CpuLevel level = CpuLevel::kScalar;  // after HOTSET_CPU
  // What the level contains; false when HOTSET_CPU took it away.
  bool avx2 = false;    // AVX2, FMA, F16C
  bool avx512 = false;  // AVX-512 F, BW, CD, DQ, VL
  bool avx512vnni = false;
  bool amx_int8 = false;  // tile and int8 units, and the process has permission to use them
  bool neon = false;
  // Extras that come with a level on some CPUs.
  bool avx512bf16 = false;
  bool avx512vbmi = false;
  bool amx_bf16 = false;
  bool neon_dotprod = false;
};

// What an x86 processor and its operating system say: registers of CPUID leaves 1 and 7 and XCR0 (0 without OSXSAVE).
struct X86Words {
  uint32_t leaf1_c = 0, leaf7_b = 0, leaf7_c = 0, leaf7_d = 0, leaf7_1a = 0;
  uint64_t xcr0 = 0;
};
// What may be used of that, up to `cap`. request_tiles asks the system for the tile registers; it is called only when the
// processor has them and XCR0 saves them.
CpuFeatures x86_features(const X86Words& words, CpuLevel cap, bool (*request_tiles)());

// Detected at the first call; the environment is read once.
const CpuFeatures& cpu_features();

// "scalar", "avx2", "avx512", "avx512vnni", "amx" or "neon".
const char* cpu_level_name(CpuLevel level);

// The value of HOTSET_CPU when it is none of these names (it is then ignored), else null.
const char* cpu_unknown_override();

}  // namespace hotset::cpu
