// SPDX-License-Identifier: Apache-2.0
// The families and what their own choosers say.
#include "cpu_avx/kernel_choices.h"

#include "cpu_avx/attention.h"
#include "cpu_avx/convert.h"
#include "cpu_avx/elementwise.h"
#include "cpu_avx/float_gemm.h"
#include "cpu_avx/norm.h"
#include "cpu_avx/quant_gemm.h"
#include "cpu_avx/sample_row.h"
#include "cpu_avx/sm80_rows.h"
#include "cpu_avx/swiglu.h"

namespace hotset::cpu {

std::vector<KernelChoice> kernel_choices() {
  QuantMatrix w;
  w.k = w.n = 2048;
  const auto quantised = [&](bool int8_activations, int bits, int64_t block) {
    w.bits = bits;
    w.block = block;
    return quant_gemm_isa(int8_activations, w);
  };
  return {
      {"int2 weights, float activations", quantised(false, 2, 32)},
      {"int2 weights, int8 activations", quantised(true, 2, 32)},
      {"int4 weights, float activations", quantised(false, 4, 32)},
      {"int4 weights, int8 activations", quantised(true, 4, 32)},
      {"int4 weights in blocks of 16, int8 activations", quantised(true, 4, 16)},
      {"int8 weights, float activations", quantised(false, 8, 32)},
      {"int8 weights, int8 activations", quantised(true, 8, 32)},
      {"float weights", float_gemm().name},
      {"attention", attention_isa()},
      {"float16 and bfloat16 to float32", convert_isa()},
      {"elementwise functions and softmax", elementwise_isa()},
      {"gated unit", swiglu_isa()},
      {"normalisation", norm_isa()},
      {"sampling", sample_isa()},
      {"SM80 prepacked rows", sm80_rows_isa()},
  };
}

}  // namespace hotset::cpu
