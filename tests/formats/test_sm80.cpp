// SPDX-License-Identifier: Apache-2.0
// SM80 prepacked codes to raw rows, against the closed form of the layout and published first bytes.
#include "formats/sm80.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

using hotset::formats::sm80_to_raw;

// (n, k) -> word and slot, as the layout is written down.
void place(int64_t n, int64_t k, int64_t row, int bits, int64_t* word, int* slot) {
  const int64_t e = 32 / bits, c = 16 / bits, v = 64 / e, h = e / 2, period = 4 * e;
  const int64_t r = k % 64, a = r % period / 8, m = r % 8, u = 4 * (r / period) + m / 2;
  *slot = static_cast<int>(a + h * (m % 2));
  *word = n / c * c * (row / e) + k / 64 * c * v + n % c * v + u;
}

std::vector<uint8_t> pack(const std::vector<int>& codes, int64_t n, int64_t k, int bits) {
  std::vector<uint8_t> bytes(static_cast<size_t>(n * k * bits / 8));
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < k; ++j) {
      int64_t word;
      int slot;
      place(i, j, k, bits, &word, &slot);
      const int bit = slot * bits;
      bytes[static_cast<size_t>(word * 4 + bit / 8)] |= static_cast<uint8_t>(codes[static_cast<size_t>(i * k + j)] << (bit % 8));
    }
  return bytes;
}

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::printf("%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);  \
      std::exit(1);                                                        \
    }                                                                      \
  } while (0)

void check(int bits, int64_t n, int64_t k, int64_t n0, int64_t n1) {
  std::vector<int> codes(static_cast<size_t>(n * k));
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < k; ++j) codes[static_cast<size_t>(i * k + j)] = static_cast<int>((7 * j + 5 * i + j / 8) % (1 << bits));
  std::vector<uint8_t> packed = pack(codes, n, k, bits);
  packed.insert(packed.begin(), 0);  // no alignment is promised
  const int64_t used = k * bits / 8, row_bytes = used + 3;
  std::vector<uint8_t> raw(static_cast<size_t>((n1 - n0) * row_bytes + 1), 0xee);
  sm80_to_raw(packed.data() + 1, bits, n, k, n0, n1, raw.data() + 1, row_bytes);
  for (int64_t i = n0; i < n1; ++i) {
    const uint8_t* row = raw.data() + 1 + (i - n0) * row_bytes;
    for (int64_t j = 0; j < k; ++j) CHECK(((row[j * bits / 8] >> (j * bits % 8)) & ((1 << bits) - 1)) == codes[static_cast<size_t>(i * k + j)]);
    for (int64_t j = used; j < row_bytes; ++j) CHECK(row[j] == 0xee);
  }
}

// First bytes of the images of code(n, k) = (7 k + 5 n + k div 8) mod 2^bits.
void check_golden(int bits, int64_t n, const uint8_t want[16]) {
  std::vector<int> codes(static_cast<size_t>(n * 64));
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < 64; ++j) codes[static_cast<size_t>(i * 64 + j)] = static_cast<int>((7 * j + 5 * i + j / 8) % (1 << bits));
  CHECK(std::memcmp(pack(codes, n, 64, bits).data(), want, 16) == 0);
}

}  // namespace

int main() {
  const uint8_t golden8[16] = {0x00, 0x39, 0x07, 0x40, 0x0e, 0x47, 0x15, 0x4e, 0x1c, 0x55, 0x23, 0x5c, 0x2a, 0x63, 0x31, 0x6a};
  const uint8_t golden4[16] = {0x90, 0xb2, 0x07, 0x29, 0x7e, 0x90, 0xe5, 0x07, 0x5c, 0x7e, 0xc3, 0xe5, 0x3a, 0x5c, 0xa1, 0xc3};
  const uint8_t golden2[16] = {0xe4, 0xe4, 0x93, 0x93, 0x4e, 0x4e, 0x39, 0x39, 0xe4, 0xe4, 0x93, 0x93, 0x4e, 0x4e, 0x39, 0x39};
  check_golden(8, 2, golden8);
  check_golden(4, 4, golden4);
  check_golden(2, 8, golden2);
  for (int bits : {2, 4, 8}) {
    check(bits, 16, 64, 0, 16);
    check(bits, 24, 192, 0, 24);
    check(bits, 24, 128, 16, 24);
    check(bits, 32, 128, 5, 21);
    check(bits, 8, 64, 3, 4);
    check(bits, 8, 64, 2, 2);
  }
  CHECK(hotset::formats::sm80_fits(4, 64, 4) && !hotset::formats::sm80_fits(2, 64, 4) && !hotset::formats::sm80_fits(4, 32, 4));
  std::printf("ok\n");
}
