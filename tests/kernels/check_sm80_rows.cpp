// SPDX-License-Identifier: Apache-2.0
// The vector ways out of the SM80 prepacked layout against the plain one. --bench: bytes a nanosecond.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "cpu_avx/sm80_rows.h"
#include "formats/sm80.h"
#include "guarded_bytes.h"

using namespace hotset;

namespace {

using Function = void (*)(const uint8_t*, int, int64_t, int64_t, int64_t, int64_t, uint8_t*, int64_t);

bool same(int bits, int64_t n, int64_t k, int64_t n0, int64_t n1, std::mt19937& random) {
  GuardedBytes packed(static_cast<size_t>(n * k * bits / 8));
  for (size_t i = 0; i < packed.size(); ++i) packed.data()[i] = static_cast<uint8_t>(random());
  const int64_t used = k * bits / 8, row_bytes = used + static_cast<int64_t>(random() % 3) * 5;
  const size_t bytes = static_cast<size_t>((n1 - n0 - 1) * row_bytes + used);
  std::vector<uint8_t> expected(bytes, 0xa5);
  formats::sm80_to_raw(packed.data(), bits, n, k, n0, n1, expected.data(), row_bytes);
  GuardedBytes got(bytes);
  const auto equal = [&](const char* name) {
    if (std::memcmp(got.data(), expected.data(), bytes) == 0) return true;
    std::printf("%s: bits %d n %d k %d rows %d to %d differ\n", name, bits, static_cast<int>(n), static_cast<int>(k), static_cast<int>(n0),
                static_cast<int>(n1));
    return false;
  };
  std::memset(got.data(), 0xa5, bytes);
  cpu::sm80_rows(packed.data(), bits, n, k, n0, n1, got.data(), row_bytes);
  bool ok = equal("chosen");
  for (int level = 0; n0 % (16 / bits) == 0 && cpu::sm80_rows_at(bits, level); ++level) {
    std::memset(got.data(), 0xa5, bytes);
    cpu::sm80_rows_at(bits, level)(packed.data(), k, n0, n1, got.data(), row_bytes);
    ok &= equal(level == 0 ? "first level" : "second level");
  }
  return ok;
}

void bench(const char* name, int bits, Function f) {
  constexpr int64_t kN = 384, kK = 256;
  std::vector<uint8_t> packed(static_cast<size_t>(kN * kK * bits / 8), 0x5a), raw(packed);
  double best = 1e9;
  for (int round = 0; round < 20; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 20; ++i) f(packed.data(), bits, kN, kK, 0, kN, raw.data(), kK * bits / 8);
    best = std::min(best, std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / 20);
  }
  std::printf("sm80 to raw, %d bits, %-6s %6.2f bytes/ns\n", bits, name, static_cast<double>(packed.size()) / best);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--bench") == 0) {
    for (int bits : {2, 4, 8}) {
      bench("plain", bits, formats::sm80_to_raw);
      bench("chosen", bits, cpu::sm80_rows);
    }
    return 0;
  }
  std::mt19937 random(3);
  bool ok = true;
  for (int bits : {2, 4, 8}) {
    const int64_t step = 16 / bits;
    for (int64_t k : {64, 128, 192, 256, 320, 448}) {
      for (int64_t groups : {1, 2, 7}) {
        const int64_t n = groups * step;
        ok &= same(bits, n, k, 0, n, random);
        ok &= same(bits, n, k, (groups / 2) * step, n, random);
        ok &= same(bits, n, k, 1, n, random);  // not a whole group of columns
      }
    }
  }
  return ok ? 0 : 1;
}
