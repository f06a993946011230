// SPDX-License-Identifier: Apache-2.0
// GroupQueryAttention's device kernels against its CPU kernel, on random calls. Arguments: [seed] [--cases N] [--type N] [--bench [--only
// TEXT]]
// --type: only activations of this ONNX element type (1, 10, 16).
// --bench: decode with its share of the memory rate, prefill with its rate.
#include "attention_call.h"

using namespace device_check;

namespace {

constexpr double kMemoryRate = 4.4e12;  // bytes a second that an H200 reads

enum class Kind { first_prompt, padded_prompt, static_decode, growing_decode, continuation, chunk, windowed, shared_kv, no_cache };

// Sizes and lengths of a kind of call.
void choose_lengths(Kind kind, std::mt19937& rng, AttentionCase* c) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  c->B = pick(rng, {1, 1, 2, 3});
  const int64_t most = chance(rng, 15) ? 1500 : 200;
  const auto fill = [&](auto&& length) {
    c->seqlens.clear();
    for (int64_t b = 0; b < c->B; ++b) c->seqlens.push_back(static_cast<int32_t>(length() - 1));
  };
  switch (kind) {
    case Kind::first_prompt:
    case Kind::padded_prompt:
      c->S = c->total = 1 + below(most);
      c->past = chance(rng, 70);
      c->Cp = c->past ? chance(rng, 50) ? 0 : c->S + below(50) : 0;
      fill([&] { return kind == Kind::padded_prompt ? 1 + below(c->S) : c->S; });
      c->seqlens[0] = static_cast<int32_t>(c->S - 1);
      break;
    case Kind::no_cache:
      c->S = c->total = 1 + below(most);
      c->past = c->present = false;
      fill([&] { return c->S; });
      break;
    case Kind::static_decode:
      c->S = 1;
      c->Cp = 2 + below(most);
      c->total = 2 + below(c->Cp - 1);
      fill([&] { return 1 + below(c->total); });
      c->present = chance(rng, 90);
      break;
    case Kind::growing_decode:
      c->S = 1;
      c->Cp = 1 + below(most);
      c->total = c->Cp + 1;
      fill([&] { return 1 + below(c->total); });
      break;
    case Kind::continuation:
      c->B = 1;
      c->S = 2 + below(40);
      c->Cp = c->S + below(most);
      c->total = c->S + 1 + below(c->Cp - c->S + 1);
      if (c->total > c->Cp) c->total = c->Cp + c->S;
      fill([&] { return c->total; });
      break;
    case Kind::chunk:
    case Kind::windowed: {
      c->S = chance(rng, 40) ? 1 : 1 + below(60);
      const bool windowed = kind == Kind::windowed;
      c->windowed = windowed;
      if (windowed) c->window = pick(rng, {1, 5, 16, 32, 128});
      c->Cp = windowed ? c->window + pick(rng, {0, 0, 3, 20}) : c->S + 1 + below(most);
      c->total = windowed ? c->S + below(400) : c->Cp;
      if (windowed && chance(rng, 50)) {  // no query_seqlens
        if (c->S > 1) c->B = 1;
        fill([&] { return c->S > 1 ? c->total : 1 + below(c->total); });
        break;
      }
      for (int64_t b = 0; b < c->B; ++b) {
        const int64_t rows = chance(rng, 25) ? 0 : chance(rng, 30) ? c->S : below(c->S + 1);
        const int64_t least = std::max<int64_t>(rows, 1), most_tokens = windowed ? c->total : c->Cp - c->S + rows;
        c->query_seqlens.push_back(static_cast<int32_t>(rows));
        c->seqlens.push_back(static_cast<int32_t>(least + below(most_tokens - least + 1) - 1));
      }
      break;
    }
    case Kind::shared_kv:
      c->shared = true;
      c->S = chance(rng, 50) ? 1 : 2 + below(20);
      if (c->S > 1) c->B = 1;
      c->Cp = c->S + below(most);
      c->total = c->Cp;
      fill([&] { return c->S == 1 ? 1 + below(c->total) : c->total; });
      break;
  }
}

