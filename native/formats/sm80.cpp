// SPDX-License-Identifier: Apache-2.0
// SM80 prepacked codes back to raw rows, 16 bytes at a time.
#include "formats/sm80.h"

#include <cstring>

namespace hotset::formats {
namespace {

// Four words u = 0 ... 3 of one column and tile are 4 e codes, and so are 16 bytes of its raw row. Raw code 8 a + 2 u + i is slot
// a + h i of word u. In units of codes that is: interleave the halves of each word (i becomes the lowest index), then bring a before u
// by interleaving pairs of words, then pairs of pairs.
typedef uint64_t Pair __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(16)));

// Exchanges in each 64-bit lane the bits under mask with those `shift` above them.
template <int shift>
inline Pair exchange(Pair x, uint64_t mask) {
  const Pair t = (x ^ (x >> shift)) & mask;
  return x ^ t ^ (t << shift);
}

// Interleaves the halves of each 64-bit lane (or 32-bit: `half` = 16) in units of `unit` bits.
template <int half, int unit>
inline Pair interleave(Pair x) {
  if constexpr (half > 16 && unit <= 16) x = exchange<16>(x, 0x00000000ffff0000u);
  if constexpr (unit <= 8) x = exchange<8>(x, 0x0000ff000000ff00u);
  if constexpr (unit <= 4) x = exchange<4>(x, 0x00f000f000f000f0u);
  if constexpr (unit <= 2) x = exchange<2>(x, 0x0c0c0c0c0c0c0c0cu);
  return x;
}

template <int bits>
inline void unit_to_raw(const uint8_t* packed, uint8_t* raw) {
  Pair x;
  std::memcpy(&x, packed, 16);
  x = interleave<16, bits>(x);
  x = interleave<32, 2 * bits>(x);
  const Words w = reinterpret_cast<Words>(x);
  x = reinterpret_cast<Pair>(Words{w[0], w[2], w[1], w[3]});
  x = interleave<32, 4 * bits>(x);
  std::memcpy(raw, &x, 16);
}

template <int bits>
void rows_to_raw(const uint8_t* packed, int64_t k, int64_t n0, int64_t n1, uint8_t* raw, int64_t row_bytes) {
  constexpr int64_t columns = 16 / bits, tile_row_bytes = 8 * bits;  // of one column in a tile
  const int64_t tiles = k / 64;
  for (int64_t first = n0 / columns * columns; first < n1; first += columns) {
    const uint8_t* tile = packed + first * (k * bits / 8);
    const int64_t from = first < n0 ? n0 - first : 0, to = n1 - first < columns ? n1 - first : columns;
    for (int64_t t = 0; t < tiles; ++t, tile += columns * tile_row_bytes) {
      for (int64_t column = from; column < to; ++column) {
        const uint8_t* src = tile + column * tile_row_bytes;
        uint8_t* dst = raw + (first + column - n0) * row_bytes + t * tile_row_bytes;
        for (int64_t byte = 0; byte < tile_row_bytes; byte += 16) unit_to_raw<bits>(src + byte, dst + byte);
      }
    }
  }
}

}  // namespace

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words of the layout are little endian");

void sm80_to_raw(const uint8_t* packed, int bits, int64_t, int64_t k, int64_t n0, int64_t n1, uint8_t* raw, int64_t row_bytes) {
  if (bits == 2) rows_to_raw<2>(packed, k, n0, n1, raw, row_bytes);
  if (bits == 4) rows_to_raw<4>(packed, k, n0, n1, raw, row_bytes);
  if (bits == 8) rows_to_raw<8>(packed, k, n0, n1, raw, row_bytes);
}

}  // namespace hotset::formats
