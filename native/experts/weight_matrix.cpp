// SPDX-License-Identifier: Apache-2.0
// Which kernel serves a form, and the calls to it.
#include "experts/weight_matrix.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "cpu_avx/convert.h"
#include "cpu_avx/sm80_rows.h"
#include "cpu_avx/weight_rows.h"
#include "experts/weight_staging.h"

namespace hotset::experts {
namespace {

// Converted at a time: they stay in a near cache while rows are multiplied. Columns packed along N come in lines of 128.
constexpr int64_t kStagedColumns = 64, kTransposedColumns = 256;

constexpr size_t round_up_64(size_t n) { return (n + 63) & ~size_t{63}; }
size_t dtype_bytes(DType t) { return static_cast<size_t>(dtype_bits(t)) / 8; }
int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The address that makes element `offset` the first of p: kernels index rows and columns of the whole product.
template <class T>
T* rebased(T* p, int64_t offset) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(p) - static_cast<uintptr_t>(offset) * sizeof(T));
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
  return static_cast<size_t>(ceil_div(n, scale_rows) * blocks()) * dtype_bytes(dtype);
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

// One call of a kernel: rows [m0, m1) of m by columns [n0, n1), element (0, n0) at y[0].
struct WeightMatrix::Range {
  const void* prepared;
  int64_t m, m0, m1, n0, n1;
  float* y;
  int64_t ldy;
  uint8_t *codes, *zero_points, *kernel;  // parts of the scratch
  float *floats, *bias_space;
  NextColumns next;

