// SPDX-License-Identifier: Apache-2.0
// The tile instructions of AMX. The tile numbers are literals. A test defines the macros as a plain emulation (HOTSET_EMULATED_TILES).
#pragma once
#include <stdint.h>

namespace hotset::cpu {

// Operand of ldtilecfg.
struct TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64);

}  // namespace hotset::cpu

// Statements of assembly: gcc 12's intrinsics do not say that they read memory.
#ifndef HOTSET_EMULATED_TILES
#define HOTSET_TILE_CONFIGURE(config) __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory")
#define HOTSET_TILE_RELEASE() __asm__ volatile("tilerelease" ::: "memory")
#define HOTSET_TILE_ZERO(c) __asm__ volatile("tilezero %%tmm" #c::: "memory")
// Row r of the tile at p + r * stride bytes.
#define HOTSET_TILE_LOAD(t, p, stride) \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t::"r"((const void*)(p)), "r"((int64_t)(stride)) : "memory")
#define HOTSET_TILE_STORE(t, p, stride) \
  __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"((void*)(p)), "r"((int64_t)(stride)) : "memory")
// c[m][n] += sum over j, i < 4 of a[m][4 j + i] * b[j][4 n + i], signed bytes.
#define HOTSET_TILE_DOT_I8(c, a, b) __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c::: "memory")
// c[m][n] += sum over j, i < 2 of a[m][2 j + i] * b[j][2 n + i], bfloat16; subnormal numbers count as zero.
#define HOTSET_TILE_DOT_BF16(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c::: "memory")
#endif
