// SPDX-License-Identifier: Apache-2.0
// Choice and launch of the dense product kernels.
#include "cuda/matmul.h"

#include <algorithm>

#include "cuda/cublaslt.h"
#include "cuda/matmul_params.h"

namespace hotset::cuda {
namespace {

constexpr int kMostGemvRows = 8, kGemvThreads = 256;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
bool aligned_16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }
int element_bytes(DType type) { return type == DType::f32 ? 4 : 2; }
const char* suffix(DType type) { return type == DType::f32 ? "f32" : type == DType::f16 ? "f16" : "bf16"; }

MatMulParams parameters(const MatMulCall& c) {
  MatMulParams p = {};
  p.a = c.a;
  p.b = c.b;
  p.c = c.c;
  p.addend = c.bias;
  p.addend_type = static_cast<int32_t>(c.bias_type);
  p.addend_row = c.bias_row;
  p.addend_column = c.bias_column;
  p.a_row = c.trans_a ? 1 : c.k;
  p.a_column = c.trans_a ? c.m : 1;
  p.b_row = c.trans_b ? 1 : c.n;
  p.b_column = c.trans_b ? c.k : 1;
  p.ldc = c.ldc ? c.ldc : c.n;
  p.a_batch = c.a_batch;
  p.b_batch = c.b_batch;
  p.c_batch = c.m * p.ldc;
  p.m = static_cast<int32_t>(c.m);
  p.n = static_cast<int32_t>(c.n);
  p.k = static_cast<int32_t>(c.k);
  p.batch = static_cast<int32_t>(c.batch);
  p.alpha = c.alpha;
  p.beta = c.beta;
  p.b_ready = c.b_ready ? 1 : 0;
  return p;
}

int gemv_rows(const MatMulCall& c) { return c.m <= 1 ? 1 : c.m <= 2 ? 2 : c.m <= 4 ? 4 : 8; }

// How hotset_matmul_columns cuts a product: wide runs along n first, then parts of k for a cluster each, until there is work for
// every multiprocessor.
struct ColumnsShape {
  int lanes_shift, parts;
  int64_t groups, k_part, shared_bytes;
};
ColumnsShape columns_shape(const Gpu& gpu, const MatMulCall& c) {
  const int size = 16 / element_bytes(c.type), most_parts = gpu.limits().compute_capability >= 90 ? 8 : 1;
  const int64_t vectors = ceil_div(c.n, size), wanted = gpu.limits().multiprocessors + gpu.limits().multiprocessors / 2;
  ColumnsShape s = {5, 1, 0, 0, 0};
  while (s.lanes_shift > 2 && (vectors >> s.lanes_shift) * most_parts < wanted) --s.lanes_shift;
  s.groups = ceil_div(vectors, 1 << s.lanes_shift);
  while (s.parts < most_parts && s.groups * s.parts < wanted && c.k / (2 * s.parts) >= 64) s.parts *= 2;
  s.k_part = ceil_div(c.k, s.parts);
  s.shared_bytes = int64_t{gemv_rows(c)} * (s.k_part + (kGemvThreads / 32 + 1) * size * (1 << s.lanes_shift)) * 4;
  return s;
}

bool gemv_fits(const Gpu& gpu, const MatMulCall& c) {
  const int64_t size = 16 / element_bytes(c.type), line = c.trans_b ? c.k : c.n;
  return c.m <= kMostGemvRows && c.batch == 1 && !c.trans_a && line % size == 0 && aligned_16(c.b) && c.k > 0 &&
         (c.trans_b ? aligned_16(c.a) : columns_shape(gpu, c).shared_bytes <= gpu.limits().shared_bytes_per_block);
}

Status launch_any(Gpu& gpu, Stream stream, const MatMulCall& c) {
  HOTSET_ASSIGN(const Function function, gpu.function("matmul", format_text("hotset_matmul_any_%s", suffix(c.type)).c_str()));
  const int64_t rows = ceil_div(c.m, 16);
  HOTSET_FAIL_IF(rows > 65535 || c.batch > 65535, unsupported, "a product of %lld matrices of %lld rows is too large for one launch",
                 static_cast<long long>(c.batch), static_cast<long long>(c.m));
  return launch_with(gpu, stream,
                     {.function = function,
                      .grid_x = static_cast<unsigned>(ceil_div(c.n, 16)),
                      .grid_y = static_cast<unsigned>(rows),
                      .grid_z = static_cast<unsigned>(c.batch),
                      .block = 256,
                      .overlap = true},
                     parameters(c));
}

Status launch_gemv(Gpu& gpu, Stream stream, const MatMulCall& c) {
  MatMulParams p = parameters(c);
  const int rows = gemv_rows(c);
  const std::string name = format_text("hotset_matmul_%s_%s_m%d", c.trans_b ? "dots" : "columns", suffix(c.type), rows);
  HOTSET_ASSIGN(const Function function, gpu.function("matmul", name.c_str()));
  Launch how{.function = function, .block = kGemvThreads, .overlap = true};
  if (c.trans_b) {
    how.grid_x = static_cast<unsigned>(ceil_div(c.n, 8));
    return launch_with(gpu, stream, how, p);
  }
  const ColumnsShape shape = columns_shape(gpu, c);
  p.lanes_shift = shape.lanes_shift;
  p.parts = shape.parts;
  p.k_part = static_cast<int32_t>(shape.k_part);
  how.grid_x = static_cast<unsigned>(shape.groups * shape.parts);
  how.cluster = shape.parts > 1 ? static_cast<unsigned>(shape.parts) : 0;
  how.shared_bytes = static_cast<unsigned>(shape.shared_bytes);
  HOTSET_ASSIGN(how.function, gpu.function("matmul", name.c_str(), gpu.limits().shared_bytes_per_block));
  return launch_with(gpu, stream, how, p);
}

// Rows of all operands are whole pieces of 16 bytes at multiples of 16 bytes.
bool gemm_fits(const MatMulCall& c) {
  const int64_t size = 16 / element_bytes(c.type);
  return !c.trans_a && c.k > 0 && c.k % size == 0 && (c.trans_b || c.n % size == 0) && aligned_16(c.a) && aligned_16(c.b) &&
         c.a_batch % size == 0 && c.b_batch % size == 0 && c.batch <= 65535;
}

Status launch_gemm(Gpu& gpu, Stream stream, const MatMulCall& c) {
  constexpr int64_t kStages = 3, kStageBytes = 128, kLarge = 128, kSmall = 64;  // of matmul_gemm.cuh
  const bool large = ceil_div(c.m, kLarge) * ceil_div(c.n, kLarge) * c.batch >= gpu.limits().multiprocessors;
  const int64_t side = large ? kLarge : kSmall, tiles = ceil_div(c.m, side) * ceil_div(c.n, side),
                shared = kStages * kStageBytes * 2 * side;
  HOTSET_FAIL_IF(tiles > INT32_MAX, unsupported, "a product of %lld x %lld results is too large", static_cast<long long>(c.m),
                 static_cast<long long>(c.n));
  const std::string name = format_text("hotset_gemm_%s_%s_%s", suffix(c.type), c.trans_b ? "nt" : "nn", large ? "large" : "small");
  HOTSET_ASSIGN(const Function function,
                gpu.function(c.type == DType::f32 ? "matmul_gemm_32" : "matmul_gemm_16", name.c_str(), static_cast<int>(shared)));
  return launch_with(gpu, stream,
                     {.function = function,
                      .grid_x = static_cast<unsigned>(tiles),
                      .grid_z = static_cast<unsigned>(c.batch),
                      .block = large && c.type == DType::f32 ? 256u : 128u,
                      .shared_bytes = static_cast<unsigned>(shared),
                      .overlap = true},
                     parameters(c));
}

}  // namespace

