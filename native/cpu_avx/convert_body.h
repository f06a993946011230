// SPDX-License-Identifier: Apache-2.0
// Conversions a vector at a time; tails by mask or through a small buffer, never past the end. Included like float_gemm_body.h.

template <int D>
void to_float(const void* src, float* dst, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(dst + i, load_as<D>(src, i));
  if (i < n) store_first(dst + i, load_first_as<D>(src, i, static_cast<int>(n - i)), static_cast<int>(n - i));
}

template <int D>
void from_float(const float* src, void* dst, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_as<D>(dst, i, load(src + i));
  if (i < n) store_first_as<D>(dst, i, load_first(src + i, static_cast<int>(n - i)), static_cast<int>(n - i));
}

void fill(ConvertKernels* k) {
  k->f16_to_f32 = to_float<10>;
  k->bf16_to_f32 = to_float<16>;
  k->f32_to_f16 = from_float<10>;
  k->f32_to_bf16 = from_float<16>;
}
