// SPDX-License-Identifier: Apache-2.0
// Raw rows out of the SM80 prepacked layout with AVX-512. Four words of a column, in a 128-bit lane, are 16 bytes of its row; four
// lanes, of one tile or of consecutive ones, are stored as 64 bytes, so that a reader of 64 bytes finds one store.
#include "cpu_avx/sm80_avx512.h"
#include "cpu_avx/sm80_rows_isa.h"

namespace hotset::cpu {
namespace {

using namespace sm80_avx512;

template <int BITS>
inline void rows(const uint8_t* packed, int64_t k, int64_t n0, int64_t n1, uint8_t* out, int64_t row_bytes) {
  constexpr int kColumns = 16 / BITS, kTiles = 8 / BITS;  // of a tile; that fill 64 bytes of a row
  constexpr int kBytes = 8 * BITS;                        // of a column in a tile
  constexpr int64_t kAhead = 4096;
  for (int64_t n = n0; n < n1; n += kColumns, out += kColumns * row_bytes) {
    const uint8_t* tile = packed + n * (k * BITS / 8);
    int64_t t = 0;
    for (; t + kTiles <= k / 64; t += kTiles, tile += 128 * kTiles) {
      for (int i = 0; i < 2 * kTiles; ++i) _mm_prefetch(reinterpret_cast<const char*>(tile + kAhead + 64 * i), _MM_HINT_T0);
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c)
        _mm512_storeu_si512(out + c * row_bytes + t * kBytes, raw<BITS>(load_column<BITS>(tile + c * kBytes)));
    }
    for (; t < k / 64; ++t, tile += 128)
      for (int c = 0; c < kColumns; ++c)
        for (int i = 0; i < kBytes; i += 16)
          _mm_storeu_si128(reinterpret_cast<__m128i*>(out + c * row_bytes + t * kBytes + i),
                           _mm512_castsi512_si128(raw<BITS>(_mm512_castsi128_si512(load(tile + c * kBytes + i)))));
  }
}

}  // namespace

void sm80_rows_2_avx512(const uint8_t* packed, int64_t k, int64_t n0, int64_t n1, uint8_t* raw_rows, int64_t row_bytes) {
  rows<2>(packed, k, n0, n1, raw_rows, row_bytes);
}
void sm80_rows_4_avx512(const uint8_t* packed, int64_t k, int64_t n0, int64_t n1, uint8_t* raw_rows, int64_t row_bytes) {
  rows<4>(packed, k, n0, n1, raw_rows, row_bytes);
}
void sm80_rows_8_avx512(const uint8_t* packed, int64_t k, int64_t n0, int64_t n1, uint8_t* raw_rows, int64_t row_bytes) {
  rows<8>(packed, k, n0, n1, raw_rows, row_bytes);
}

}  // namespace hotset::cpu
