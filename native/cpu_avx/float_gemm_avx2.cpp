// SPDX-License-Identifier: Apache-2.0
// Float products with AVX2 and FMA: eight lanes. The packed tile is 6 x 16: 12 sums, one broadcast, two weights of 16 registers.
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "cpu_avx/float_gemm_isa.h"

namespace hotset::cpu {
namespace {
#include "cpu_avx/vector_avx2.h"

constexpr int kMr = 6, kDotRows = 2;

inline void transpose(V r[8]) {
  V t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    r[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    r[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
    r[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    r[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const V low = _mm256_permute2f128_ps(r[i], r[4 + i], 0x20), high = _mm256_permute2f128_ps(r[i], r[4 + i], 0x31);
    r[i] = low;
    r[4 + i] = high;
  }
}

#include "cpu_avx/float_gemm_body.h"

}  // namespace

extern const FloatGemm kFloatGemmAvx2 = {"avx2", scratch_bytes, multiply};

}  // namespace hotset::cpu
