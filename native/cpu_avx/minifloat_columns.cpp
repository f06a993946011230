// SPDX-License-Identifier: Apache-2.0
// Choice of the products with weights packed along N.
#include "cpu_avx/minifloat_columns.h"

#include "cpu_avx/cpu_features.h"

namespace hotset::cpu {

const MinifloatColumns* minifloat_columns(bool int8_activations) {
#if defined(__x86_64__)
  if (int8_activations && cpu_features().avx512vnni) return &kMinifloatColumnsI8Avx512Vnni;
  if (!int8_activations && cpu_features().avx512) return &kMinifloatColumnsF32Avx512;
#else
  (void)int8_activations;
#endif
  return nullptr;
}

}  // namespace hotset::cpu
