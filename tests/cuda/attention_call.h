// SPDX-License-Identifier: Apache-2.0
// GroupQueryAttention calls with random inputs.
#pragma once
#include "op_call.h"
#include "ops/group_query_attention.h"

namespace device_check {

// What a call is: sizes, attributes and which inputs there are.
struct AttentionCase {
  DType type = DType::f32, cache = DType::undefined;  // cache undefined: type
  int64_t B = 1, S = 1, N = 4, Nk = 2, D = 64, Cp = 0, half = 0, table_rows = 0;
  int64_t total = 1, window = -1, bits = 0, qk = 0, causal = 1;
  std::vector<int32_t> seqlens, query_seqlens;  // seqlens: tokens - 1
  bool packed = false, past = true, present = true, in_place = true, shared = false;
  bool windowed = false, rotary = false, interleaved = false, positions = false, sink = false, smooth = false, norm = false;
  bool k_channel = false, v_channel = false;
  int bias_b = 0, bias_h = 0;  // 0: no bias
  float scale = 0, softcap = 0;
  bool poison_new = false;  // a NaN among the new values, which earlier rows must not see

  std::string text() const {
    std::string s = std::string(dtype_name(type)) + "/" + dtype_name(cache) + " B" + std::to_string(B) + " S" + std::to_string(S) + " N" +
                    std::to_string(N) + "/" + std::to_string(Nk) + " D" + std::to_string(D) + " Cp" + std::to_string(past ? Cp : 0) +
                    " total" + std::to_string(total);
    const auto add = [&](bool is, const std::string& t) {
      if (is) s += " " + t;
    };
    add(window > 0, "window" + std::to_string(window));
    add(windowed, "windowed-cache");
    add(packed, "packed");
    add(shared, "shared-kv");
    add(!present, "no-present");
    add(present && past && !in_place, "own-present");
    add(rotary, std::string("rotary") + std::to_string(half) + (interleaved ? "i" : ""));
    add(positions, "positions");
    add(sink, "sink");
    add(smooth, "smooth");
    add(norm, "norm");
    add(bias_b > 0, "bias" + std::to_string(bias_b) + "," + std::to_string(bias_h));
    add(softcap > 0, "softcap");
    add(bits > 0, "bits" + std::to_string(bits) + (k_channel ? "c" : "t") + (v_channel ? "c" : "t"));
    add(qk > 0, "qk" + std::to_string(qk));
    add(causal == 0, "not-causal");
    add(!query_seqlens.empty(), "query_seqlens");
    add(poison_new, "nan");
    s += " T";
    for (const int32_t t : seqlens) s += " " + std::to_string(t + 1);
    for (const int32_t t : query_seqlens) s += " q" + std::to_string(t);
    return s;
  }
};

class AttentionNode {
 public:
  AttentionNode(const AttentionCase& c, std::mt19937& rng)
      : call("GroupQueryAttention", 17, {true, c.present, c.present, c.qk > 0}), c_(c), rng_(rng) {
    if (c_.cache == DType::undefined) c_.cache = c_.type;
    if (c_.past && c_.present && c_.in_place) {
      call.in_place[gqa::kPresentKey] = gqa::kPastKey;
      call.in_place[gqa::kPresentValue] = gqa::kPastValue;
    }
    make_inputs();
    set_attributes();
    call.make();
  }
  OpCall call;

