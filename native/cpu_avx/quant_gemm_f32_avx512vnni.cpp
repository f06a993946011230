// SPDX-License-Identifier: Apache-2.0
// Quantised GEMM with exact float activations for AVX-512 VNNI: up to 8 rows in fixed point (quant_gemm_avx512vnni.h). All others go to
// the AVX-512 table, as do rows whose numbers have no such form.
#include "cpu_avx/quant_gemm_avx512vnni.h"

namespace hotset::cpu {
namespace {

using namespace avx512;

constexpr int kDigits = 4;
template <int BITS>
using Rows = FewRows<BITS, kDigits>;

template <int BITS>
HOTSET_INLINE const QuantGemm& floats() {
  return kQuantF32Avx512[BITS == 2 ? 0 : BITS == 4 ? 1 : 2];
}

// A row of the other table is shorter: at most 65 / 64 of the digits' bytes and a line.
template <int BITS>
static size_t prepared_bytes(int64_t m, int64_t k) {
  return (size_t)(m * Rows<BITS>::make(nullptr, k).stride());
}

template <int BITS>
static void prepare(const float* x, int64_t ldx, int64_t m, int64_t k, int64_t m0, int64_t m1, void* prepared) {
  if (m > kFewRows) return floats<BITS>().prepare(x, ldx, m, k, m0, m1, prepared);
  const auto rows = Rows<BITS>::make(prepared, k);
  for (int64_t i = m0; i < m1; ++i) {
    Form* form = (Form*)rows.row(i);
    *form = prepare_few(rows, x + i * ldx, k, i) ? kFixedPoint : kFloats;
    if (*form == kFloats) floats<BITS>().prepare(x + i * ldx, ldx, 1, k, 0, 1, rows.codes(i));
  }
}

// Rows [m0, m1), of one form.
template <int BITS>
static void multiply_rows(const QuantMatrix& w, const Rows<BITS>& rows, Form form, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                          const float* bias, float* y, int64_t ldy) {
  if (form == kFixedPoint) return multiply_few<RawCodes>(w, rows, m0, m1, n0, n1, bias, y, ldy);
  for (int64_t i = m0; i < m1; ++i) floats<BITS>().multiply(w, rows.codes(i), 1, 0, 1, n0, n1, bias, y + i * ldy, ldy, nullptr);
}

template <int BITS>
static void multiply(const QuantMatrix& w, const void* prepared, int64_t m, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                     const float* bias, float* y, int64_t ldy, void* scratch) {
  if (m > kFewRows) return floats<BITS>().multiply(w, prepared, m, m0, m1, n0, n1, bias, y, ldy, scratch);
  const auto rows = Rows<BITS>::make(prepared, w.k);
  // The second four rows of x find these rows of W in the cache.
  const int64_t n_step = m1 - m0 <= 4 ? n1 - n0 : kFewRowsN;
  for (int64_t n = n0; n < n1; n += n_step) {
    for (int64_t i = m0, end; i < m1; i = end) {
      const Form form = *(const Form*)rows.row(i);
      for (end = i + 1; end < m1 && *(const Form*)rows.row(end) == form;) ++end;
      multiply_rows(w, rows, form, i, end, n, smaller(n1, n + n_step), bias, y, ldy);
    }
  }
}

template <int BITS>
static size_t scratch_bytes(int64_t m, int64_t n, int64_t k) {
  return m > kFewRows ? floats<BITS>().scratch_bytes(m, n, k) : 0;
}

}  // namespace

const QuantGemm kQuantF32Avx512Vnni[3] = {
    {prepared_bytes<2>, prepare<2>, scratch_bytes<2>, multiply<2>},
    {prepared_bytes<4>, prepare<4>, scratch_bytes<4>, multiply<4>},
    {prepared_bytes<8>, prepare<8>, scratch_bytes<8>, multiply<8>},
};

}  // namespace hotset::cpu
