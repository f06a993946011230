// SPDX-License-Identifier: Apache-2.0
// Rows of x as factors, and what a panel of 16 matrix rows stands for.
#pragma once
#include "cuda/moe_formats.cuh"

namespace hotset::cuda::moe {

// Rows of the layer's type as factors.
struct RowsF16 {
  using Half = __half;
  static constexpr MoeType kType = MoeType::f16;
  static constexpr int kParts = 1;
};
struct RowsBf16 {
  using Half = __nv_bfloat16;
  static constexpr MoeType kType = MoeType::bf16;
  static constexpr int kParts = 1;
};
struct RowsF32 {
  using Half = __nv_bfloat16;
  static constexpr MoeType kType = MoeType::f32;
  static constexpr int kParts = 3;
};

// Panel of features [8 i, 8 i + 8) with gate and value, or [16 i, 16 i + 16) without.
__device__ __forceinline__ Panel first_panel(const MoeProductParams& p, const MoeExpert& e, uint32_t i) {
  Panel panel;
  panel.place[0] = panel.place[1] = &e.fc[0];
  panel.base[0] = 16 * i;
  panel.base[1] = 16 * i + 8;
  if (p.pairing == MoePairing::halves || p.pairing == MoePairing::separate) {
    panel.base[0] = 8 * i;
    panel.base[1] = p.pairing == MoePairing::halves ? p.inter + 8 * i : 8 * i;
    if (p.pairing == MoePairing::separate) panel.place[1] = &e.fc[2];
  }
  return panel;
}

// What one feature's gate and value are multiplied by and get added.
struct FeatureEnds {
  float gate_scale = 0, gate_bias = 0, value_scale = 0, value_bias = 0;

  FeatureEnds() = default;
  __device__ __forceinline__ FeatureEnds(const MoeProductParams& p, const MoeExpert& e, uint32_t feature) {
    gate_scale = e.fc[0].global_scale;
    gate_bias = bias_at(p.form.bias_type, e.fc[0], p.pairing == MoePairing::interleaved ? 2 * feature : feature);
    if (p.pairing == MoePairing::none) return;
    bool third;
    const uint32_t row = first_row(p.pairing, p.inter, feature, 1, &third);
    const MoePlace& place = third ? e.fc[2] : e.fc[0];
    value_scale = place.global_scale;
    value_bias = bias_at(third ? p.third.bias_type : p.form.bias_type, place, row);
  }
};

// One feature of one row: `gate` and `value` are sums without scale and bias.
__device__ __forceinline__ float finish_feature(const MoeProductParams& p, const FeatureEnds& e, float gate, float value) {
  gate = round_to(p.type, gate * e.gate_scale) + e.gate_bias;
  value = round_to(p.type, value * e.value_scale) + e.value_bias;
  return activate(p.activation, p.pairing, gate, value);
}

}  // namespace hotset::cuda::moe
