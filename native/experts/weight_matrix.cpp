// SPDX-License-Identifier: Apache-2.0
// Which kernel serves a form, and the calls to it.
#include "experts/weight_matrix.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "cpu_avx/convert.h"
#include "cpu_avx/sm80_rows.h"
#include "experts/weight_staging.h"

namespace hotset::experts {
namespace {

constexpr int64_t kStagedColumns = 64;  // converted at a time: they stay in the second cache while rows are multiplied

constexpr size_t round_up_64(size_t n) { return (n + 63) & ~size_t{63}; }
size_t dtype_bytes(DType t) { return static_cast<size_t>(dtype_bits(t)) / 8; }
int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The address that makes element `offset` the first of y: kernels index rows of the whole product.
float* rebased(float* y, int64_t offset) {
  return reinterpret_cast<float*>(reinterpret_cast<uintptr_t>(y) - static_cast<uintptr_t>(offset) * sizeof(float));
}

}  // namespace

size_t MatrixForm::weight_bytes() const {
  switch (storage) {
    case Storage::dense:
      return static_cast<size_t>(n * k) * dtype_bytes(dtype);
    case Storage::raw:
      return static_cast<size_t>(n * row_bytes);
    case Storage::sm80:
      return static_cast<size_t>(n * k * bits / 8);
    case Storage::fp4_by_k:
    case Storage::fp4_by_n:
      return static_cast<size_t>(n * k / 2);
    case Storage::fp8:
      return static_cast<size_t>(n * k);
  }
  return 0;
}
size_t MatrixForm::scale_bytes() const {
  if (storage == Storage::dense || dtype == DType::undefined) return 0;
  return static_cast<size_t>((storage == Storage::fp8 ? ceil_div(n, block) : n) * blocks()) * dtype_bytes(dtype);
}
size_t MatrixForm::zero_point_bytes() const {
  switch (zero_points) {
    case ZeroPoints::middle:
      return 0;
    case ZeroPoints::packed:
      return static_cast<size_t>(n * stream_bytes(blocks(), bits));
    case ZeroPoints::bytes:
      return static_cast<size_t>(n * blocks());
    case ZeroPoints::along_n:
      return static_cast<size_t>(stream_bytes(n, bits));
  }
  return 0;
}
size_t MatrixForm::bias_bytes() const { return bias_dtype == DType::undefined ? 0 : static_cast<size_t>(n) * dtype_bytes(bias_dtype); }

WeightMatrix::WeightMatrix(const MatrixForm& form, bool int8_activations) : form_(form) {
  if (form.storage == Storage::dense || form.storage == Storage::fp8) {
    dense_ = &cpu::float_gemm();
    isa_ = dense_->name;
    return;
  }
  kernel_bits_ = form.is_fp4() ? 8 : form.bits == 3 ? 4 : form.bits;
  cpu::QuantMatrix w;
  w.bits = kernel_bits_;
  w.block = form.block;
  w.n = form.n;
  w.k = form.k;
  w.scale_type = static_cast<int>(form.is_fp4() ? DType::f32 : form.dtype);
  quant_ = &cpu::quant_gemm(int8_activations, w);
  isa_ = cpu::quant_gemm_isa(int8_activations, w);
}

size_t WeightMatrix::prepared_bytes(int64_t m) const {
  return dense_ ? round_up_64(static_cast<size_t>(m * form_.k) * sizeof(float)) : quant_->prepared_bytes(m, form_.k);
}

void WeightMatrix::prepare(const float* x, int64_t ldx, int64_t m, int64_t m0, int64_t m1, void* prepared) const {
  if (!dense_) return quant_->prepare(x, ldx, m, form_.k, m0, m1, prepared);
  for (int64_t i = m0; i < m1 && form_.k > 0; ++i)
    std::memcpy(static_cast<float*>(prepared) + i * form_.k, x + i * ldx, static_cast<size_t>(form_.k) * sizeof(float));
}

WeightMatrix::Parts WeightMatrix::parts(int64_t m, int64_t n) const {
  Parts p{};
  if (form_.storage == Storage::fp8)
    p.weights = round_up_64(static_cast<size_t>(n * form_.k) * sizeof(float));
  else if (stages_weights())
    p.weights = round_up_64(static_cast<size_t>(n * stream_bytes(form_.k, kernel_bits_)));
  if (form_.is_fp4()) p.scales = round_up_64(static_cast<size_t>(n * form_.blocks()) * sizeof(float));
  const bool stages_zero_points = form_.zero_points == ZeroPoints::bytes || form_.zero_points == ZeroPoints::along_n ||
                                  (form_.zero_points == ZeroPoints::packed && form_.bits == 3);
  if (stages_zero_points) p.zero_points = round_up_64(static_cast<size_t>(n * stream_bytes(form_.blocks(), kernel_bits_)));
  if (form_.bias_dtype != DType::undefined) p.bias = round_up_64(static_cast<size_t>(n) * sizeof(float));
  p.kernel = round_up_64(dense_ ? dense_->scratch_bytes(m, n, form_.k) : quant_->scratch_bytes(m, n, form_.k));
  return p;
}

size_t WeightMatrix::scratch_bytes(int64_t m, int64_t n) const {
  const Parts p = parts(m, stages_weights() ? std::min(n, kStagedColumns) : n);
  return p.weights + p.scales + p.zero_points + p.bias + p.kernel;
}

void WeightMatrix::multiply(const MatrixBytes& bytes, const void* prepared, int64_t m, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                            float* y, int64_t ldy, void* scratch) const {
  assert(0 <= n0 && n1 <= form_.n && m1 <= m);
  const int64_t step = stages_weights() ? kStagedColumns : n1 - n0;
  for (int64_t n = n0; n < n1; n += step)
    multiply_range(bytes, prepared, m, m0, m1, n, std::min(n1, n + step), y + (n - n0), ldy, static_cast<uint8_t*>(scratch));
}

void WeightMatrix::multiply_range(const MatrixBytes& bytes, const void* prepared, int64_t m, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                                  float* y, int64_t ldy, uint8_t* scratch) const {
  const int64_t n = n1 - n0, blocks = form_.blocks();
  const Parts p = parts(m, n);
  uint8_t* const weights = scratch;
  float* const scales = reinterpret_cast<float*>(weights + p.weights);
  uint8_t* const zero_points = weights + p.weights + p.scales;
  float* const bias_space = reinterpret_cast<float*>(zero_points + p.zero_points);
  void* const kernel_scratch = reinterpret_cast<uint8_t*>(bias_space) + p.bias;

  const float* bias = nullptr;
  if (form_.bias_dtype != DType::undefined) {
    const uint8_t* const at = bytes.bias + n0 * static_cast<int64_t>(dtype_bytes(form_.bias_dtype));
    if (form_.bias_dtype == DType::f32 && reinterpret_cast<uintptr_t>(at) % alignof(float) == 0) {
      bias = reinterpret_cast<const float*>(at);
    } else {
      cpu::to_f32(form_.bias_dtype, at, bias_space, n);
      bias = bias_space;
    }
  }
  y = rebased(y, m0 * ldy);

  if (dense_) {
    cpu::FloatMatrix w;
    if (form_.storage == Storage::fp8) {
      fp8_to_floats(form_, bytes, n0, n1, reinterpret_cast<float*>(weights));
      w.data = weights;
    } else {
      w.data = bytes.weights + n0 * form_.k * static_cast<int64_t>(dtype_bytes(form_.dtype));
      w.dtype = static_cast<int>(form_.dtype);
    }
    w.n = n;
    w.k = form_.k;
    w.stride_n = form_.k;
    w.stride_k = 1;
    dense_->multiply(w, static_cast<const float*>(prepared), form_.k, m0, m1, 0, n, bias, y, ldy, kernel_scratch);
    return;
  }

  cpu::QuantMatrix w;
  w.bits = kernel_bits_;
  w.block = form_.block;
  w.n = n;
  w.k = form_.k;
  w.scale_stride = blocks;
  if (stages_weights()) {
    w.codes = weights;
    w.row_bytes = stream_bytes(form_.k, kernel_bits_);
  } else {
    w.codes = bytes.weights + n0 * form_.row_bytes;
    w.row_bytes = form_.row_bytes;
  }
  if (form_.is_fp4()) {
    w.scales = scales;
    fp4_to_codes(form_, bytes, n0, n1, weights, scales);
  } else {
    w.scale_type = static_cast<int>(form_.dtype);
    w.scales = bytes.scales + n0 * blocks * static_cast<int64_t>(dtype_bytes(form_.dtype));
    if (form_.storage == Storage::sm80) {
      cpu::sm80_rows(bytes.weights, form_.bits, form_.n, form_.k, n0, n1, weights, w.row_bytes);
    } else if (form_.bits == 3) {
      for (int64_t i = 0; i < n; ++i) widen_3_to_4(bytes.weights + (n0 + i) * form_.row_bytes, form_.k, weights + i * w.row_bytes);
    }
  }

  const int64_t zero_row = stream_bytes(blocks, form_.bits), kernel_zero_row = stream_bytes(blocks, kernel_bits_);  // bytes of a row
  switch (form_.zero_points) {
    case ZeroPoints::middle:
      break;
    case ZeroPoints::packed:
      w.zero_points = bytes.zero_points + n0 * zero_row;
      w.zero_stride = zero_row;
      if (form_.bits != 3) break;
      for (int64_t i = 0; i < n; ++i) widen_3_to_4(w.zero_points + i * zero_row, blocks, zero_points + i * kernel_zero_row);
      w.zero_points = zero_points;
      w.zero_stride = kernel_zero_row;
      break;
    case ZeroPoints::bytes:
      for (int64_t i = 0; i < n; ++i) pack_bytes_to_4(bytes.zero_points + (n0 + i) * blocks, blocks, zero_points + i * kernel_zero_row);
      w.zero_points = zero_points;
      w.zero_stride = kernel_zero_row;
      break;
    case ZeroPoints::along_n:
      copy_codes(bytes.zero_points, form_.bits, n0, n, zero_points);  // the range may begin inside a byte
      w.zero_points = zero_points;
      break;
  }
  quant_->multiply(w, prepared, m, m0, m1, 0, n, bias, y, ldy, kernel_scratch);
}

int64_t columns_per_job(int64_t n_columns, int64_t most, int64_t other_jobs, int n_threads, int64_t bytes_per_column) {
  constexpr int64_t kMinBytesPerJob = 12 << 10, kJobsPerThread = 4, kStep = WeightMatrix::kColumnStep;
  const int64_t wanted_jobs = n_threads == 1 ? 1 : kJobsPerThread * n_threads;
  const int64_t by_threads = n_columns * other_jobs / wanted_jobs;
  const int64_t by_bytes = kMinBytesPerJob / std::max<int64_t>(bytes_per_column, 1);
  const int64_t columns = std::clamp<int64_t>(std::max(by_threads, by_bytes), 1, most);
  return std::min((columns + kStep - 1) / kStep * kStep, most);
}

}  // namespace hotset::experts
