// SPDX-License-Identifier: Apache-2.0
// One weight matrix in any form a model file stores, times prepared rows. Forms that no kernel reads are converted column
// range by column range into the scratch of the calling thread; there is never a second whole copy.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "cpu_avx/float_gemm.h"
#include "cpu_avx/quant_gemm.h"

namespace hotset::experts {

enum class Storage : uint8_t {
  dense,  // floats [n][k]
  raw,    // one stream of codes a row, low bits first
  sm80,   // the tiled stream of tensor-core kernels
};

enum class ZeroPoints : uint8_t {
  middle,   // none stored: 2^(bits-1)
  packed,   // one stream of codes a row, along its blocks
  bytes,    // one byte a block
  along_n,  // one stream for the matrix: a code a row
};

// What all matrices of one kind (FC1 of every expert) have in common.
struct MatrixForm {
  Storage storage = Storage::dense;
  ZeroPoints zero_points = ZeroPoints::middle;
  int bits = 0;                           // dense: unused, as block and row_bytes
  DType dtype = DType::undefined;         // dense: of the elements, else of the scales
  DType bias_dtype = DType::undefined;    // undefined: no bias
  int64_t n = 0, k = 0;
  int64_t block = 0;                      // codes of a row that share a scale; >= k: one scale a row
  int64_t row_bytes = 0;                  // raw: from row to row

  int64_t blocks() const { return block >= k ? 1 : (k + block - 1) / block; }
  int64_t code_bytes() const { return (k * bits + 7) / 8; }  // of a row without padding
  size_t weight_bytes() const;                               // of the whole matrix; the others likewise
  size_t scale_bytes() const;
  size_t zero_point_bytes() const;
  size_t bias_bytes() const;
};

// Where the bytes of one matrix lie. Any alignment.
struct MatrixBytes {
  const uint8_t* weights = nullptr;
  const uint8_t* scales = nullptr;
  const uint8_t* zero_points = nullptr;
  const uint8_t* bias = nullptr;
};

// The product y = x W^T + bias for one form, with the kernels of this CPU. Column ranges begin at multiples of kColumnStep.
class WeightMatrix {
 public:
  static constexpr int64_t kColumnStep = 16;

  WeightMatrix() = default;
  // int8_activations: rows are quantised; without effect on dense matrices.
  WeightMatrix(const MatrixForm& form, bool int8_activations);

  const MatrixForm& form() const { return form_; }
  const char* isa() const;

  // m rows together never need more than m times the bytes of one row.
  size_t prepared_bytes(int64_t m) const;
  // Rows [m0, m1) of m; row i is at x + i * ldx. `prepared` is 64-byte aligned.
  void prepare(const float* x, int64_t ldx, int64_t m, int64_t m0, int64_t m1, void* prepared) const;
  // Scratch of a thread for calls of up to m rows and n columns; a multiple of 64.
  size_t scratch_bytes(int64_t m, int64_t n) const;
  // Rows [m0, m1) of the m that were prepared, columns [n0, n1). Element (m0, n0) goes to y[0], rows are ldy apart.
  void multiply(const MatrixBytes& bytes, const void* prepared, int64_t m, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                float* y, int64_t ldy, void* scratch) const;

 private:
  struct Parts {
    size_t codes, zero_points, bias, kernel;  // bytes of scratch
  };
  Parts parts(int64_t m, int64_t n) const;

  MatrixForm form_;
  int kernel_bits_ = 0;  // of the codes that the kernel sees: 3-bit codes are widened to 4
  const cpu::QuantGemm* quant_ = nullptr;
  const cpu::FloatGemm* dense_ = nullptr;
};

// Columns of a job, a multiple of kColumnStep up to `most` (itself one): enough jobs for all threads to end together, none too
// small to be worth handing over. `other_jobs`: jobs over rows or matrices that each column range is multiplied by.
int64_t columns_per_job(int64_t n_columns, int64_t most, int64_t other_jobs, int n_threads, int64_t bytes_per_column);

}  // namespace hotset::experts
