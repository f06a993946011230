// SPDX-License-Identifier: Apache-2.0
// Parameters of the rotary embedding kernel, for host and device code.
#pragma once
#include <cstdint>

namespace hotset::cuda {

// Rotates the first 2 half channels of each head of x by the angles of its position; the rest is copied. y may be x. A position
// outside the tables gives a row of NaN: a kernel cannot fail a run.
struct RotaryParams {
  const void* x;
  const void* cos;  // [table_rows, half]
  const void* sin;
  const std::int64_t* ids;  // positions, see `positions`
  void* y;
  std::int64_t batch, length, heads, channels, half, table_rows;
  std::int64_t x_batch, x_row, x_head;  // strides in elements, of x and y
  std::int32_t positions;               // 0: row r of the tables; 1: ids[0] + s; 2: ids[b][s]; 3: three streams ids[3][b][s]
  std::int32_t interleaved;             // pairs are neighbours, else half channels apart
  std::int32_t layout;                  // of streams: 0 one after the other, 1 in turns
  std::int32_t section[3];              // columns of each stream
};

}  // namespace hotset::cuda