AttentionCase choose(std::mt19937& rng) {
  AttentionCase c;
  c.type = static_cast<DType>(pick(rng, {1, 1, 10, 10, 16}));
  c.D = pick(rng, {64, 64, 64, 128, 128, 16, 80, 96, 256, 256, 40, 320, 20});
  c.Nk = pick(rng, {1, 2, 2, 4});
  c.N = c.Nk * pick(rng, {1, 2, 3, 4, 8, 8, 16, 20});
  const Kind kind = static_cast<Kind>(rng() % 9);
  choose_lengths(kind, rng, &c);
  const bool cached = c.past || c.present;
  if (kind != Kind::windowed && chance(rng, 40)) c.window = pick(rng, {1, 3, 17, 64, 128});
  if (c.window < 0 && c.query_seqlens.empty() && chance(rng, 8)) c.causal = 0;
  if (cached && chance(rng, 30)) {
    c.bits = pick(rng, {4, 8, 8});
    c.cache = c.bits == 4 ? DType::u8 : chance(rng, 50) ? DType::i8 : DType::f8e4m3fn;
    if (!c.past && c.cache == DType::f8e4m3fn) c.cache = DType::i8;  // without a past the type of the codes is int8
    c.k_channel = chance(rng, 50);
    c.v_channel = chance(rng, 50);
  }
  c.in_place = c.past && c.present && c.Cp >= c.total && chance(rng, 60);
  if (c.windowed) c.in_place = chance(rng, 60);
  c.packed = !c.shared && chance(rng, 50);
  if (chance(rng, 60)) {
    c.rotary = true;
    c.half = std::max<int64_t>(1, chance(rng, 30) ? c.D / 4 : c.D / 2);
    c.table_rows = c.total + c.S + 10;
    c.interleaved = chance(rng, 30);
    c.positions = chance(rng, 30);
  }
  c.norm = chance(rng, 20);
  c.sink = chance(rng, 40);
  c.smooth = chance(rng, 15);
  if (chance(rng, 15)) {
    c.bias_b = static_cast<int>(chance(rng, 50) ? 1 : c.B);
    c.bias_h = static_cast<int>(chance(rng, 50) ? 1 : c.N);
  }
  if (chance(rng, 15)) c.softcap = 5;
  if (chance(rng, 10)) c.scale = 0.25f;
  if (!c.windowed && chance(rng, 8)) c.qk = 1 + static_cast<int64_t>(rng() % 2);
  c.poison_new = c.bits == 0 && !c.shared && c.S > 2 && chance(rng, 10);
  return c;
}

// Codes may differ by one step on one element of a thousand.
double compare_codes(const AttentionCase& c, const std::vector<uint8_t>& ours, const std::vector<uint8_t>& theirs) {
  size_t differing = 0, far = 0;
  const auto check = [&](int x, int y) {
    differing += x != y;
    far += std::abs(x - y) > 1;
  };
  for (size_t i = 0; i < theirs.size(); ++i) {
    if (c.bits == 4) {
      check(ours[i] & 15, theirs[i] & 15);
      check(ours[i] >> 4, theirs[i] >> 4);
    } else {
      check(static_cast<int8_t>(ours[i]), static_cast<int8_t>(theirs[i]));
    }
  }
  if (far) return 1e30;
  return static_cast<double>(differing) / (2 + 1e-3 * static_cast<double>(theirs.size()));
}

bool check(const Device& device, const AttentionCase& c, std::mt19937& rng) {
  AttentionNode node(c, rng);
  OpOnDevice ours(node.call, device);
  ours.launch(0);
  device.wait(c.text());
  const auto expected = node.call.run_on_cpu(), seen = ours.outputs();
  bool ok = true;
  // One step of a code shows in outputs of about 5; float16 products of codes are rounded once more.
  const bool same_codes =
      c.bits == 0 || (seen[gqa::kPresentKey] == expected[gqa::kPresentKey] && seen[gqa::kPresentValue] == expected[gqa::kPresentValue]);
  for (size_t i = 0; i < 4; ++i) {
    if (!node.call.shapes.wanted[i]) continue;
    const bool codes = c.bits > 0 && (i == gqa::kPresentKey || i == gqa::kPresentValue);
    const double scale = (i == gqa::kQk ? 2 : 1) * (c.bits == 0 ? 1 : same_codes ? 4 : 25);
    const double error = codes ? compare_codes(c, seen[i], expected[i]) : compare(c.type, seen[i], expected[i], scale);
    if (error <= 1) continue;
    ok = false;
    std::printf("output %zu off by %.3g tolerances: %s\n", i, error, c.text().c_str());
  }
  return ok;
}

