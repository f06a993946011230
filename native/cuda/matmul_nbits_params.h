// SPDX-License-Identifier: Apache-2.0
// Parameters of the MatMulNBits kernels, for host and device code.
#pragma once
#include <cstdint>

namespace hotset::cuda {

// Y[m][n] = sum over k of A[m][k] * (code[n][k] - zero[n][k / block]) * scale[n][k / block] + bias[n]
struct NBitsParams {
  const void* a;              // [m, k]
  const std::uint8_t* codes;  // raw rows of row_bytes each, or the SM80 stream (formats/sm80.h)
  const void* scales;         // [n, blocks]
  const void* zeros;          // null: the middle code; packed codes, zero_row_bytes a row; floats [n, blocks]
  const void* bias;           // [n] or null
  void* y;                    // [m, n]
  std::int64_t row_bytes;     // of the codes of one n
  std::int32_t m, n, k;
  std::int32_t blocks;       // of a row
  std::int32_t block_shift;  // log2 of the block size
  std::int32_t zero_row_bytes;
  std::int32_t a_type, scale_type, zero_type, bias_type;  // ONNX element types; zero_type 2: packed codes
  std::int32_t bits;
  std::int32_t prepacked;  // 1: SM80
  std::int32_t ready;      // 1: codes, scales and zeros do not come from the kernel before this one (constants)
  // GEMV alone:
  std::int32_t rows;         // of A that a block multiplies: gridDim.y blocks share m
  std::int32_t split_shift;  // log2 of the warps that share a tile of 16 n
  std::int32_t stages;       // of a row of codes, 128 bytes each
  std::int32_t scale_copy;   // 16, 8 or 4: bytes that divide the places and sizes of all rows of scales in a stage; else 0
  // Dequantisation alone: rows [n0, n0 + n_rows) of the matrix to y, [n_rows, k] of a_type.
  std::int32_t n0, n_rows;
};

// Tables that make one matrix a group of one expert (moe_wgmma_params.h), and its rows the rows of A in their order.
struct NBitsGroupParams {
  std::uint64_t* addresses;  // [3]: codes, scales, zeros
  std::int32_t* offsets;     // [2]
  std::int32_t* rows;        // [m]
  std::uint64_t codes, scales, zeros;
  std::int32_t m;
};

}  // namespace hotset::cuda
