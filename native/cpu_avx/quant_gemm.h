// SPDX-License-Identifier: Apache-2.0
// Products of activations with block-quantised integer weights, read in the bytes of the model file.
#pragma once
#include <cstddef>
#include <cstdint>

namespace hotset::cpu {

// One weight matrix W[N][K] of unsigned b-bit codes, w = (code - zero) * scale (raw layout of QMoE and MatMulNBits).
// Nothing here is aligned: mapped files put tensors at any byte. Kernels read no byte past the last code, scale or zero of a row.
struct QuantMatrix {
  const uint8_t* codes = nullptr;  // row n at codes + n * row_bytes, codes low bits first along K
  ptrdiff_t row_bytes = 0;
  const void* scales = nullptr;          // scale of (row n, block j) is element n * scale_stride + j
  ptrdiff_t scale_stride = 0;            // in elements
  int scale_type = 1;                    // ONNX element type: 1 float32, 10 float16, 16 bfloat16
  const uint8_t* zero_points = nullptr;  // packed low bits first along the blocks of a row; null: zero = 2^(bits-1)
  ptrdiff_t zero_stride = 0;             // bytes from row to row; 0: one stream along N (one zero a row), code n is row n's
  int bits = 4;                          // 2, 4 or 8
  int64_t block = 32;                    // codes a scale covers, from k = 0; block >= k: one scale a row
  int64_t n = 0, k = 0;                  // the last block of a row may be short
  // Where the first column's codes and scales of the range lie that the thread will probably multiply next, in a matrix of the same
  // form: kernels may ask the memory for them early. Never read. Null: unknown.
  const uint8_t* next_codes = nullptr;
  const void* next_scales = nullptr;
};

// A kernel family for one instruction set and one code width. Two families exist:
//   exact: float32 activations; products and sums in float32, or exact integer sums of x in fixed point (31 bits for the largest of 32
//          numbers), which come closer still
//   int8:  q = rne(x * 127 / max|x|), d = max|x| / 127 over each group of 32 elements of K, integer sums inside a group (the same
//          integers on every instruction set), y = sum of scale * d * (sum of q * code - zero * sum of q)
// A NaN or infinity in x gives NaN or infinity in the outputs of that row.
// Kernels never allocate and keep no state: any number of threads may call them.
struct QuantGemm {
  // Bytes that `prepare` writes for m rows of length k: a multiple of 64, never above m times those of one row. Only its table reads them.
  size_t (*prepared_bytes)(int64_t m, int64_t k);

  // x: m rows of k float32, row i at x + i * ldx. Writes rows [m0, m1) only, so that threads can share the work. m is that of
  // `multiply`: it selects the method.
  // `prepared` is 64-byte aligned. The rows may then be used with any matrix of the same k, bits and selected table.
  void (*prepare)(const float* x, int64_t ldx, int64_t m, int64_t k, int64_t m0, int64_t m1, void* prepared);

  // Bytes of scratch (64-byte aligned) that each thread needs in `multiply`.
  size_t (*scratch_bytes)(int64_t m, int64_t n, int64_t k);

  // y[i * ldy + j] = dot(x_i, W_j) + (bias ? bias[j] : 0) for rows i in [m0, m1) and columns j in [n0, n1) of the m x n product.
  // m is the row count of the whole product: it selects the method, so that the bits of y do not depend on how threads split
  // the ranges. Any n0 is right; multiples of 32 waste nothing. Writes no element of y outside the ranges.
  void (*multiply)(const QuantMatrix& w, const void* prepared, int64_t m, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const float* bias,
                   float* y, int64_t ldy, void* scratch);
};

// The fastest family of this CPU (see cpu_features.h) that serves the matrix; reads bits, block, k and scale_type only.
// Every matrix with bits 2, 4 or 8 is served; unusual blocks (48) by a slower table.
const QuantGemm& quant_gemm(bool int8_activations, const QuantMatrix& w);

// Name of that choice: "scalar", "avx2", "avx512", "avx512vnni" ...
const char* quant_gemm_isa(bool int8_activations, const QuantMatrix& w);

// Codes that are not raw rows of 2, 4 or 8 bits, for products of few rows of x without a conversion of the codes.
enum class Packing {
  stream3,  // a stream of 3-bit codes a row; `bits` is 4, zero points are those of codes + 4
  sm80,     // formats/sm80.h; the matrix begins with a row that is a multiple of 16 / bits, row_bytes is k * bits / 8
};
constexpr int64_t kPackedRows = 8;  // most rows m of the whole product

// Rows [m0, m1) as quant_gemm().prepare left them, columns [n0, n1), otherwise as QuantGemm::multiply. False, and nothing done, for
// activations that the kernel does not take: then the codes have to be converted.
using QuantGemmPacked = bool (*)(const QuantMatrix& w, const void* prepared, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                                 const float* bias, float* y, int64_t ldy);
// Null: this CPU has none for such a matrix.
QuantGemmPacked quant_gemm_packed(bool int8_activations, Packing packing, const QuantMatrix& w);

}  // namespace hotset::cpu