  int64_t n() const { return n1 - n0; }
};

WeightMatrix::WeightMatrix(const MatrixForm& form, bool int8_activations) : form_(form) {
  if (is_minifloat()) {
    mini_ = &cpu::minifloat_gemm(int8_activations && form.is_fp4());
    rounds_ = int8_activations && form.storage == Storage::fp8;
    if (form.storage == Storage::fp4_by_n) by_n_ = cpu::minifloat_columns(int8_activations);
    if (!int8_activations || rounds_) dense_ = &cpu::float_gemm();
    isa_ = mini_->name;
    return;
  }
  if (form.storage == Storage::dense) {
    dense_ = &cpu::float_gemm();
    isa_ = dense_->name;
    return;
  }
  kernel_bits_ = form.bits == 3 ? 4 : form.bits;
  cpu::QuantMatrix w;
  w.bits = kernel_bits_;
  w.block = form.block;
  w.n = form.n;
  w.k = form.k;
  w.scale_type = static_cast<int>(form.dtype);
  quant_ = &cpu::quant_gemm(int8_activations, w);
  isa_ = cpu::quant_gemm_isa(int8_activations, w);
  if (stages_codes()) packed_ = cpu::quant_gemm_packed(int8_activations, form.bits == 3 ? cpu::Packing::stream3 : cpu::Packing::sm80, w);
}

size_t WeightMatrix::prepared_bytes(int64_t m) const {
  if (quant_) return quant_->prepared_bytes(m, form_.k);
  const size_t plain = dense_ ? round_up_64(static_cast<size_t>(form_.k) * sizeof(float)) : 0;
  if (!mini_) return round_up_64(static_cast<size_t>(m * form_.k) * sizeof(float));
  const size_t by_n = by_n_ ? by_n_->prepared_bytes(1, form_.k) : 0;
  return static_cast<size_t>(m) * std::max({plain, by_n, mini_->prepared_bytes(form_.is_fp4() ? 4 : 8, 1, form_.k)});
}

void WeightMatrix::prepare(const float* x, int64_t ldx, int64_t m, int64_t m0, int64_t m1, void* prepared) const {
  if (quant_) return quant_->prepare(x, ldx, m, form_.k, m0, m1, prepared);
  if (walks_columns(m)) return by_n_->prepare(x, ldx, form_.k, m0, m1, prepared);
  if (mini_ && !needs_floats(m)) return mini_->prepare(form_.is_fp4() ? 4 : 8, rounds_, x, ldx, form_.k, m0, m1, prepared);
  for (int64_t i = m0; i < m1 && form_.k > 0; ++i) {
    float* const row = static_cast<float*>(prepared) + i * form_.k;
    if (rounds_)
      cpu::round_to_int8(x + i * ldx, form_.k, row);
    else
      std::memcpy(row, x + i * ldx, static_cast<size_t>(form_.k) * sizeof(float));
  }
}

int64_t WeightMatrix::columns_at_once(int64_t m, int64_t n) const {
  if (walks_columns(m)) return n;
  if (needs_floats(m)) return std::min(n, kStagedColumns);
  if (form_.storage == Storage::fp4_by_n) return std::min(n, kTransposedColumns);
  // As many as kernels take at once when each is used but a few times; 8 columns of 2-bit codes are tiled together.
  const int64_t columns = m > kDirectRows || packed_ ? kStagedColumns : form_.bits == 2 ? 8 : 4;
  return stages_codes() ? std::min(n, columns) : n;
}

// Transposed rows lie an odd number of cache lines apart, so that one place of many rows does not fall into few cache sets.
int64_t WeightMatrix::staged_row_bytes() const {
  if (form_.storage == Storage::fp4_by_n) return static_cast<int64_t>(round_up_64(static_cast<size_t>(form_.k / 2)) | 64);
  return stream_bytes(form_.k, kernel_bits_);
}

WeightMatrix::Parts WeightMatrix::parts(int64_t m, int64_t n) const {
  Parts p{};
  if (walks_columns(m)) p.kernel = by_n_->scratch_bytes(m, n);
  if (stages_codes() && !walks_columns(m)) p.codes = round_up_64(static_cast<size_t>(n * staged_row_bytes()));
  if (needs_floats(m)) p.floats = round_up_64(static_cast<size_t>(n * form_.k) * sizeof(float));
  const bool stages_zero_points = form_.zero_points == ZeroPoints::bytes || form_.zero_points == ZeroPoints::along_n ||
                                  (form_.zero_points == ZeroPoints::packed && form_.bits == 3);
  if (stages_zero_points) p.zero_points = round_up_64(static_cast<size_t>(n * stream_bytes(form_.blocks(), kernel_bits_)));
  if (form_.bias_dtype != DType::undefined) p.bias = round_up_64(static_cast<size_t>(n) * sizeof(float));
  if (quant_) p.kernel = round_up_64(quant_->scratch_bytes(m, n, form_.k));
  if (dense_ && (!mini_ || needs_floats(m))) p.kernel = round_up_64(dense_->scratch_bytes(m, n, form_.k));
  return p;
}

size_t WeightMatrix::scratch_bytes(int64_t m, int64_t n) const {
  // Fewer rows may go another way.
  size_t most = 0;
  for (const int64_t rows : {m, std::min(m, kDirectRows)}) {
    const Parts p = parts(rows, columns_at_once(rows, n));
    most = std::max(most, p.codes + p.floats + p.zero_points + p.bias + p.kernel);
  }
  return most;
}

void WeightMatrix::multiply(const MatrixBytes& bytes, const void* prepared, int64_t m, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                            float* y, int64_t ldy, void* scratch, const NextColumns& next) const {
  assert(0 <= n0 && n1 <= form_.n && m1 <= m);
  const int64_t step = columns_at_once(m, n1 - n0);
  const Parts p = parts(m, step);
  Range r;
  r.prepared = prepared;
  r.m = m;
  r.m0 = m0;
  r.m1 = m1;
  r.ldy = ldy;
  r.codes = static_cast<uint8_t*>(scratch);
  r.floats = reinterpret_cast<float*>(r.codes + p.codes);
  r.zero_points = r.codes + p.codes + p.floats;
  r.bias_space = reinterpret_cast<float*>(r.zero_points + p.zero_points);
  r.kernel = r.zero_points + p.zero_points + p.bias;
  for (int64_t n = n0; n < n1; n += step) {
    r.n0 = n;
    r.n1 = std::min(n1, n + step);
    r.y = rebased(y + (n - n0), m0 * ldy);
    r.next = r.n1 < n1 ? NextColumns{&bytes, r.n1} : next;
    if (quant_)
      multiply_codes(bytes, r);
    else if (mini_)
      multiply_minifloats(bytes, r);
    else
      multiply_dense(bytes, r);
  }
}

// The bias of columns n0 ... n1 - 1, null without one.
const float* WeightMatrix::floats_of_bias(const MatrixBytes& bytes, const Range& r) const {
  if (form_.bias_dtype == DType::undefined) return nullptr;
  const uint8_t* const at = bytes.bias + r.n0 * static_cast<int64_t>(dtype_bytes(form_.bias_dtype));
  if (form_.bias_dtype == DType::f32 && reinterpret_cast<uintptr_t>(at) % alignof(float) == 0) return reinterpret_cast<const float*>(at);
  cpu::to_f32(form_.bias_dtype, at, r.bias_space, r.n());
  return r.bias_space;
}

void WeightMatrix::multiply_dense(const MatrixBytes& bytes, const Range& r) const {
  cpu::FloatMatrix w;
  w.data = bytes.weights + r.n0 * form_.k * static_cast<int64_t>(dtype_bytes(form_.dtype));
  w.dtype = static_cast<int>(form_.dtype);
  w.n = r.n();
  w.k = w.stride_n = form_.k;
  w.stride_k = 1;
  dense_->multiply(w, static_cast<const float*>(r.prepared), form_.k, r.m0, r.m1, 0, r.n(), floats_of_bias(bytes, r), r.y, r.ldy, r.kernel);
}

void WeightMatrix::multiply_minifloats(const MatrixBytes& bytes, const Range& r) const {
  cpu::MinifloatMatrix w = minifloats(form_, bytes);
  const float* const bias = floats_of_bias(bytes, r);
  if (walks_columns(r.m)) {
    w.codes = bytes.weights;
    w.row_bytes = form_.n / 2;
    by_n_->multiply(w, r.prepared, r.m0, r.m1, r.n0, r.n1, bias ? rebased(bias, r.n0) : nullptr, rebased(r.y, r.n0), r.ldy, r.kernel);
    return;
  }
  if (form_.storage == Storage::fp4_by_n) {
    const int64_t row_bytes = staged_row_bytes();
    cpu::weight_rows().transpose_nibbles(bytes.weights + r.n0 / 2, form_.n / 2, r.n(), form_.k, r.codes, row_bytes);
    w.codes = rebased(r.codes, r.n0 * row_bytes);
    w.row_bytes = row_bytes;
  }
  if (!needs_floats(r.m)) {
    mini_->multiply(w, r.prepared, r.m0, r.m1, r.n0, r.n1, bias ? rebased(bias, r.n0) : nullptr, rebased(r.y, r.n0), r.ldy);
    return;
  }
  for (int64_t n = r.n0; n < r.n1; ++n) mini_->to_floats(w, n, r.floats + (n - r.n0) * form_.k);
  cpu::FloatMatrix floats;
  floats.data = r.floats;
  floats.n = r.n();
  floats.k = floats.stride_n = form_.k;
  floats.stride_k = 1;
  dense_->multiply(floats, static_cast<const float*>(r.prepared), form_.k, r.m0, r.m1, 0, r.n(), bias, r.y, r.ldy, r.kernel);
}

void WeightMatrix::multiply_codes(const MatrixBytes& bytes, const Range& r) const {
  const int64_t n = r.n(), blocks = form_.blocks();
  cpu::QuantMatrix w;
  w.bits = kernel_bits_;
  w.block = form_.block;
  w.n = n;
  w.k = form_.k;
  w.scale_type = static_cast<int>(form_.dtype);
  w.scales = bytes.scales + r.n0 * blocks * static_cast<int64_t>(dtype_bytes(form_.dtype));
  w.scale_stride = blocks;
  w.row_bytes = form_.row_bytes;
  if (form_.storage == Storage::sm80) w.row_bytes = form_.k * form_.bits / 8;
  w.codes = bytes.weights + r.n0 * w.row_bytes;
  if (r.next.bytes && form_.storage == Storage::raw) {
    w.next_codes = r.next.bytes->weights + r.next.n0 * w.row_bytes;
    w.next_scales = r.next.bytes->scales + r.next.n0 * blocks * static_cast<int64_t>(dtype_bytes(form_.dtype));
  }
  stage_zero_points(bytes, r, &w);
  const float* const bias = floats_of_bias(bytes, r);
  const bool at_tile = form_.storage != Storage::sm80 || r.n0 % (16 / form_.bits) == 0;
  if (packed_ && r.m <= kDirectRows && at_tile && packed_(w, r.prepared, r.m0, r.m1, 0, n, bias, r.y, r.ldy)) return;
  if (stages_codes()) stage_codes(bytes, r, &w);
  quant_->multiply(w, r.prepared, r.m, r.m0, r.m1, 0, n, bias, r.y, r.ldy, r.kernel);
}

// Raw rows of the range, of a width that kernels read.
void WeightMatrix::stage_codes(const MatrixBytes& bytes, const Range& r, cpu::QuantMatrix* w) const {
  w->codes = r.codes;
  w->next_codes = nullptr;
  w->row_bytes = staged_row_bytes();
  if (form_.storage == Storage::sm80) return cpu::sm80_rows(bytes.weights, form_.bits, form_.n, form_.k, r.n0, r.n1, r.codes, w->row_bytes);
  for (int64_t i = 0; i < r.n(); ++i)
    cpu::weight_rows().widen_3_to_4(bytes.weights + (r.n0 + i) * form_.row_bytes, form_.k, r.codes + i * w->row_bytes);
}

// Zero points of the range in the form of QuantMatrix.
void WeightMatrix::stage_zero_points(const MatrixBytes& bytes, const Range& r, cpu::QuantMatrix* w) const {
  const int64_t n = r.n(), blocks = form_.blocks();
  const int64_t zero_row = stream_bytes(blocks, form_.bits), kernel_zero_row = stream_bytes(blocks, kernel_bits_);  // bytes of a row
  const uint8_t* const zeros = bytes.zero_points;
  switch (form_.zero_points) {
    case ZeroPoints::middle:
      break;
    case ZeroPoints::packed:
      w->zero_points = zeros + r.n0 * zero_row;
      w->zero_stride = zero_row;
      if (form_.bits != 3) break;
      for (int64_t i = 0; i < n; ++i)
        cpu::weight_rows().widen_3_to_4(zeros + (r.n0 + i) * zero_row, blocks, r.zero_points + i * kernel_zero_row);
      w->zero_points = r.zero_points;
      w->zero_stride = kernel_zero_row;
      break;
    case ZeroPoints::bytes:
      for (int64_t i = 0; i < n; ++i) pack_bytes_to_4(zeros + (r.n0 + i) * blocks, blocks, r.zero_points + i * kernel_zero_row);
      w->zero_points = r.zero_points;
      w->zero_stride = kernel_zero_row;
      break;
    case ZeroPoints::along_n:
      copy_codes(zeros, form_.bits, r.n0, n, r.zero_points);  // the range may begin inside a byte
      w->zero_points = r.zero_points;
      break;
  }
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
