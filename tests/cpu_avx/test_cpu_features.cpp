// SPDX-License-Identifier: Apache-2.0
// Which instruction sets are used of what a processor has and its operating system allows: all subsets, refusals included.
#include "cpu_avx/cpu_features.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "cpu_avx/kernel_choices.h"

using namespace hotset::cpu;

namespace {

int failures = 0;
#define CHECK(x)                                         \
  do {                                                   \
    if (!(x)) {                                          \
      std::printf("FAILED line %d: %s\n", __LINE__, #x); \
      ++failures;                                        \
    }                                                    \
  } while (0)

constexpr uint32_t bit(int i) { return 1u << i; }
constexpr uint32_t kF = bit(16), kDq = bit(17), kCd = bit(28), kBw = bit(30), kVl = bit(31);

// A processor with everything under a system that saves everything.
X86Words everything() {
  X86Words w;
  w.leaf1_c = bit(12) | bit(27) | bit(28) | bit(29);
  w.leaf7_b = bit(5) | kF | kDq | kCd | kBw | kVl;
  w.leaf7_c = bit(1) | bit(11);
  w.leaf7_d = bit(22) | bit(24) | bit(25);
  w.leaf7_1a = bit(4) | bit(5);
  w.xcr0 = 0x600e7;
  return w;
}

CpuLevel level(const X86Words& w, CpuLevel cap = CpuLevel::kAmx) {
  const CpuFeatures f = x86_features(w, cap);
  // Nothing above the cap, the level is the highest tier, and what a tier builds on is there.
  for (int i = 0; i < kCpuLevels; ++i) CHECK(!f.has(static_cast<CpuLevel>(i)) || static_cast<CpuLevel>(i) <= f.level);
  CHECK(f.has(f.level) && f.level <= cap);
  CHECK((f.avx2 || !f.avx2vnni) && (f.avx2 || !f.avx512) && (f.avx512 || !f.avx512vnni) && (f.avx512vnni || !f.avx512bf16));
  CHECK(f.avx512vbmi == (f.avx512vnni && (w.leaf7_c & bit(1)) != 0));
  CHECK((f.avx512vnni || !f.amx_int8) && (f.amx_int8 || !f.amx_bf16) && !f.neon && !f.neon_dotprod && !f.neon_i8mm);
  return f.level;
}

template <class F>
CpuLevel without(F&& change) {
  X86Words w = everything();
  change(w);
  return level(w);
}

}  // namespace

int main() {
  CHECK(level({}) == CpuLevel::kScalar);
  CHECK(level(everything()) == CpuLevel::kAmx);

  // The cap of HOTSET_CPU.
  for (CpuLevel cap :
       {CpuLevel::kScalar, CpuLevel::kAvx2, CpuLevel::kAvx2Vnni, CpuLevel::kAvx512, CpuLevel::kAvx512Vnni, CpuLevel::kAvx512Bf16})
    CHECK(level(everything(), cap) == cap);

  // The operating system saves less than the processor has.
  CHECK(without([](X86Words& w) { w.xcr0 = 0xe7; }) == CpuLevel::kAvx512Bf16);
  CHECK(without([](X86Words& w) { w.xcr0 = 0x20000 | 0xe7; }) == CpuLevel::kAvx512Bf16);  // tile configuration without tile data
  CHECK(without([](X86Words& w) { w.xcr0 = 0x60007; }) == CpuLevel::kAvx2Vnni);           // no upper halves of the registers
  CHECK(without([](X86Words& w) { w.xcr0 = 0x67; }) == CpuLevel::kAvx2Vnni);              // registers 16 to 31 missing
  CHECK(without([](X86Words& w) { w.xcr0 = 3; }) == CpuLevel::kScalar);
  CHECK(without([](X86Words& w) { w.leaf1_c &= ~bit(27); }) == CpuLevel::kScalar);  // XCR0 cannot be read

  // The processor has a subset.
  for (uint32_t missing : {kF, kDq, kCd, kBw, kVl}) CHECK(without([=](X86Words& w) { w.leaf7_b &= ~missing; }) == CpuLevel::kAvx2Vnni);
  CHECK(without([](X86Words& w) { w.leaf7_b &= ~(kDq | kCd | kBw | kVl); }) == CpuLevel::kAvx2Vnni);  // F alone
  CHECK(without([](X86Words& w) { w.leaf7_c = 0; }) == CpuLevel::kAvx512);
  CHECK(without([](X86Words& w) { w.leaf7_d = 0; }) == CpuLevel::kAvx512Bf16);
  CHECK(without([](X86Words& w) { w.leaf7_d = bit(22) | bit(24); }) == CpuLevel::kAvx512Bf16);  // tiles without int8
  CHECK(without([](X86Words& w) { w.leaf7_b &= ~bit(5); }) == CpuLevel::kScalar);
  for (int i : {12, 28, 29}) CHECK(without([=](X86Words& w) { w.leaf1_c &= ~bit(i); }) == CpuLevel::kScalar);

  // Extras: a processor without them has the tiers around them (Zen 4: no bytes dot product with VEX, no tiles).
  X86Words w = everything();
  w.leaf7_1a = 0;
  w.leaf7_d = bit(24) | bit(25);
  CpuFeatures f = x86_features(w, CpuLevel::kAmx);
  CHECK(f.level == CpuLevel::kAmx && !f.avx2vnni && !f.avx512bf16 && !f.amx_bf16 && f.avx512vnni);
  CHECK(x86_features(w, CpuLevel::kAvx2Vnni).level == CpuLevel::kAvx2);
  w.leaf7_b = bit(5);  // a processor of the small cores: VEX alone
  w.leaf7_1a = bit(4);
  f = x86_features(w, CpuLevel::kAmx);
  CHECK(f.level == CpuLevel::kAvx2Vnni && !f.avx512 && !f.avx512vnni && !f.amx_int8);

  // 64-bit ARM: HWCAP_ASIMDDP is bit 20, HWCAP2_I8MM bit 13.
  constexpr uint64_t kDot = 1u << 20, kI8mm = 1u << 13;
  const auto arm = [](uint64_t hwcap, uint64_t hwcap2, CpuLevel cap = CpuLevel::kNeonI8mm) {
    return arm_features(hwcap, hwcap2, cap).level;
  };
  CHECK(arm(0, 0) == CpuLevel::kNeon && arm(kDot, 0) == CpuLevel::kNeonDot && arm(kDot, kI8mm) == CpuLevel::kNeonI8mm);
  CHECK(arm(0, kI8mm) == CpuLevel::kNeon);
  for (CpuLevel cap : {CpuLevel::kScalar, CpuLevel::kNeon, CpuLevel::kNeonDot}) CHECK(arm(kDot, kI8mm, cap) == cap);
  CHECK(!arm_features(kDot, kI8mm, CpuLevel::kNeonI8mm).avx2);

  // This machine: what is in force has a name.
  CHECK(std::strlen(cpu_level_name(cpu_features().level)) > 0);
  for (const KernelChoice& choice : kernel_choices()) {
    int i = 0;
    while (i < kCpuLevels && std::strcmp(choice.isa, cpu_level_name(static_cast<CpuLevel>(i))) != 0) ++i;
    CHECK(i < kCpuLevels && cpu_features().has(static_cast<CpuLevel>(i)));
  }
  if (amx_permitted()) CHECK(cpu_features().amx_int8);
  if (!failures) std::printf("ok\n");
  return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
