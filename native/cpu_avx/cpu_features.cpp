// SPDX-License-Identifier: Apache-2.0
// Detection of instruction sets: the CPU must have them and the operating system must save their registers.
#include "cpu_avx/cpu_features.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif
#endif

namespace hotset::cpu {
namespace {

struct LevelName {
  CpuLevel level;
  const char* name;
};

constexpr LevelName kLevels[] = {
    {CpuLevel::kScalar, "scalar"},         {CpuLevel::kAvx2, "avx2"}, {CpuLevel::kAvx512, "avx512"},
    {CpuLevel::kAvx512Vnni, "avx512vnni"}, {CpuLevel::kAmx, "amx"},   {CpuLevel::kNeon, "neon"},
};

struct Detected {
  CpuFeatures features;
  std::string unknown_override;  // empty: none
};

#if defined(__x86_64__)

uint64_t enabled_state() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

// Linux hands out the 8 KiB of tile registers on request only.
bool request_amx() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

CpuFeatures detect(CpuLevel cap) {
  X86Words words;
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return {};
  words.leaf1_c = c;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return {};
  words.leaf7_b = b;
  words.leaf7_c = c;
  words.leaf7_d = d;
  const uint32_t n_subleaves = a;
  if (n_subleaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) words.leaf7_1a = a;
  constexpr uint32_t kOsxsave = 1u << 27;
  if (words.leaf1_c & kOsxsave) words.xcr0 = enabled_state();
  return x86_features(words, cap, request_amx);
}

constexpr CpuLevel kHighest = CpuLevel::kAmx;

#elif defined(__aarch64__)

CpuFeatures detect(CpuLevel cap) {
  CpuFeatures f;
  if (cap == CpuLevel::kScalar) return f;
  f.neon = true;
  f.level = CpuLevel::kNeon;
#if defined(__linux__)
  constexpr unsigned long kAsimdDotProduct = 1ul << 20;
  f.neon_dotprod = (getauxval(AT_HWCAP) & kAsimdDotProduct) != 0;
#else
  f.neon_dotprod = true;  // every 64-bit Apple and Windows desktop core has it
#endif
  return f;
}

constexpr CpuLevel kHighest = CpuLevel::kNeon;

#else

CpuFeatures detect(CpuLevel) { return {}; }
constexpr CpuLevel kHighest = CpuLevel::kScalar;

#endif

// A level of another architecture caps nothing and is reported as unknown.
Detected detect_with_override() {
  Detected result;
  CpuLevel cap = kHighest;
  if (const char* wanted = std::getenv("HOTSET_CPU"); wanted && *wanted) {
    bool known = false;
    for (const LevelName& l : kLevels) {
      if (std::strcmp(wanted, l.name) != 0) continue;
      const bool same_architecture = (l.level == CpuLevel::kNeon) == (kHighest == CpuLevel::kNeon);
      known = l.level == CpuLevel::kScalar || same_architecture;
      if (known) cap = l.level;
    }
    if (!known) result.unknown_override = wanted;
  }
  result.features = detect(cap);
  return result;
}

const Detected& detected() {
  static const Detected d = detect_with_override();
  return d;
}

}  // namespace

CpuFeatures x86_features(const X86Words& words, CpuLevel cap, bool (*request_tiles)()) {
  CpuFeatures f;
  const auto bit = [](uint32_t word, int i) { return ((word >> i) & 1) != 0; };
  const auto saved = [&](uint64_t state) { return (words.xcr0 & state) == state; };
  constexpr uint64_t kYmm = 0x6, kZmm = 0xe6, kTiles = 0x60000;
  const bool fma = bit(words.leaf1_c, 12), f16c = bit(words.leaf1_c, 29), osxsave = bit(words.leaf1_c, 27), avx = bit(words.leaf1_c, 28);
  if (cap < CpuLevel::kAvx2 || !osxsave || !avx || !saved(kYmm) || !bit(words.leaf7_b, 5) || !fma || !f16c) return f;
  f.avx2 = true;
  f.level = CpuLevel::kAvx2;

  const uint32_t b7 = words.leaf7_b;
  const bool avx512 = bit(b7, 16) && bit(b7, 17) && bit(b7, 28) && bit(b7, 30) && bit(b7, 31);
  if (cap < CpuLevel::kAvx512 || !saved(kZmm) || !avx512) return f;
  f.avx512 = true;
  f.level = CpuLevel::kAvx512;

  if (cap < CpuLevel::kAvx512Vnni || !bit(words.leaf7_c, 11)) return f;
  f.avx512vnni = true;
  f.avx512bf16 = bit(words.leaf7_1a, 5);
  f.avx512vbmi = bit(words.leaf7_c, 1);
  f.level = CpuLevel::kAvx512Vnni;

  const uint32_t d7 = words.leaf7_d;
  if (cap < CpuLevel::kAmx || !saved(kTiles) || !bit(d7, 24) || !bit(d7, 25) || !request_tiles()) return f;
  f.amx_int8 = true;
  f.amx_bf16 = bit(d7, 22);
  f.level = CpuLevel::kAmx;
  return f;
}

const CpuFeatures& cpu_features() { return detected().features; }

const char* cpu_level_name(CpuLevel level) {
  for (const LevelName& l : kLevels)
    if (l.level == level) return l.name;
  return "scalar";
}

const char* cpu_unknown_override() {
  const std::string& value = detected().unknown_override;
  return value.empty() ? nullptr : value.c_str();
}

}  // namespace hotset::cpu
