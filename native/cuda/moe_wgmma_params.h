// SPDX-License-Identifier: Apache-2.0
// Parameters of the grouped products of moe_wgmma.cu; nvcc and the host read this.
#pragma once
#include <cstdint>

namespace hotset::cuda {

inline constexpr int kWgmmaChunk = 128;  // columns of the inner size that are read at a time; workspaces are padded to it
inline constexpr int kWgmmaMaxExperts = 1024;

// A tensor map of the driver (CUtensorMap), made by cuTensorMapEncodeTiled.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

// One product of all experts: out(row, n) = sum over k of x(row, k) * W[expert of row](n, k), rows sorted by expert.
struct MoeWgmmaParams {
  const std::int32_t* offsets;         // (experts + 1) first row of each expert
  const std::uint64_t* weights;        // (experts) address of W: rows of K / 2 bytes, code 2i in the low half of byte i
  const std::uint64_t* scales;         // (experts) address of (rows of W, K / block)
  const std::uint64_t* zeros;          // (experts) address of (rows of W, ceil(K / block / 2)) packed codes, or null: 8
  const std::uint64_t* biases;         // (experts) address of (rows of W), or null; added before the activation
  const std::uint64_t* value_weights;  // the same of separate value rows (FC3), or null
  const std::uint64_t* value_scales;
  const std::uint64_t* value_zeros;
  const std::uint64_t* value_biases;
  void* out;  // (rows, out_columns)
  std::int32_t experts;
  std::int32_t n;            // outputs a row: rows of W, or half of them when gated
  std::int32_t k;            // inner size; the rows of x have ceil(k / 128) * 128 columns in chunk order
  std::int32_t blocks;       // scales a row of W
  std::int32_t block_shift;  // log2 of the block size
  std::int32_t out_columns;  // n, or n rounded up to 128 when `gated`: then columns are in chunk order
  std::int32_t value_row;    // gated: first value row in W, 0 when value_weights is set
  std::int32_t row_step;     // gated: rows of W from one output to the next (2 when interleaved)
  std::int32_t activation;   // gated: 0 swiglu, 1 geglu
  float alpha, beta, limit;  // swiglu; limit is infinity when there is none
  std::int32_t limit_after;  // swiglu_limit_after_activation
};

struct MoeGatherParams {
  const void* x;                    // (tokens, k) two bytes an element
  const std::int32_t* sorted_rows;  // (rows) token of each sorted row
  void* out;                        // (rows, k rounded up to 128) in chunk order, padding zero
  std::int32_t rows, k;
};

// Chunk order: place p of a chunk of 128 holds column chunk_column(p), such that a thread that loads 16 bytes of codes (32 columns)
// has what its lane of a 64 x 16 operand needs: lane % 4 chooses the 32 columns, two bits of a word's eight codes go to one place.
#if defined(__CUDACC__)
__host__ __device__
#endif
    constexpr int chunk_column(int p) {
  const int step = p >> 4, half = p >> 3 & 1, quad = p >> 1 & 3, high = p & 1;
  return 32 * quad + 8 * (step >> 1) + 2 * (step & 1) + half + 4 * high;
}

}  // namespace hotset::cuda
