// SPDX-License-Identifier: Apache-2.0
// Tiles made of plain code, for processors with AVX-512 VNNI that have none: included before the source of an AMX kernel.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define HOTSET_EMULATED_TILES
#include "cpu_avx/tiles.h"

namespace {

struct Tiles {
  hotset::cpu::TileConfig config = {};
  alignas(64) unsigned char bytes[8][16][64];

  // As the processor does: what is outside the configured shape is zero.
  void load(int t, const void* p, int64_t stride) {
    std::memset(bytes[t], 0, sizeof bytes[t]);
    check(t);
    for (int r = 0; r < config.rows[t]; ++r) std::memcpy(bytes[t][r], static_cast<const char*>(p) + r * stride, config.row_bytes[t]);
  }
  void store(int t, void* p, int64_t stride) {
    check(t);
    for (int r = 0; r < config.rows[t]; ++r) std::memcpy(static_cast<char*>(p) + r * stride, bytes[t][r], config.row_bytes[t]);
  }
  void zero(int t) { std::memset(bytes[t], 0, sizeof bytes[t]); }
  void dot_i8(int c, int a, int b) {
    check(c), check(a), check(b);
    if (config.rows[c] != config.rows[a] || config.row_bytes[c] != config.row_bytes[b] || config.row_bytes[a] != 4 * config.rows[b])
      std::abort();
    for (int m = 0; m < config.rows[c]; ++m)
      for (int n = 0; n < config.row_bytes[c] / 4; ++n) {
        int32_t sum;
        std::memcpy(&sum, bytes[c][m] + 4 * n, 4);
        for (int j = 0; j < config.rows[b]; ++j)
          for (int i = 0; i < 4; ++i)
            sum += static_cast<signed char>(bytes[a][m][4 * j + i]) * static_cast<signed char>(bytes[b][j][4 * n + i]);
        std::memcpy(bytes[c][m] + 4 * n, &sum, 4);
      }
  }
  // Even and odd elements are summed apart, then added.
  void dot_bf16(int c, int a, int b) {
    check(c), check(a), check(b);
    if (config.rows[c] != config.rows[a] || config.row_bytes[c] != config.row_bytes[b] || config.row_bytes[a] != 4 * config.rows[b])
      std::abort();
    for (int m = 0; m < config.rows[c]; ++m)
      for (int n = 0; n < config.row_bytes[c] / 4; ++n) {
        float sum, parts[2] = {0, 0};
        std::memcpy(&sum, bytes[c][m] + 4 * n, 4);
        for (int j = 0; j < config.rows[b]; ++j)
          for (int i = 0; i < 2; ++i) parts[i] = std::fma(bf16(bytes[a][m] + 4 * j + 2 * i), bf16(bytes[b][j] + 4 * n + 2 * i), parts[i]);
        sum += parts[0] + parts[1];
        std::memcpy(bytes[c][m] + 4 * n, &sum, 4);
      }
  }
  static float bf16(const unsigned char* p) {
    uint16_t half;
    std::memcpy(&half, p, 2);
    const uint32_t word = (half & 0x7f80) == 0 ? 0 : uint32_t{half} << 16;  // subnormal numbers count as zero
    float value;
    std::memcpy(&value, &word, 4);
    return value;
  }
  void check(int t) const {  // the instructions fault
    if (config.palette != 1 || config.rows[t] == 0 || config.rows[t] > 16 || config.row_bytes[t] == 0 || config.row_bytes[t] > 64)
      std::abort();
  }
};

thread_local Tiles emulated;

}  // namespace

#define HOTSET_TILE_CONFIGURE(c) emulated.config = (c)
#define HOTSET_TILE_RELEASE() emulated.config = {}
#define HOTSET_TILE_ZERO(c) emulated.zero(c)
#define HOTSET_TILE_LOAD(t, p, stride) emulated.load(t, p, static_cast<int64_t>(stride))
#define HOTSET_TILE_STORE(t, p, stride) emulated.store(t, p, stride)
#define HOTSET_TILE_DOT_I8(c, a, b) emulated.dot_i8(c, a, b)
#define HOTSET_TILE_DOT_BF16(c, a, b) emulated.dot_bf16(c, a, b)
