// SPDX-License-Identifier: Apache-2.0
// Mixture-of-experts layers on the GPU against those of the CPU on fresh random data. Arguments: [seed], --only TEXT.
#include <algorithm>
#include <string>

#include "cuda/fatbins.h"
#include "moe_cases.h"

using namespace moe_cases;

namespace {

int failures = 0, checks = 0;
constexpr size_t kGuard = 256;

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Block = std::unique_ptr<uint8_t[], Free>;
Block allocate(size_t bytes) { return Block(static_cast<uint8_t*>(std::aligned_alloc(64, (bytes + 127) / 64 * 64))); }

enum class Routes { random, one_expert, ties, not_a_number };

struct Bench {
  std::shared_ptr<cuda::Gpu> gpu;
  cuda::OwnStream stream;
};

class Run {
 public:
  Run(Bench& bench, TestLayer& layer, int64_t n_tokens, Routes routes, bool given) : b_(bench), l_(layer), n_(n_tokens), given_(given) {
    const Case& c = l_.c;
    const size_t size = size_of(c.type);
    x_.resize(static_cast<size_t>(n_ * c.hidden) * size);
    logits_.resize(static_cast<size_t>(n_ * c.n_experts) * size);
    router_weights_.resize(logits_.size());
    for (size_t i = 0; i < x_.size() / size; ++i) put_float(c.type, x_.data(), i, uniform(-1, 1));
    for (size_t i = 0; i < logits_.size() / size; ++i) {
      float logit = uniform(-3, 3);
      if (routes == Routes::ties) logit = static_cast<float>(rng() % 3);
      if (routes == Routes::one_expert && static_cast<int64_t>(i) % c.n_experts == 3) logit = 9;
      if (routes == Routes::not_a_number && (i / static_cast<size_t>(c.n_experts)) % 3 == 1 && rng() % 4 == 0)
        logit = rng() % 2 ? NAN : -INFINITY;
      put_float(c.type, logits_.data(), i, logit);
      put_float(c.type, router_weights_.data(), i, uniform(-0.5f, 1));
    }
    if (routes == Routes::not_a_number && n_ > 2) {
      put_float(c.type, x_.data(), 3, NAN);
      put_float(c.type, x_.data(), static_cast<size_t>(2 * c.hidden + 1), INFINITY);
    }
  }

  void cpu() {
    const Case& c = l_.c;
    std::vector<float> logits(static_cast<size_t>(c.n_experts)), given(logits.size());
    ids_.resize(static_cast<size_t>(n_ * c.k));
    weights_.resize(ids_.size());
    for (int64_t t = 0; t < n_; ++t) {
      for (int64_t e = 0; e < c.n_experts; ++e) {
        logits[static_cast<size_t>(e)] = get_float(c.type, logits_.data(), static_cast<size_t>(t * c.n_experts + e));
        given[static_cast<size_t>(e)] = get_float(c.type, router_weights_.data(), static_cast<size_t>(t * c.n_experts + e));
      }
      route(l_.router, logits.data(), given_ ? given.data() : nullptr, &ids_[static_cast<size_t>(t * c.k)],
            &weights_[static_cast<size_t>(t * c.k)]);
    }
    static ThreadPool pool(2);
    const Block x = allocate(x_.size()), y = allocate(x_.size()), space = allocate(expert_layer_workspace(l_.cpu, n_, pool.size()));
    std::memcpy(x.get(), x_.data(), x_.size());
    run_expert_layer(l_.cpu, {x.get(), y.get(), n_, ids_.data(), weights_.data(), l_.table.data(), space.get(), &pool});
    expected_.assign(y.get(), y.get() + x_.size());
  }

