// SPDX-License-Identifier: Apache-2.0
// The device kernels of PagedAttention and MultiHeadAttention against their CPU kernels, on random calls.
// Arguments: [seed] [--cases N]
#include "op_call.h"
#include "ops/multi_head_attention.h"
#include "ops/paged_attention.h"

using namespace device_check;

namespace {

int64_t below(std::mt19937& rng, int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); }
std::vector<uint8_t> random_bytes(DType type, const Shape& shape, std::mt19937& rng, float scale = 1) {
  return Values(type, static_cast<size_t>(shape.size()), rng, scale).bytes;
}

// Requests of several lengths over pages in random order; pages below the window and behind the tokens are unmapped.
OpCall paged_call(std::mt19937& rng, DType type, std::string* text) {
  using namespace paged;
  const int64_t B = 1 + below(rng, 4), Nk = pick(rng, {1, 2, 4}), N = Nk * pick(rng, {1, 2, 4, 8}), D = pick(rng, {16, 64, 80, 128, 256});
  const int64_t page = pick(rng, {1, 16, 16, 24, 64}), columns = 1 + below(rng, 1 + 300 / page),
                window = chance(rng, 40) ? pick(rng, {1, 20, 64}) : -1;
  const int64_t most = columns * page;
  std::vector<int32_t> cumulative{0}, past, table, slots;
  for (int64_t b = 0; b < B; ++b) {
    const int64_t n = chance(rng, 15) ? 0 : chance(rng, 50) ? 1 : 1 + below(rng, std::min<int64_t>(most, 90));
    cumulative.push_back(cumulative.back() + static_cast<int32_t>(n));
    past.push_back(static_cast<int32_t>(below(rng, most - n + 1)));
  }
  const int64_t tokens = cumulative.back(), pages = B * columns + 3;
  std::vector<int32_t> order(static_cast<size_t>(pages));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::shuffle(order.begin(), order.end(), rng);
  const bool holes = chance(rng, 30);
  for (int64_t b = 0; b < B; ++b) {
    const int64_t from = past[static_cast<size_t>(b)],
                  total = from + cumulative[static_cast<size_t>(b) + 1] - cumulative[static_cast<size_t>(b)];
    for (int64_t i = 0; i < columns; ++i) {
      const bool seen = i * page < total && (window < 0 || (i + 1) * page > from - window + 1);
      const bool hole = holes && (i + 1) * page <= from && chance(rng, 20);  // never a page that new tokens need
      table.push_back(seen && !hole ? order[static_cast<size_t>(b * columns + i)] : -1);
    }
  }
  OpCall call("PagedAttention", 17, {true, true, true});
  const bool quantised = chance(rng, 30), channel = chance(rng, 50), packed = chance(rng, 50);
  const DType cache = !quantised ? type : static_cast<DType>(pick(rng, {2, 3, 17}));  // uint8 holds 4-bit codes
  const auto put_random = [&](int i, const Shape& shape, float scale = 1) {
    call.put(i, type, shape, random_bytes(type, shape, rng, scale));
  };
  put_random(kQuery, {tokens, (packed ? N + 2 * Nk : N) * D});
  if (!packed) {
    put_random(kKey, {tokens, Nk * D});
    put_random(kValue, {tokens, Nk * D});
  }
  for (const int i : {kKeyCache, kValueCache}) {
    const Shape shape{pages, page, Nk, cache == DType::u8 ? D / 2 : D};
    std::vector<uint8_t> bytes = random_bytes(quantised ? DType::f16 : type, shape, rng);
    if (quantised) {
      bytes.resize(static_cast<size_t>(shape.size()));
      for (uint8_t& x : bytes) x = static_cast<uint8_t>(cache == DType::f8e4m3fn ? rng() & 0xbf : rng());
    }
    call.put(i, cache, shape, bytes);
  }
  call.put_list(kCumulative, DType::i32, {B + 1}, cumulative);
  call.put_list(kPast, DType::i32, {B}, past);
  call.put_list(kTable, DType::i32, {B, columns}, table);
  const bool rotary = chance(rng, 60);
  if (rotary) {
    put_random(kCos, {most + 5, D / 4}, 0.7f);
    put_random(kSin, {most + 5, D / 4}, 0.7f);
    call.set("do_rotary", int64_t{1});
    call.set("rotary_interleaved", int64_t{chance(rng, 30)});
    if (D >= 32 && chance(rng, 30)) call.set("rotary_offset", int64_t{8});
  }
  if (chance(rng, 40)) put_random(kSink, {N});
  if (chance(rng, 25)) {
    put_random(kQNorm, {D});
    put_random(kKNorm, {D});
  }
  if (quantised) {
    std::vector<float> scales(static_cast<size_t>(channel ? Nk * D : 1));
    for (const int i : {kKScale, kVScale}) {
      for (float& s : scales)
        s = (cache == DType::u8 ? 0.4f : cache == DType::f8e4m3fn ? 0.01f : 0.03f) * (0.5f + static_cast<float>(rng() % 1000) / 1000.0f);
      call.put_list(i, DType::f32, channel ? Shape{Nk, 1, D} : Shape{1}, scales);
    }
    for (const char* name : {"k_quant_type", "v_quant_type"}) call.set(name, channel ? "PER_CHANNEL" : "PER_TENSOR");
    if (cache == DType::u8)
      for (const char* name : {"k_cache_dtype", "v_cache_dtype"}) call.set(name, "int4");
  }
  if (chance(rng, 70)) {
    call.in_place[kKeyCacheOut] = kKeyCache;
    call.in_place[kValueCacheOut] = kValueCache;
  }
  call.set("num_heads", N);
  call.set("kv_num_heads", Nk);
  call.set("local_window_size", window);
  if (chance(rng, 15)) call.set("softcap", 5.0f);
  *text = format_text("paged %s%s B%ld N%ld/%ld D%ld page %ld x %ld tokens %ld window %ld%s%s", dtype_name(type),
                      quantised ? dtype_name(cache) : "", B, N, Nk, D, page, columns, tokens, window, holes ? " holes" : "",
                      rotary ? " rotary" : "");
  return call;
}

