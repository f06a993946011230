// SPDX-License-Identifier: Apache-2.0
// One weight matrix in any form a model file stores, times prepared rows. Forms that no kernel reads are converted a few
// columns at a time into the scratch of the calling thread; there is never a second whole copy.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "cpu_avx/float_gemm.h"
#include "cpu_avx/minifloat_columns.h"
#include "cpu_avx/minifloat_gemm.h"
#include "cpu_avx/quant_gemm.h"

namespace hotset::experts {

enum class Storage : uint8_t {
  dense,     // floats [n][k]
  raw,       // integers: one stream of codes a row, low bits first
  sm80,      // integers: the tiled stream of tensor-core kernels
  fp4_by_k,  // E2M1 [n][k / 2], even k in the low half of a byte
  fp4_by_n,  // E2M1 [k][n / 2], even n in the low half of a byte
  fp8,       // E4M3 [n][k]
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
  int bits = 0;                         // of integer codes
  DType dtype = DType::undefined;       // dense: of the elements, else of the scales; fp8 without scales: undefined
  DType bias_dtype = DType::undefined;  // undefined: no bias
  int64_t n = 0, k = 0;
  int64_t block = 0;       // codes of a row that share a scale, >= k: one scale a row
  int64_t scale_rows = 1;  // rows that share their scales: the side of a square of fp8 weights
  int64_t row_bytes = 0;   // raw: from row to row

  int64_t blocks() const { return block <= 0 || block >= k ? 1 : (k + block - 1) / block; }
  bool is_integer() const { return storage == Storage::raw || storage == Storage::sm80; }
  bool is_fp4() const { return storage == Storage::fp4_by_k || storage == Storage::fp4_by_n; }
  size_t weight_bytes() const;  // of the whole matrix; the others likewise
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
  float global_scale = 1;  // of fp4 and fp8
};

// Columns from n0 on of a matrix of the same form that the calling thread will probably multiply next: kernels ask the memory for their
// first bytes early. Null: unknown.
struct NextColumns {
  const MatrixBytes* bytes = nullptr;
  int64_t n0 = 0;
};

// The product y = x W^T + bias for one form, with the kernels of this CPU.
class WeightMatrix {
 public:
  static constexpr int64_t kUsualColumns = 256;
  static constexpr int64_t kColumnStep = 16;  // ranges of columns that begin at its multiples share no cache line of y

  WeightMatrix() = default;
  // int8_activations: rows are quantised to int8 q with a scale d for each 32; without effect on dense matrices. fp8 codes meet the
  // floats q * d, all others the integers.
  WeightMatrix(const MatrixForm& form, bool int8_activations);

  const MatrixForm& form() const { return form_; }
  const char* isa() const { return isa_; }

  // Most columns that a job should take when up to m rows meet matrices of this form. Files that run along N are read in long runs
  // only by wide jobs.
  int64_t columns_of_job(int64_t m) const { return by_n_ && m <= 8 * kDirectRows ? 2048 : kUsualColumns; }

  // m rows together never need more than m times the bytes of one row.
  size_t prepared_bytes(int64_t m) const;
  // Rows [m0, m1) of m; row i is at x + i * ldx. `prepared` is 64-byte aligned.
  void prepare(const float* x, int64_t ldx, int64_t m, int64_t m0, int64_t m1, void* prepared) const;
  // Scratch of a thread for calls of up to m rows and n columns; a multiple of 64.
  size_t scratch_bytes(int64_t m, int64_t n) const;
  // Rows [m0, m1) of the m that were prepared, columns [n0, n1); n0 and n1 are even for fp4_by_n. Element (m0, n0) goes to y[0], rows
  // are ldy apart.
  void multiply(const MatrixBytes& bytes, const void* prepared, int64_t m, int64_t m0, int64_t m1, int64_t n0, int64_t n1, float* y,
                int64_t ldy, void* scratch, const NextColumns& next = {}) const;

 private:
  // Parts of the scratch: codes, floats, zero points and bias in the form of the kernel, then its own scratch.
  struct Parts {
    size_t codes, floats, zero_points, bias, kernel;
  };
  struct Range;  // one call of a kernel
  Parts parts(int64_t m, int64_t n) const;
  bool is_minifloat() const { return form_.is_fp4() || form_.storage == Storage::fp8; }
  bool stages_codes() const { return form_.storage == Storage::sm80 || form_.storage == Storage::fp4_by_n || form_.bits == 3; }
  // Few rows of x meet minifloats as they are. Many are worth the floats of a few columns.
  bool needs_floats(int64_t m) const { return is_minifloat() && dense_ && m > kDirectRows; }
  // Along N, few rows meet the bytes as they are; otherwise columns are transposed.
  bool walks_columns(int64_t m) const { return by_n_ && m <= kDirectRows; }
  int64_t columns_at_once(int64_t m, int64_t n) const;
  int64_t staged_row_bytes() const;
  void multiply_dense(const MatrixBytes& bytes, const Range& r) const;
  void multiply_minifloats(const MatrixBytes& bytes, const Range& r) const;
  void multiply_codes(const MatrixBytes& bytes, const Range& r) const;
  void stage_codes(const MatrixBytes& bytes, const Range& r, cpu::QuantMatrix* w) const;
  void stage_zero_points(const MatrixBytes& bytes, const Range& r, cpu::QuantMatrix* w) const;
  const float* floats_of_bias(const MatrixBytes& bytes, const Range& r) const;

  static constexpr int64_t kDirectRows = 8;
  static_assert(kDirectRows == cpu::kPackedRows);

  MatrixForm form_;
  int kernel_bits_ = 0;  // of the codes that the kernel sees
  const char* isa_ = "";
  bool rounds_ = false;                          // fp8 with int8 activations
  const cpu::QuantGemm* quant_ = nullptr;        // of integers
  cpu::QuantGemmPacked packed_ = nullptr;        // of sm80 and 3-bit codes and few rows, where the CPU has it
  const cpu::MinifloatGemm* mini_ = nullptr;     // of fp4 and fp8
  const cpu::MinifloatColumns* by_n_ = nullptr;  // of fp4 along N, where the CPU has them
  const cpu::FloatGemm* dense_ = nullptr;        // of floats, and of many rows with exact activations by fp4 and fp8
};

// Columns of a job, a multiple of kColumnStep up to `most` (itself one): enough jobs for all threads to end together, none too
// small to be worth handing over. `other_jobs`: jobs over rows or matrices that each column range is multiplied by.
int64_t columns_per_job(int64_t n_columns, int64_t most, int64_t other_jobs, int n_threads, int64_t bytes_per_column);

}  // namespace hotset::experts