MatMulForm matmul_form(const Gpu& gpu, const MatMulCall& c) {
  return gemv_fits(gpu, c) ? MatMulForm::gemv : gemm_fits(c) && c.m > 4 ? MatMulForm::gemm : MatMulForm::any;
}

Status launch_matmul_as(MatMulForm form, Gpu& gpu, Stream stream, const MatMulCall& c) {
  if (c.m == 0 || c.n == 0 || c.batch == 0) return {};
  HOTSET_FAIL_IF(c.m > INT32_MAX || c.n > INT32_MAX || c.k > INT32_MAX, unsupported, "a product of %lld x %lld x %lld is too large",
                 static_cast<long long>(c.m), static_cast<long long>(c.n), static_cast<long long>(c.k));
  switch (form) {
    case MatMulForm::any:
      return launch_any(gpu, stream, c);
    case MatMulForm::gemv:
      HOTSET_FAIL_IF(!gemv_fits(gpu, c), unsupported, "not a product of few rows");
      return launch_gemv(gpu, stream, c);
    case MatMulForm::gemm:
      HOTSET_FAIL_IF(!gemm_fits(c), unsupported, "not a product of aligned rows");
      return launch_gemm(gpu, stream, c);
  }
  return {};
}

Status launch_matmul(Gpu& gpu, Stream stream, const MatMulCall& c) {
  if (c.library && cublaslt_takes(c)) {
    bool done = false;
    HOTSET_TRY(launch_cublaslt(gpu, stream, c, &done));
    if (done) return {};
  }
  return launch_matmul_as(matmul_form(gpu, c), gpu, stream, c);
}

}  // namespace hotset::cuda
