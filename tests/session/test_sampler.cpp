// SPDX-License-Identifier: Apache-2.0
// The sampler against a plain reference: which tokens may be drawn, how often, and that every instruction set agrees.
#include "session/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "cpu_avx/cpu_features.h"
#include "cpu_avx/sample_row.h"

using namespace hotset;

namespace {

int failures = 0;
void expect(bool ok, const char* what, long detail = 0) {
  if (ok) return;
  if (++failures < 20) std::printf("FAILED: %s (%ld)\n", what, detail);
}

std::vector<float> random_row(std::mt19937& random, int n, int kind) {
  std::normal_distribution<float> normal(0, kind == 1 ? 8.0f : 2.0f);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) {
    v = normal(random);
    if (kind == 2) v = std::round(v);  // many ties
    if (kind == 3) v = 1.0f;           // all equal
    if (kind == 4 && random() % 5 == 0) v = random() % 2 ? NAN : -INFINITY;
  }
  return x;
}

// Probabilities by the text of the public header, in float64.
std::vector<double> reference(const std::vector<float>& x, const Sampler::Config& c) {
  std::vector<int> order;
  for (int i = 0; i < static_cast<int>(x.size()); ++i)
    if (x[static_cast<size_t>(i)] > -INFINITY) order.push_back(i);
  const auto at = [&](int i) { return static_cast<double>(x[static_cast<size_t>(i)]); };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return at(a) > at(b); });
  if (c.top_k > 0 && c.top_k < static_cast<int>(order.size())) order.resize(static_cast<size_t>(c.top_k));
  std::vector<double> p(x.size(), 0.0);
  double total = 0;
  for (int i : order) total += p[static_cast<size_t>(i)] = std::exp((at(i) - at(order[0])) / static_cast<double>(c.temperature));
  double kept = 0;
  bool full = false;
  for (int i : order) {
    if (full) p[static_cast<size_t>(i)] = 0;
    kept += p[static_cast<size_t>(i)];
    full = full || (c.top_p < 1.0f && kept >= static_cast<double>(c.top_p) * total);
  }
  for (double& v : p) v /= kept;
  return p;
}

void frequencies_follow_the_distribution() {
  std::mt19937 random(7);
  const Sampler::Config configs[] = {{true, 0, 1.0f, 1.0f, 1.0f, 1}, {true, 5, 1.0f, 0.7f, 1.0f, 2},  {true, 0, 0.9f, 1.0f, 1.0f, 3},
                                     {true, 0, 0.5f, 1.5f, 1.0f, 4}, {true, 40, 0.8f, 1.2f, 1.0f, 5}, {true, 0, 0.02f, 1.0f, 1.0f, 6},
                                     {true, 1, 1.0f, 1.0f, 1.0f, 7}, {true, 0, 0.999f, 1.0f, 1.0f, 8}};
  for (int n : {1, 5, 63, 64, 65, 200, 3000}) {
    for (int kind = 0; kind < 5; ++kind) {
      std::vector<float> x = random_row(random, n, kind);
      x[static_cast<size_t>(n / 2)] = 3.0f;
      for (const Sampler::Config& c : configs) {
        const std::vector<double> p = reference(x, c);
        Sampler sampler(c);
        constexpr int kDraws = 3000;
        std::vector<int> count(x.size(), 0);
        for (int d = 0; d < kDraws; ++d) {
          int64_t token = -1;
          expect(sampler.next(DType::f32, x.data(), n, &token).ok(), "next succeeds");
          expect(token >= 0 && token < n, "the token is in range");
          if (token >= 0 && token < n) ++count[static_cast<size_t>(token)];
        }
        for (int i = 0; i < n; ++i) {
          const double e = p[static_cast<size_t>(i)] * kDraws;
          const int got = count[static_cast<size_t>(i)];
          if (p[static_cast<size_t>(i)] == 0)
            expect(got == 0, "only the allowed tokens are drawn", n * 100 + kind);
          else
            expect(std::fabs(got - e) < 6 * std::sqrt(e) + 6, "frequencies agree", n * 100 + kind);
        }
      }
    }
  }
}

void greedy_and_penalty() {
  const std::vector<float> x = {1.0f, 5.0f, NAN, 5.0f, -2.0f};
  int64_t token = -1;
  Sampler greedy({});
  expect(greedy.next(DType::f32, x.data(), 5, &token).ok() && token == 1, "greedy takes the lower id among equals");
  Sampler::Config c;
  c.repetition_penalty = 2.0f;
  Sampler penalty(c);
  const int64_t expected[] = {1, 3, 1};  // 5, 5 -> 2.5, 5 -> 2.5, 2.5
  for (int64_t want : expected)
    expect(penalty.next(DType::f32, x.data(), 5, &token).ok() && token == want, "the penalty divides once", want);
  const std::vector<float> negative = {-1.0f, -1.5f};
  Sampler again(c);
  const int64_t first = 0;
  expect(again.accept(&first, 1).ok() && again.next(DType::f32, negative.data(), 2, &token).ok() && token == 1,
         "a negative logit is multiplied");
  const std::vector<float> nans(3, NAN);
  expect(!greedy.next(DType::f32, nans.data(), 3, &token).ok(), "a row of NaN is refused");
  expect(!greedy.next(DType::f32, nans.data(), 0, &token).ok(), "an empty row is refused");
  const int64_t negative_token = -1;
  expect(!penalty.accept(&negative_token, 1).ok(), "a negative token is refused");
  for (const Sampler::Config& bad : {Sampler::Config{true, 0, 0.0f}, Sampler::Config{true, 0, 1.5f}, Sampler::Config{true, 0, NAN},
                                     Sampler::Config{true, 0, 1.0f, -1.0f}, Sampler::Config{true, 0, 1.0f, 1.0f, 0.0f}})
    expect(!Sampler::check(bad).ok(), "a bad configuration is refused");
}