 private:
  void put_random(int i, const Shape& shape, float scale = 1) {
    call.put(i, c_.type, shape, Values(c_.type, static_cast<size_t>(shape.size()), rng_, scale).bytes);
  }
  void make_inputs() {
    using namespace gqa;
    const int64_t B = c_.B, S = c_.S, N = c_.N, Nk = c_.Nk, D = c_.D, Dc = c_.bits == 4 ? (D + 1) / 2 : D;
    put_random(kQuery, {B, S, (c_.packed ? N + 2 * Nk : N) * D});
    if (!c_.packed) {
      put_random(kKey, {B, c_.shared ? 0 : S, Nk * D});
      put_random(kValue, {B, c_.shared ? 0 : S, Nk * D});
    }
    if (c_.past) {
      call.put(kPastKey, c_.cache, {B, Nk, c_.Cp, Dc}, cache_bytes());
      call.put(kPastValue, c_.cache, {B, Nk, c_.Cp, Dc}, cache_bytes());
    }
    call.put_list(kSeqlens, DType::i32, {B}, c_.seqlens);
    call.put_list(kTotal, DType::i32, {}, std::vector<int32_t>{static_cast<int32_t>(c_.total)});
    if (c_.rotary) {
      put_random(kCos, {c_.table_rows, c_.half}, 0.7f);
      put_random(kSin, {c_.table_rows, c_.half}, 0.7f);
    }
    if (c_.positions) {
      std::vector<int64_t> ids(static_cast<size_t>(B * S));
      for (int64_t& id : ids) id = static_cast<int64_t>(rng_()) % std::max<int64_t>(c_.table_rows - S, 1);
      call.put_list(kPositions, DType::i64, {B, S}, ids);
    }
    if (c_.bias_b) put_random(kBias, {c_.bias_b, c_.bias_h, S, c_.total});
    if (c_.sink) put_random(kSink, {N});
    if (c_.bits) {
      call.put_list(kKScale, DType::f32, c_.k_channel ? Shape{Nk, D} : Shape{1}, scales(c_.k_channel));
      call.put_list(kVScale, DType::f32, c_.v_channel ? Shape{Nk, D} : Shape{1}, scales(c_.v_channel));
    }
    if (c_.norm) {
      put_random(kQNorm, {D});
      put_random(kKNorm, {D});
    }
    if (!c_.query_seqlens.empty()) call.put_list(kQuerySeqlens, DType::i32, {B}, c_.query_seqlens);
    if (c_.poison_new) {
      const int64_t row = S * 2 / 3, width = c_.packed ? (N + 2 * Nk) * D : Nk * D;
      const size_t at = static_cast<size_t>(row * width + (c_.packed ? (N + Nk) * D : 0) + D / 2);
      set_value(c_.type, call.data[c_.packed ? kQuery : kValue].data(), at, std::numeric_limits<float>::quiet_NaN());
    }
  }
  std::vector<float> scales(bool per_channel) {
    const float step = c_.bits == 4 ? 0.4f : c_.cache == DType::f8e4m3fn ? 0.01f : 0.03f;
    std::vector<float> s(static_cast<size_t>(per_channel ? c_.Nk * c_.D : 1));
    for (float& x : s) x = step * (0.5f + static_cast<float>(rng_() % 1000) / 1000.0f);
    return s;
  }
  // Rows with a token are random, the others poison: NaN in the float types.
  std::vector<uint8_t> cache_bytes() {
    const int64_t Dc = c_.bits == 4 ? (c_.D + 1) / 2 : c_.D;
    const size_t row = static_cast<size_t>(Dc) * (c_.bits ? 1 : element_bytes(c_.cache));
    std::vector<uint8_t> bytes(static_cast<size_t>(c_.B * c_.Nk * c_.Cp) * row, 0xff);
    for (int64_t b = 0; b < c_.B; ++b) {
      const int64_t T = c_.seqlens[static_cast<size_t>(b)] + 1;
      const int64_t added = c_.shared ? 0 : c_.query_seqlens.empty() ? std::min(c_.S, T) : c_.query_seqlens[static_cast<size_t>(b)];
      const int64_t held = c_.windowed ? gqa::resident_rows(T - added, c_.Cp, c_.window) : T - added;
      for (int64_t g = 0; g < c_.Nk; ++g) {
        uint8_t* const to = bytes.data() + static_cast<size_t>((b * c_.Nk + g) * c_.Cp) * row;
        const size_t n = static_cast<size_t>(held) * row;
        if (c_.bits) {
          for (size_t i = 0; i < n; ++i) to[i] = static_cast<uint8_t>(c_.cache == DType::f8e4m3fn ? rng_() & 0xbf : rng_());
        } else {
          const Values v(c_.cache, static_cast<size_t>(held * c_.D), rng_);
          std::copy(v.bytes.begin(), v.bytes.end(), to);
        }
      }
    }
    return bytes;
  }

  void set_attributes() {
    call.set("num_heads", c_.N);
    call.set("kv_num_heads", c_.Nk);
    call.set("causal", c_.causal);
    call.set("local_window_size", c_.window);
    call.set("sliding_window_cache", int64_t{c_.windowed});
    call.set("do_rotary", int64_t{c_.rotary});
    call.set("rotary_interleaved", int64_t{c_.interleaved});
    call.set("smooth_softmax", int64_t{c_.smooth ? 1 : -1});
    call.set("qk_output", c_.qk);
    call.set("kv_cache_bit_width", c_.bits);
    call.set("scale", c_.scale);
    call.set("softcap", c_.softcap);
    if (!c_.bits) return;
    call.set("k_quant_type", c_.k_channel ? "PER_CHANNEL" : "PER_TENSOR");
    call.set("v_quant_type", c_.v_channel ? "PER_CHANNEL" : "PER_TENSOR");
  }

  AttentionCase c_;
  std::mt19937& rng_;
};

}  // namespace device_check
