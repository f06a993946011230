// SPDX-License-Identifier: Apache-2.0
// The families and what their own choosers say.
#include "cpu_avx/kernel_choices.h"

#include "cpu_avx/attention.h"
#include "cpu_avx/convert.h"
#include "cpu_avx/elementwise.h"
#include "cpu_avx/float_gemm.h"
#include "cpu_avx/minifloat_columns.h"
#include "cpu_avx/minifloat_gemm.h"
#include "cpu_avx/norm.h"
#include "cpu_avx/quant_gemm.h"
#include "cpu_avx/sample_row.h"
#include "cpu_avx/sm80_rows.h"
#include "cpu_avx/swiglu.h"
#include "cpu_avx/weight_rows.h"

namespace hotset::cpu {

std::vector<KernelChoice> kernel_choices() {
  QuantMatrix w;
  w.k = w.n = 2048;
  const auto quantised = [&](bool int8_activations, int bits, int64_t block) {
    w.bits = bits;
    w.block = block;
    return quant_gemm_isa(int8_activations, w);
  };
  const auto along_n = [](bool int8_activations) {
    const MinifloatColumns* kernel = minifloat_columns(int8_activations);
    return kernel ? kernel->name : minifloat_gemm(int8_activations).name;
  };
  return {
      {"int2 weights, float activations", quantised(false, 2, 32)},
      {"int2 weights, int8 activations", quantised(true, 2, 32)},
      {"int4 weights, float activations", quantised(false, 4, 32)},
      {"int4 weights, int8 activations", quantised(true, 4, 32)},
      {"int4 weights in blocks of 16, int8 activations", quantised(true, 4, 16)},
      {"int8 weights, float activations", quantised(false, 8, 32)},
      {"int8 weights, int8 activations", quantised(true, 8, 32)},
      {"FP4 and FP8 weights, float activations", minifloat_gemm(false).name},
      {"FP4 weights, int8 activations", minifloat_gemm(true).name},
      {"FP4 weights along N, float activations", along_n(false)},
      {"FP4 weights along N, int8 activations", along_n(true)},
      {"3-bit and transposed rows", weight_rows().name},
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