OpCall multi_head_call(std::mt19937& rng, DType type, std::string* text) {
  using namespace mha;
  const int64_t B = 1 + below(rng, 3), N = pick(rng, {1, 2, 4}), D = pick(rng, {16, 64, 80, 128, 20}),
                dv = chance(rng, 80) ? D : pick(rng, {16, 64, 192});
  const int64_t S = chance(rng, 30) ? 1 : 1 + below(rng, 150), L = chance(rng, 60) ? S : 1 + below(rng, 150);
  const int64_t past = chance(rng, 40) ? 1 + below(rng, 100) : 0, keys = past + L;
  const bool present = past > 0 || chance(rng, 40);
  OpCall call("MultiHeadAttention", 10, {true, present, present});
  const auto put_random = [&](int i, const Shape& shape) { call.put(i, type, shape, random_bytes(type, shape, rng)); };
  const int form = static_cast<int>(rng() % 4);  // of key and value
  if (form == 3 && L == S && dv == D) {
    put_random(kQuery, {B, S, N, 3, D});
  } else {
    put_random(kQuery, {B, S, N * D});
    if (form == 2 && dv == D) {
      put_random(kKey, {B, L, N, 2, D});
    } else {
      put_random(kKey, form == 0 ? Shape{B, N, L, D} : Shape{B, L, N * D});
      put_random(kValue, form == 0 ? Shape{B, N, L, dv} : Shape{B, L, N * dv});
    }
  }
  if (chance(rng, 50)) put_random(kBias, {chance(rng, 50) ? 1 : B, chance(rng, 50) ? 1 : N, S, keys});
  if (past) {
    put_random(kPastKey, {B, N, past, D});
    put_random(kPastValue, {B, N, past, dv});
  }
  call.set("num_heads", N);
  const bool causal = chance(rng, 40);
  call.set("unidirectional", int64_t{causal});
  *text = format_text("multi-head %s B%ld N%ld D%ld/%ld S%ld keys %ld+%ld%s form %d", dtype_name(type), B, N, D, dv, S, past, L,
                      causal ? " causal" : "", form);
  return call;
}

}  // namespace

int main(int argc, char** argv) {
  const Device device;
  int cases = 300, failures = 0;
  for (int i = 1; i + 1 < argc; ++i)
    if (std::strcmp(argv[i], "--cases") == 0) cases = std::atoi(argv[i + 1]);
  const unsigned seed = choose_seed(argc, argv);
  std::printf("%s, seed %u\n", device.gpu->info().name.c_str(), seed);
  std::mt19937 rng(seed);
  for (int i = 0; i < cases; ++i) {
    const DType type = static_cast<DType>(pick(rng, {1, 10, 16}));
    std::string text;
    OpCall call = i % 2 ? paged_call(rng, type, &text) : multi_head_call(rng, type, &text);
    call.make();
    OpOnDevice ours(call, device);
    ours.launch(0);
    device.wait(text);
    const auto expected = call.run_on_cpu(), seen = ours.outputs();
    bool ok = true;
    for (size_t k = 0; k < expected.size(); ++k) {
      if (!call.shapes.wanted[k]) continue;
      if (call.shapes.outputs[k].dtype != type) {  // codes: a rotated key may round the other way
        size_t differing = 0;
        for (size_t i = 0; i < expected[k].size(); ++i) differing += expected[k][i] != seen[k][i];
        if (differing <= 2 + expected[k].size() / 1000) continue;
      } else if (compare(type, seen[k], expected[k], call.shapes.outputs.back().dtype == type ? 1 : 25) <= 1) {
        continue;
      }
      ok = false;
      std::printf("output %zu differs: %s\n", k, text.c_str());
    }
    failures += !ok;
  }
  std::printf("%d of %d calls differ\n", failures, cases);
  return failures ? 1 : 0;
}