  void device() {
    const cuda::Current current(*b_.gpu);
    const cuda::Driver& d = cuda::driver();
    l_.gpu.given_type = given_ ? device_type(l_.c.type) : cuda::MoeType::none;
    at_ = cuda::moe_workspace(b_.gpu->limits(), l_.gpu, static_cast<uint32_t>(n_));
    const auto take = [&](size_t bytes) { return must(cuda::DeviceMemory::take(b_.gpu, bytes, cuda::Purpose::values, "values")); };
    const cuda::DeviceMemory x = take(x_.size()), logits = take(logits_.size()), given = take(logits_.size()),
                             y = take(x_.size() + 2 * kGuard), space = take(at_.total + kGuard);
    const auto ok = [&](int result) { must(b_.gpu->check(result, "driver")); };
    const cuda::Stream stream = b_.stream.get();
    ok(d.memcpy_htod_async(x.address(), x_.data(), x_.size(), stream));
    ok(d.memcpy_htod_async(logits.address(), logits_.data(), logits_.size(), stream));
    ok(d.memcpy_htod_async(given.address(), router_weights_.data(), logits_.size(), stream));
    cuda::MoeCall call;
    call.x = x.data();
    call.logits = logits.data();
    call.given = given_ ? given.data() : nullptr;
    call.experts = static_cast<const cuda::MoeExpert*>(l_.device_table.data());
    call.y = reinterpret_cast<void*>(y.address() + kGuard);
    call.n_tokens = static_cast<uint32_t>(n_);
    call.workspace = space.data();
    std::vector<uint8_t> out[2];
    std::vector<uint8_t> work(at_.total + kGuard);
    for (auto& o : out) {
      ok(d.memset_d8_async(y.address(), 0xff, y.bytes(), stream));
      ok(d.memset_d8_async(space.address(), 0xff, space.bytes(), stream));
      must(cuda::launch_moe(*b_.gpu, stream, l_.gpu, call));
      o.resize(y.bytes());
      ok(d.memcpy_dtoh_async(o.data(), y.address(), y.bytes(), stream));
      ok(d.memcpy_dtoh_async(work.data(), space.address(), work.size(), stream));
      ok(d.stream_synchronize(stream));
    }
    same_ = out[0] == out[1];
    guards_ = true;
    for (size_t i = 0; i < kGuard; ++i)
      guards_ &= out[0][i] == 0xff && out[0][kGuard + x_.size() + i] == 0xff && work[at_.total + i] == 0xff;
    seen_.assign(out[0].begin() + kGuard, out[0].end() - kGuard);
    device_ids_.resize(ids_.size());
    device_weights_.resize(ids_.size());
    std::memcpy(device_ids_.data(), work.data() + at_.ids, ids_.size() * 4);
    std::memcpy(device_weights_.data(), work.data() + at_.weights, ids_.size() * 4);
  }

  void compare(const char* what) {
    const Case& c = l_.c;
    ++checks;
    std::string wrong;
    if (device_ids_ != ids_) wrong += " ids";
    for (size_t i = 0; i < ids_.size(); ++i) {
      const float a = weights_[i], b = device_weights_[i];
      if (std::isnan(a) != std::isnan(b) || std::fabs(a - b) > 2e-6f * std::fabs(a) + 1e-12f) {
        wrong += format_text(" weight %zu (%g, not %g)", i, static_cast<double>(b), static_cast<double>(a));
        break;
      }
    }
    if (!same_) wrong += " runs-differ";
    if (!guards_) wrong += " guards";
    double error = 0, size = 0;
    int64_t odd = 0;
    for (size_t i = 0; i < seen_.size() / size_of(c.type); ++i) {
      const double a = get_float(c.type, expected_.data(), i), b = get_float(c.type, seen_.data(), i);
      if (!std::isfinite(a) || !std::isfinite(b)) {
        odd += std::isfinite(a) || std::isfinite(b);  // not finite on both sides
        continue;
      }
      error += (a - b) * (a - b);
      size += a * a;
    }
    const double relative = std::sqrt(error / std::max(size, 1e-30)), limit = c.type == DType::f32   ? 1e-5
                                                                              : c.type == DType::f16 ? 2e-3
                                                                                                     : 1.5e-2;
    if (!(relative <= limit)) wrong += " values";
    if (odd) wrong += format_text(" %lld-not-finite", static_cast<long long>(odd));
    if (wrong.empty() && !std::getenv("MOE_VERBOSE")) return;
    failures += !wrong.empty();
    std::printf("%s %-34s %-5s T %lld %s %s: error %.2e%s\n", wrong.empty() ? "ok  " : "FAIL", c.name, dtype_name(c.type),
                static_cast<long long>(n_), what, cuda::moe_kernels(b_.gpu->limits(), l_.gpu, static_cast<uint32_t>(n_)), relative,
                wrong.c_str());
  }