// The calls of GPT-OSS and Qwen3 layers.
std::vector<AttentionCase> model_calls() {
  std::vector<AttentionCase> all;
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    for (const bool sliding : {false, true}) {
      AttentionCase c;
      c.type = type;
      c.N = 64, c.Nk = 8, c.D = 64, c.half = 32, c.table_rows = 4096, c.rotary = c.packed = c.sink = true;
      if (sliding) c.window = 128;
      AttentionCase prompt = c;
      prompt.S = prompt.total = 300;
      prompt.seqlens = {299};
      prompt.Cp = 1024;
      AttentionCase first = prompt;  // growing
      first.Cp = 0;
      first.in_place = false;
      AttentionCase step = c;
      step.Cp = 2048;
      step.total = 1777;
      step.seqlens = {1776};
      AttentionCase grown = step;
      grown.Cp = 1776;
      grown.in_place = false;
      all.insert(all.end(), {prompt, first, step, grown});
      if (!sliding) continue;
      for (AttentionCase w : {prompt, step}) {
        w.windowed = true;
        w.Cp = 128;
        all.push_back(w);
        w.in_place = false;
        all.push_back(w);
      }
    }
    AttentionCase q;
    q.type = type;
    q.N = 32, q.Nk = 4, q.D = 128, q.half = 64, q.table_rows = 8192, q.rotary = true, q.norm = true;
    q.Cp = 4096, q.total = 3000, q.seqlens = {2999};
    all.push_back(q);
    q.S = 257, q.total = 257, q.seqlens = {256};
    all.push_back(q);
  }
  return all;
}

// One line a shape whose label contains `only`.
void bench(const Device& device, std::mt19937& rng, const std::string& only) {
  struct Shape {
    int64_t N, Nk, D, length;
    bool prefill;
  };
  for (const Shape& z : {Shape{32, 4, 128, 4096, false},
                         {32, 4, 128, 32768, false},
                         {64, 8, 64, 4096, false},
                         {64, 8, 64, 32768, false},
                         {32, 4, 128, 4096, true},
                         {64, 8, 64, 4096, true}}) {
    for (const DType type : {DType::bf16, DType::f16, DType::f32}) {
      const std::string label =
          format_text("%s %-8s %d/%d/%d %s %5d", z.prefill ? "prefill" : "decode", dtype_name(type), static_cast<int>(z.N),
                      static_cast<int>(z.Nk), static_cast<int>(z.D), z.prefill ? "rows" : "context", static_cast<int>(z.length));
      if (label.find(only) == std::string::npos) continue;
      AttentionCase c;
      c.type = type;
      c.N = z.N, c.Nk = z.Nk, c.D = z.D, c.half = z.D / 2, c.table_rows = 40960;
      c.rotary = c.packed = true;
      c.sink = z.D == 64;
      c.S = z.prefill ? z.length : 1;
      c.Cp = c.total = z.length, c.seqlens = {static_cast<int32_t>(z.length - 1)};
      AttentionNode node(c, rng);
      const double bytes = 2.0 * static_cast<double>(z.length * c.Nk * c.D) * static_cast<double>(element_bytes(type));
      const double flops = 4.0 * static_cast<double>(c.S * z.length) / 2 * static_cast<double>(c.N * c.D);
      const int copies = z.prefill ? 2 : std::max(4, static_cast<int>(2e8 / bytes));
      OpOnDevice run(node.call, device, copies);
      const double us = microseconds(device, copies, [&](int i) { run.launch(i); });
      if (z.prefill)
        std::printf("%s: %8.1f us, %6.1f TFLOP/s\n", label.c_str(), us, flops / us / 1e6);
      else
        std::printf("%s: %7.2f us, %4.0f GB/s, %.2f of %.1f TB/s\n", label.c_str(), us, bytes / us / 1e3, bytes / us * 1e6 / kMemoryRate,
                    kMemoryRate / 1e12);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Device device;
  int cases = 300, type = 0;
  bool benches = false;
  std::string only;
  for (int i = 1; i < argc; ++i) {
    benches = benches || std::strcmp(argv[i], "--bench") == 0;
    if (i + 1 == argc) continue;
    if (std::strcmp(argv[i], "--cases") == 0) cases = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--only") == 0) only = argv[i + 1];
    if (std::strcmp(argv[i], "--type") == 0) type = std::atoi(argv[i + 1]);
  }
  const unsigned seed = choose_seed(argc, argv);
  std::printf("%s, seed %u\n", device.gpu->info().name.c_str(), seed);
  std::mt19937 rng(seed);
  if (benches) {
    bench(device, rng, only);
    return 0;
  }
  int failures = 0, n = 0;
  const auto run = [&](const AttentionCase& c) {
    if (type && c.type != static_cast<DType>(type)) return;
    failures += !check(device, c, rng);
    ++n;
  };
  for (const AttentionCase& c : model_calls()) run(c);
  while (n < cases) run(choose(rng));
  std::printf("%d of %d calls differ\n", failures, n);
  return failures ? 1 : 0;
}
