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

constexpr const char* kNames[kCpuLevels] = {"scalar",     "avx2", "avx2vnni", "avx512",  "avx512vnni",
                                            "avx512bf16", "amx",  "neon",     "neondot", "neoni8mm"};

#if defined(__x86_64__)

constexpr CpuLevel kLowest = CpuLevel::kAvx2, kHighest = CpuLevel::kAmx;

uint64_t enabled_state() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
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
  return x86_features(words, cap);
}

#elif defined(__aarch64__)

constexpr CpuLevel kLowest = CpuLevel::kNeon, kHighest = CpuLevel::kNeonI8mm;

CpuFeatures detect(CpuLevel cap) {
#if defined(__linux__)
  return arm_features(getauxval(AT_HWCAP), getauxval(AT_HWCAP2), cap);
#else
  return arm_features(0, 0, cap);  // no other system is built for
#endif
}

#else

constexpr CpuLevel kLowest = CpuLevel::kScalar, kHighest = CpuLevel::kScalar;

CpuFeatures detect(CpuLevel) { return {}; }

#endif

// Names of the tiers of this architecture, or of those in `f`.
std::string names(const CpuFeatures* f) {
  std::string text = "scalar";
  for (int i = static_cast<int>(kLowest); i <= static_cast<int>(kHighest); ++i)
    if (i > 0 && (!f || f->has(static_cast<CpuLevel>(i)))) text += std::string(" ") + kNames[i];
  return text;
}

bool request_tiles() {
#if defined(__x86_64__) && defined(__linux__) && defined(SYS_arch_prctl)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

struct Detected {
  CpuFeatures machine, features;
  std::string problem;  // empty: none

  Detected() : machine(detect(kHighest)), features(machine) {
    const char* wanted = std::getenv("HOTSET_CPU");
    if (!wanted || !*wanted) return;
    int level = 0;
    while (level < kCpuLevels && std::strcmp(wanted, kNames[level]) != 0) ++level;
    const std::string value = std::string("HOTSET_CPU='") + wanted + "': ";
    if (level != 0 && (level < static_cast<int>(kLowest) || level > static_cast<int>(kHighest))) {
      problem = value + "no tier of this architecture; its tiers: " + names(nullptr);
    } else if (!machine.has(static_cast<CpuLevel>(level))) {
      problem = value + "this machine does not have it; it has: " + names(&machine);
    } else if (static_cast<CpuLevel>(level) == CpuLevel::kAmx && !request_tiles()) {
      problem = value + "the operating system refuses the tile registers";
    } else {
      features = detect(static_cast<CpuLevel>(level));
    }
  }
};

const Detected& detected() {
  static const Detected d;
  return d;
}

}  // namespace

bool CpuFeatures::has(CpuLevel wanted) const {
  const bool all[kCpuLevels] = {true, avx2, avx2vnni, avx512, avx512vnni, avx512bf16, amx_int8, neon, neon_dotprod, neon_i8mm};
  return all[static_cast<int>(wanted)];
}

namespace {

CpuFeatures with_level(CpuFeatures f) {
  for (int i = 0; i < kCpuLevels; ++i)
    if (f.has(static_cast<CpuLevel>(i))) f.level = static_cast<CpuLevel>(i);
  return f;
}

}  // namespace

CpuFeatures x86_features(const X86Words& words, CpuLevel cap) {
  CpuFeatures f;
  const auto bit = [](uint32_t word, int i) { return ((word >> i) & 1) != 0; };
  const auto saved = [&](uint64_t state) { return (words.xcr0 & state) == state; };
  constexpr uint64_t kYmm = 0x6, kZmm = 0xe6, kTiles = 0x60000;
  const uint32_t c1 = words.leaf1_c, b7 = words.leaf7_b, d7 = words.leaf7_d;
  const bool fma = bit(c1, 12), osxsave = bit(c1, 27), avx = bit(c1, 28), f16c = bit(c1, 29);
  f.avx2 = cap >= CpuLevel::kAvx2 && osxsave && avx && saved(kYmm) && bit(b7, 5) && fma && f16c;
  f.avx2vnni = f.avx2 && cap >= CpuLevel::kAvx2Vnni && bit(words.leaf7_1a, 4);
  const bool avx512 = bit(b7, 16) && bit(b7, 17) && bit(b7, 28) && bit(b7, 30) && bit(b7, 31);
  f.avx512 = f.avx2 && cap >= CpuLevel::kAvx512 && saved(kZmm) && avx512;
  f.avx512vnni = f.avx512 && cap >= CpuLevel::kAvx512Vnni && bit(words.leaf7_c, 11);
  f.avx512vbmi = f.avx512vnni && bit(words.leaf7_c, 1);
  f.avx512bf16 = f.avx512vnni && cap >= CpuLevel::kAvx512Bf16 && bit(words.leaf7_1a, 5);
  f.amx_int8 = f.avx512vnni && cap >= CpuLevel::kAmx && saved(kTiles) && bit(d7, 24) && bit(d7, 25);
  f.amx_bf16 = f.amx_int8 && bit(d7, 22);
  return with_level(f);
}

CpuFeatures arm_features(uint64_t hwcap, uint64_t hwcap2, CpuLevel cap) {
  constexpr uint64_t kDotProduct = 1ull << 20, kI8mm = 1ull << 13;  // HWCAP_ASIMDDP, HWCAP2_I8MM
  CpuFeatures f;
  f.neon = cap >= CpuLevel::kNeon;  // every 64-bit processor
  f.neon_dotprod = cap >= CpuLevel::kNeonDot && (hwcap & kDotProduct) != 0;
  f.neon_i8mm = f.neon_dotprod && cap >= CpuLevel::kNeonI8mm && (hwcap2 & kI8mm) != 0;
  return with_level(f);
}

const CpuFeatures& cpu_features() { return detected().features; }

const CpuFeatures& cpu_machine_features() { return detected().machine; }

bool amx_permitted() {
  static const bool granted = cpu_features().amx_int8 && request_tiles();
  return granted;
}

bool cpu_may_run(CpuLevel level) { return cpu_features().has(level) && (level != CpuLevel::kAmx || amx_permitted()); }

const char* cpu_level_name(CpuLevel level) { return kNames[static_cast<int>(level)]; }

const char* cpu_override_problem() {
  const std::string& text = detected().problem;
  return text.empty() ? nullptr : text.c_str();
}

}  // namespace hotset::cpu
