// SPDX-License-Identifier: Apache-2.0
// Quantised GEMM with int8 activations for the dot products of NEON (sdot).
#include "cpu_avx/quant_gemm_neon.h"

namespace hotset::cpu {
namespace {

#include "cpu_avx/quant_gemm_i8_neon_body.h"

#include "cpu_avx/quant_gemm_i8_neon_panels.h"

template <int BITS, int RUN>
static void multiply(const QuantMatrix& w, const void* prepared, int64_t m, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                     const float* bias, float* y, int64_t ldy, void* scratch) {
  if (n0 >= n1) return;
  const Row<RUN> rows = Row<RUN>::make(prepared, w.k);
  if (m <= kFewRows)
    passes_over_w<BITS, RUN>(w, rows, m0, m1, n0, n1, bias, y, ldy);
  else
    panels<BITS, RUN>(w, rows, m0, m1, n0, n1, bias, y, ldy, (Panel*)scratch);
}

static size_t scratch_bytes(int64_t m, int64_t, int64_t) { return m <= kFewRows ? 0 : sizeof(Panel); }

#define HOTSET_TABLES(RUN)                                                        \
  {                                                                               \
      {prepared_bytes<2, RUN>, prepare<2, RUN>, scratch_bytes, multiply<2, RUN>}, \
      {prepared_bytes<4, RUN>, prepare<4, RUN>, scratch_bytes, multiply<4, RUN>}, \
      {prepared_bytes<8, RUN>, prepare<8, RUN>, scratch_bytes, multiply<8, RUN>}, \
  }

}  // namespace

const QuantGemm kQuantI8NeonDot[3] = HOTSET_TABLES(32);
const QuantGemm kQuantI8NeonDotBlock16[3] = HOTSET_TABLES(16);

}  // namespace hotset::cpu