 private:
  Bench& b_;
  TestLayer& l_;
  const int64_t n_;
  const bool given_;
  bool same_ = true, guards_ = true;
  cuda::MoeWorkspace at_;
  std::vector<uint8_t> x_, logits_, router_weights_, expected_, seen_;
  std::vector<int32_t> ids_, device_ids_;
  std::vector<float> weights_, device_weights_;
};

void check(Bench& bench, const Case& c, std::initializer_list<int64_t> tokens, Routes routes = Routes::random, bool given = false) {
  TestLayer layer(bench.gpu, bench.stream.get(), c);
  static const char* const names[] = {"random", "one-expert", "ties", "nan"};
  for (int64_t n : tokens) {
    Run run(bench, layer, n, routes, given);
    run.cpu();
    std::string seen;
    for (const auto& [tensor_cores, wgmma] : {std::pair(true, true), {true, false}, {false, false}}) {
      layer.gpu.tensor_cores = tensor_cores;
      layer.gpu.wgmma = wgmma;
      const char* const kernels = cuda::moe_kernels(bench.gpu->limits(), layer.gpu, static_cast<uint32_t>(n));
      if (seen == kernels || (!tensor_cores && c.hidden > 1000)) continue;  // the same again, or slow
      seen = kernels;
      run.device();
      run.compare(names[static_cast<int>(routes)]);
      if (n > 16 || !tensor_cores) continue;
      layer.gpu.panels = 3;  // blocks that go from panel to panel
      run.device();
      run.compare("panels");
      layer.gpu.panels = 0;
    }
  }
}

constexpr auto kMid = ZeroPoints::middle, kPacked = ZeroPoints::packed;
constexpr auto kF32 = DType::f32, kF16 = DType::f16, kBf16 = DType::bf16, kE4m3 = DType::f8e4m3fn, kE8m0 = DType::f8e8m0;

void check_all(Bench& b, const std::string& only) {
  const Pairing inter = Pairing::interleaved, halves = Pairing::halves, sep = Pairing::separate, none = Pairing::none;
  const Case cases[] = {
      {"raw4 b32", Storage::raw, 4, 32, kMid, kF32, 256, 128, inter, kF32},
      {"raw4 b32 2880", Storage::raw, 4, 32, kMid, kF16, 2880, 2880, inter, kF16, 4, 4},
      {"raw4 b32 halves", Storage::raw, 4, 32, kMid, kBf16, 512, 160, halves, kBf16},
      {"raw4 b32 separate", Storage::raw, 4, 32, kMid, kF16, 1408, 96, sep, kF16},
      {"raw4 b64 none", Storage::raw, 4, 64, kMid, kF32, 512, 192, none, kF32, 6, 2, true, 0, ActivationKind::gelu},
      {"raw4 b16 zeros", Storage::raw, 4, 16, kPacked, kF16, 256, 96, inter, kF16},
      {"raw4 b128 zeros", Storage::raw, 4, 128, kPacked, kF32, 512, 256, inter, kF32},
      {"raw4 row zeros", Storage::raw, 4, 0, ZeroPoints::along_n, kF16, 256, 96, inter, kF16},
      {"raw4 byte zeros", Storage::raw, 4, 32, ZeroPoints::bytes, kBf16, 256, 96, inter, kBf16},
      {"raw4 odd", Storage::raw, 4, 16, kMid, kF32, 80, 48, inter, kF32},
      {"raw4 base 4", Storage::raw, 4, 32, kMid, kF32, 256, 96, inter, kF32, 6, 2, true, 0, ActivationKind::swiglu, 4},
      {"raw8 b32", Storage::raw, 8, 32, kMid, kF32, 256, 160, inter, kF32},
      {"raw8 row", Storage::raw, 8, 0, kMid, kF16, 1408, 96, inter, kF16},
      {"raw8 zeros", Storage::raw, 8, 64, kPacked, kBf16, 256, 192, halves, kBf16},
      {"raw2 b64", Storage::raw, 2, 64, kMid, kF16, 1408, 192, inter, kF16},
      {"raw2 zeros", Storage::raw, 2, 32, kPacked, kF32, 256, 96, inter, kF32},
      {"raw3 b32", Storage::raw, 3, 32, kMid, kF16, 2880, 160, inter, kF16},
      {"raw3 zeros", Storage::raw, 3, 64, kPacked, kF32, 256, 128, inter, kF32},
      {"raw 3,4", Storage::raw, 3, 32, kMid, kBf16, 256, 160, inter, kBf16, 6, 2, true, 4},
      {"raw 2,3", Storage::raw, 2, 64, kMid, kF16, 256, 128, inter, kF16, 6, 2, true, 3},
      {"sm80 4 b32", Storage::sm80, 4, 32, kMid, kF16, 2880, 192, inter, kF16},
      {"sm80 4 b64 f32", Storage::sm80, 4, 64, kMid, kF32, 256, 128, inter, kF32},
      {"sm80 4 halves", Storage::sm80, 4, 128, kMid, kBf16, 512, 128, halves, kBf16},
      {"sm80 4 separate", Storage::sm80, 4, 32, kMid, kF16, 512, 64, sep, kF16},
      {"sm80 8 b32", Storage::sm80, 8, 32, kMid, kBf16, 512, 192, inter, kBf16},
      {"sm80 2 b64", Storage::sm80, 2, 64, kMid, kF16, 512, 128, inter, kF16},
      {"nvfp4 k", Storage::fp4_by_k, 4, 16, kMid, kE4m3, 512, 160, inter, kBf16},
      {"nvfp4 k f32", Storage::fp4_by_k, 4, 16, kMid, kE4m3, 256, 96, inter, kF32},
      {"nvfp4 n", Storage::fp4_by_n, 4, 16, kMid, kE4m3, 256, 96, inter, kF16},
      {"mxfp4 k", Storage::fp4_by_k, 4, 32, kMid, kE8m0, 512, 160, inter, kF16},
      {"mxfp4 n", Storage::fp4_by_n, 4, 32, kMid, kE8m0, 256, 96, inter, kF32},
      {"fp8 expert", Storage::fp8, 8, 0, kMid, DType::undefined, 256, 160, inter, kF16},
      {"fp8 b128 separate", Storage::fp8, 8, 128, kMid, kF32, 512, 192, sep, kBf16},
      {"fp8 b32 f32", Storage::fp8, 8, 32, kMid, kF32, 256, 96, inter, kF32},
      {"dense f16", Storage::dense, 16, 0, kMid, kF16, 512, 160, inter, kF16},
      {"dense bf16 none", Storage::dense, 16, 0, kMid, kBf16, 256, 96, none, kBf16, 6, 2, true, 0, ActivationKind::silu},
      {"dense f32", Storage::dense, 32, 0, kMid, kF32, 256, 96, inter, kF32},
      {"dense f16, x f32", Storage::dense, 16, 0, kMid, kF16, 256, 96, inter, kF32},
      {"128 experts", Storage::raw, 4, 32, kMid, kF16, 256, 96, inter, kF16, 128, 8},
      {"300 experts", Storage::raw, 4, 32, kMid, kF16, 128, 32, inter, kF16, 300, 5},
      {"32 experts f32", Storage::raw, 4, 32, kMid, kF32, 256, 96, inter, kF32, 32, 4},
      {"geglu", Storage::raw, 4, 32, kMid, kF32, 256, 96, halves, kF32, 6, 2, true, 0, ActivationKind::geglu},
      {"relu2 no bias", Storage::raw, 4, 32, kMid, kF32, 256, 96, none, kF32, 6, 2, false, 0, ActivationKind::relu2},
  };
  for (const Case& c : cases) {
    if (std::string(c.name).find(only) == std::string::npos) continue;
    const bool large = c.hidden * c.inter > 1 << 20;
    if (large) {
      check(b, c, {1, 3});
    } else {
      check(b, c, {1, 2, 4, 7, 16, 70, 300});
      check(b, c, {9, 33, 200}, Routes::one_expert);
      check(b, c, {5, 16}, Routes::ties);
      check(b, c, {6, 40}, Routes::not_a_number);
      check(b, c, {2, 20}, Routes::ties, true);
    }
  }
}

}  // namespace

#include "bench_moe.h"

int main(int argc, char** argv) {
  int n = 0;
  std::string note, only;
  if (!cuda::device_count(&n, &note) || cuda::kFatbinCount == 0) {
    std::printf("%s\n", note.empty() || cuda::kFatbinCount == 0 ? "built without device code" : note.c_str());
    return 77;
  }
  uint64_t seed = std::random_device{}();
  bool bench_only = false;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    if (a == "--only" && i + 1 < argc)
      only = argv[++i];
    else if (a == "--bench")
      bench_only = true;
    else
      seed = std::strtoull(argv[i], nullptr, 10);
  }
  rng.seed(seed);
  Bench bench;
  bench.gpu = must(cuda::Gpu::open(0));
  bench.stream = must(cuda::OwnStream::make(bench.gpu));
  if (bench_only) {
    run_bench(bench.gpu, bench.stream.get(), only);
    return 0;
  }
  check_all(bench, only);
  std::printf("%d of %d checks failed, seed %llu\n", failures, checks, static_cast<unsigned long long>(seed));
  return failures ? 1 : 0;
}