// The best logits of a row choose as the row does.
void candidates_choose_the_same() {
  std::mt19937 random(13);
  for (int n : {1, 2, 64, 3000}) {
    for (int kind = 0; kind < 5; ++kind) {
      const std::vector<float> x = random_row(random, n, kind);
      std::vector<int32_t> order;
      for (int i = 0; i < n; ++i)
        if (!std::isnan(x[static_cast<size_t>(i)])) order.push_back(i);
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return x[static_cast<size_t>(a)] > x[static_cast<size_t>(b)]; });
      order.resize(static_cast<size_t>(n), -1);
      std::vector<float> best;
      for (const int32_t i : order) best.push_back(i < 0 ? -INFINITY : x[static_cast<size_t>(i)]);
      for (const Sampler::Config& c : {Sampler::Config{}, Sampler::Config{true, 5, 0.9f, 0.7f, 1.0f, 3},
                                       Sampler::Config{true, 40, 1.0f, 1.5f, 1.0f, 4}, Sampler::Config{true, 7, 1.0f, 0.0f, 1.0f, 5}}) {
        Sampler whole(c), part(c);
        const int64_t k = part.candidates(n);
        expect(!c.do_sample || c.temperature == 0.0f ? k == 1 : k == (c.top_k < n ? c.top_k : 0), "the number of candidates", k);
        if (k == 0) continue;
        for (int draw = 0; draw < 50; ++draw) {
          int64_t token = -1, of = -1;
          const bool ok = whole.next(DType::f32, x.data(), n, &token).ok();
          expect(part.next_of(order.data(), best.data(), k, &of).ok() == ok && token == of, "candidates choose as the row", n * 100 + kind);
        }
      }
    }
  }
  Sampler::Config penalty;
  penalty.repetition_penalty = 2.0f;
  Sampler sampler(penalty);
  const int64_t token = 3;
  expect(sampler.candidates(10) == 1 && sampler.accept(&token, 1).ok() && sampler.candidates(10) == 0, "a penalty takes the whole row");
}

void same_bits_on_every_instruction_set() {
  std::vector<const cpu::SampleKernels*> tiers = {&cpu::sample_kernels_scalar()};
#if defined(__x86_64__)
  if (cpu::cpu_features().avx2) tiers.push_back(&cpu::sample_kernels_avx2());
  if (cpu::cpu_features().avx512) tiers.push_back(&cpu::sample_kernels_avx512());
#elif defined(__aarch64__)
  if (cpu::cpu_features().neon) tiers.push_back(&cpu::sample_kernels_neon());
#endif
  std::mt19937 random(11);
  for (int n : {1, 15, 16, 17, 4095, 4096, 4097, 20000}) {
    for (int kind = 0; kind < 5; ++kind) {
      const std::vector<float> x = random_row(random, n, kind);
      std::vector<float> w0, maxima0;
      std::vector<int32_t> ids0;
      double sum0 = 0, above0 = 0;
      for (const cpu::SampleKernels* k : tiers) {
        const size_t room = static_cast<size_t>(n + cpu::kSampleSlack);
        std::vector<float> w(room), maxima(static_cast<size_t>((n + cpu::kSampleChunk - 1) / cpu::kSampleChunk * 16));
        std::vector<int32_t> ids(room);
        k->group_maxima(x.data(), n, maxima.data());
        const double sum = k->exp_weights(x.data(), n, 3.0f, 0.8f, w.data());
        w.resize(static_cast<size_t>(n));
        ids.resize(static_cast<size_t>(k->collect(x.data(), n, 0.5f, ids.data())));
        const double above = k->sum_above(w.data(), n, 0.1f);
        if (k == tiers[0]) {
          w0 = w, maxima0 = maxima, ids0 = ids, sum0 = sum, above0 = above;
          for (int i = 0; i < n; ++i) {
            const double want = x[static_cast<size_t>(i)] > -INFINITY
                                    ? std::exp((static_cast<double>(x[static_cast<size_t>(i)]) - 3.0) * static_cast<double>(0.8f))
                                    : 0.0;
            const double room = want > 0 ? 3e-7 * (1 + std::fabs(static_cast<double>(x[static_cast<size_t>(i)]) - 3.0)) * want : 0;
            if (x[static_cast<size_t>(i)] < 3.0f) expect(std::fabs(w[static_cast<size_t>(i)] - want) <= room, "weights are accurate", i);
          }
          continue;
        }
        expect(w == w0 && maxima == maxima0 && ids == ids0 && sum == sum0 && above == above0, "tiers agree bit for bit", n);
      }
    }
  }
}

}  // namespace

int main() {
  frequencies_follow_the_distribution();
  greedy_and_penalty();
  candidates_choose_the_same();
  same_bits_on_every_instruction_set();
  if (!failures) std::printf("ok\n");
  return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
