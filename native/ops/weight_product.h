// SPDX-License-Identifier: Apache-2.0
// Y = A W^T + bias for one stored weight matrix: the plan of the workspace and the jobs that MatMulNBits and its kin share.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu_avx/convert.h"
#include "experts/weight_matrix.h"
#include "ops/op.h"

namespace hotset::ops {

// The kernel and the places in the workspace for m rows of A in a type:
//   float_a [m][K] unless A itself can be read | extra, for the caller | prepared rows
//   scratch [threads]: tile when Y is not float32, then what the product (or the caller) needs
class WeightProduct {
 public:
  // changes_rows: the caller writes its own rows. tile_bytes: scratch of the caller's `tile`.
  WeightProduct(const experts::MatrixForm& form, bool int8, DType dtype, int64_t m, int n_threads, bool changes_rows = false,
                size_t extra_bytes = 0, size_t tile_bytes = 0)
      : matrix_(form, int8), m_(m), copies_(changes_rows || dtype != DType::f32) {
    constexpr int64_t kStep = experts::WeightMatrix::kColumnStep, kColumnsPerJob = 512;
    columns_ = std::min((form.n + kStep - 1) / kStep * kStep, kColumnsPerJob);
    const size_t rows = static_cast<size_t>(m);
    extra_ = round_up_64(copies_ ? rows * static_cast<size_t>(form.k) * sizeof(float) : 0);
    prepared_ = extra_ + round_up_64(extra_bytes);
    scratch_ = prepared_ + round_up_64(matrix_.prepared_bytes(m));
    tile_ = dtype == DType::f32 ? 0 : round_up_64(static_cast<size_t>(std::min(m, kRowsPerJob) * columns_) * sizeof(float));
    scratch_bytes_ = tile_ + round_up_64(std::max(matrix_.scratch_bytes(m, columns_), tile_bytes));
    workspace_ = scratch_ + scratch_bytes_ * static_cast<size_t>(n_threads);
  }

  const experts::WeightMatrix& matrix() const { return matrix_; }
  size_t workspace() const { return workspace_; }
  size_t packing() const { return workspace_ - scratch_; }  // of that, scratch of threads
  void* extra(void* workspace) const { return static_cast<uint8_t*>(workspace) + extra_; }

  // rows(x, copy, m0, m1): x has the rows of A as floats, `copy` is the same memory or, when A was read in place, null.
  // tile(y, ldy, m0, m1, n0, n1, scratch): y[0] is element (m0, n0) of the product in floats, before it is rounded.
  template <class Rows, class Tile>
  void run(const RunContext& context, const experts::MatrixBytes& bytes, const Rows& rows, const Tile& tile) const {
    const Tensor &a = *context.input(0), &y = *context.output(0);
    const int64_t n = matrix_.form().n, k = matrix_.form().k;
    uint8_t* const space = static_cast<uint8_t*>(context.workspace);
    const size_t io = static_cast<size_t>(dtype_bits(a.dtype)) / 8;
    void* const prepared = space + prepared_;
    const auto prepare = [&](int64_t m0, int64_t m1) {
      const float* x = a.as<const float>();
      float* copy = nullptr;
      if (copies_) {
        copy = reinterpret_cast<float*>(space);
        cpu::to_f32(a.dtype, a.as<const uint8_t>() + static_cast<size_t>(m0 * k) * io, copy + m0 * k, (m1 - m0) * k);
        x = copy;
      }
      rows(x, copy, m0, m1);
      matrix_.prepare(x, k, m_, m0, m1, prepared);
    };
    constexpr int64_t kRows = 8, kInlineFloats = 24 << 10;  // fewer are prepared by the caller rather than by a region of their own
    if (m_ * k <= kInlineFloats)
      prepare(0, m_);
    else
      context.pool->parallel_for((m_ + kRows - 1) / kRows, [&](int64_t i, int) { prepare(i * kRows, std::min(m_, (i + 1) * kRows)); });

    const int64_t row_jobs = (m_ + kRowsPerJob - 1) / kRowsPerJob, column_bytes = static_cast<int64_t>(matrix_.form().weight_bytes()) / n;
    const int64_t step = experts::columns_per_job(n, columns_, row_jobs, context.pool->size(), column_bytes);
    context.pool->parallel_for(row_jobs * ((n + step - 1) / step), [&](int64_t i, int thread) {
      const int64_t m0 = i % row_jobs * kRowsPerJob, m1 = std::min(m_, m0 + kRowsPerJob);
      const int64_t n0 = i / row_jobs * step, n1 = std::min(n, n0 + step);
      uint8_t* const scratch = space + scratch_ + static_cast<size_t>(thread) * scratch_bytes_;
      const bool in_place = y.dtype == DType::f32;
      float* const out = in_place ? y.as<float>() + m0 * n + n0 : reinterpret_cast<float*>(scratch);
      const int64_t ld = in_place ? n : n1 - n0;
      matrix_.multiply(bytes, prepared, m_, m0, m1, n0, n1, out, ld, scratch + tile_);
      tile(out, ld, m0, m1, n0, n1, scratch + tile_);
      for (int64_t row = m0; row < m1 && !in_place; ++row)
        cpu::from_f32(y.dtype, out + (row - m0) * ld, y.as<uint8_t>() + static_cast<size_t>(row * n + n0) * io, n1 - n0);
    });
  }

 private:
  static constexpr int64_t kRowsPerJob = 256;
  static constexpr size_t round_up_64(size_t n) { return (n + 63) & ~size_t{63}; }

  experts::WeightMatrix matrix_;
  int64_t m_, columns_;  // most columns of a job
  bool copies_;
  size_t extra_, prepared_, scratch_, tile_, scratch_bytes_, workspace_;
};

// Every product is empty: Y is the bias, or zero. Y is [rows][n].
inline void fill_with_bias(const Tensor* bias, const Tensor& y, int64_t rows, int64_t n) {
  if (y.bytes() > 0) std::memset(y.data, 0, y.bytes());
  for (int64_t i = 0; bias && i < rows * n; ++i) {
    float value;
    cpu::to_f32(bias->dtype, bias->as<const uint8_t>() + i % n * dtype_bits(bias->dtype) / 8, &value, 1);
    cpu::from_f32(y.dtype, &value, y.as<uint8_t>() + i * dtype_bits(y.dtype) / 8, 1);
  }
}

inline bool is_activation_type(DType t) { return t == DType::f32 || t == DType::f16 || t == DType::bf16; }

}  // namespace hotset::ops
