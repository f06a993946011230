// SPDX-License-Identifier: Apache-2.0
// Grouped products of many rows with int4 expert weights on GPUs with wgmma (sm_90a): the prompt path of QMoE.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "cuda/device.h"
#include "cuda/moe_wgmma_params.h"

namespace hotset::cuda {

// Whether the device has the kernels and they take this form: dtype float16 or bfloat16 (activations, scales and biases), int4
// codes in rows of k / 2 bytes at addresses that are multiples of 16, one scale for `block` columns (a power of two, 32 or more;
// k or more: one a row), k a multiple of 32, out columns a multiple of 8.
bool moe_wgmma_takes(const Limits& limits, DType dtype, int64_t k, int64_t n, int64_t block, int64_t experts);

// Columns of a row in chunk order: k rounded up to 128.
inline int64_t chunk_columns(int64_t k) { return (k + kWgmmaChunk - 1) / kWgmmaChunk * kWgmmaChunk; }

// out (rows, chunk_columns(k)): row r is row sorted_rows[r] of x (tokens, k), columns in chunk order. All on the device.
Status moe_gather_chunks(Gpu& gpu, Stream stream, const void* x, const int32_t* sorted_rows, int64_t rows, int64_t k, void* out);

// The product described in MoeWgmmaParams of x (rows, chunk_columns(k)). `gated`: W has gate and value rows, and out
// (rows, chunk_columns(n)) is their activation in chunk order, ready as x of the next product; else out (rows, n) is natural.
Status moe_wgmma(Gpu& gpu, Stream stream, DType dtype, bool gated, const MoeWgmmaParams& parameters, const void* x, int64_t rows);

}  // namespace hotset::cuda
