// SPDX-License-Identifier: Apache-2.0
// Which instruction sets are used of what a processor has and its operating system allows: all subsets, refusals included.
#include "cpu_avx/cpu_features.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

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

int asked = 0;
bool granted() { return ++asked, true; }
bool refused() { return ++asked, false; }

// A processor with everything under a system that saves everything.
X86Words everything() {
  X86Words w;
  w.leaf1_c = bit(12) | bit(27) | bit(28) | bit(29);
  w.leaf7_b = bit(5) | kF | kDq | kCd | kBw | kVl;
  w.leaf7_c = bit(1) | bit(11);
  w.leaf7_d = bit(22) | bit(24) | bit(25);
  w.leaf7_1a = bit(5);
  w.xcr0 = 0x600e7;
  return w;
}

CpuLevel level(const X86Words& w, CpuLevel cap = CpuLevel::kAmx, bool (*tiles)() = granted) {
  const CpuFeatures f = x86_features(w, cap, tiles);
  // A level holds those below it, and nothing above it is promised.
  CHECK(f.avx2 == (f.level >= CpuLevel::kAvx2) && f.avx512 == (f.level >= CpuLevel::kAvx512));
  CHECK(f.avx512vnni == (f.level >= CpuLevel::kAvx512Vnni) && f.amx_int8 == (f.level >= CpuLevel::kAmx));
  CHECK(f.avx512vbmi == (f.avx512vnni && (w.leaf7_c & bit(1)) != 0));
  CHECK((!f.avx512bf16 || f.avx512vnni) && (!f.amx_bf16 || f.amx_int8) && !f.neon && !f.neon_dotprod);
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

  // The cap of HOTSET_CPU; the tiles are asked for only when they would be used.
  asked = 0;
  for (CpuLevel cap : {CpuLevel::kScalar, CpuLevel::kAvx2, CpuLevel::kAvx512, CpuLevel::kAvx512Vnni})
    CHECK(level(everything(), cap) == cap);
  CHECK(asked == 0);
  CHECK(level(everything(), CpuLevel::kAmx, refused) == CpuLevel::kAvx512Vnni && asked == 1);

  // The operating system saves less than the processor has.
  CHECK(without([](X86Words& w) { w.xcr0 = 0xe7; }) == CpuLevel::kAvx512Vnni);
  CHECK(without([](X86Words& w) { w.xcr0 = 0x20000 | 0xe7; }) == CpuLevel::kAvx512Vnni);  // tile configuration without tile data
  CHECK(without([](X86Words& w) { w.xcr0 = 0x60007; }) == CpuLevel::kAvx2);               // no upper halves of the registers
  CHECK(without([](X86Words& w) { w.xcr0 = 0x67; }) == CpuLevel::kAvx2);                  // registers 16 to 31 missing
  CHECK(without([](X86Words& w) { w.xcr0 = 3; }) == CpuLevel::kScalar);
  CHECK(without([](X86Words& w) { w.leaf1_c &= ~bit(27); }) == CpuLevel::kScalar);  // XCR0 cannot be read

  // The processor has a subset.
  for (uint32_t missing : {kF, kDq, kCd, kBw, kVl}) CHECK(without([=](X86Words& w) { w.leaf7_b &= ~missing; }) == CpuLevel::kAvx2);
  CHECK(without([](X86Words& w) { w.leaf7_b &= ~(kDq | kCd | kBw | kVl); }) == CpuLevel::kAvx2);  // F alone
  CHECK(without([](X86Words& w) { w.leaf7_c = 0; }) == CpuLevel::kAvx512);
  CHECK(without([](X86Words& w) { w.leaf7_d = 0; }) == CpuLevel::kAvx512Vnni);
  CHECK(without([](X86Words& w) { w.leaf7_d = bit(22) | bit(24); }) == CpuLevel::kAvx512Vnni);  // tiles without int8
  CHECK(without([](X86Words& w) { w.leaf7_b &= ~bit(5); }) == CpuLevel::kScalar);
  for (int i : {12, 28, 29}) CHECK(without([=](X86Words& w) { w.leaf1_c &= ~bit(i); }) == CpuLevel::kScalar);

  // Extras.
  X86Words w = everything();
  w.leaf7_1a = 0;
  w.leaf7_d = bit(24) | bit(25);
  const CpuFeatures f = x86_features(w, CpuLevel::kAmx, granted);
  CHECK(f.level == CpuLevel::kAmx && !f.avx512bf16 && !f.amx_bf16);

  // This machine: what is in force has a name.
  CHECK(std::strlen(cpu_level_name(cpu_features().level)) > 0);
  if (!failures) std::printf("ok\n");
  return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
