// SPDX-License-Identifier: Apache-2.0
// Greedy choice, temperature, top-k, top-p and repetition penalty.
#include "session/sampler.h"

#include <algorithm>
#include <cmath>

#include "cpu_avx/convert.h"

namespace hotset {
namespace {

constexpr int64_t kMaxToken = int64_t{1} << 28;  // bound of the seen-token bitmap: 32 MiB

// Largest value that is not NaN; -infinity when there is none. Eight chains so that the compiler vectorises it.
float maximum(const float* x, int64_t n) {
  float best[8];
  std::fill(best, best + 8, -INFINITY);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int j = 0; j < 8; ++j) best[j] = x[i + j] > best[j] ? x[i + j] : best[j];
  float m = -INFINITY;
  for (; i < n; ++i) m = x[i] > m ? x[i] : m;
  for (float b : best) m = b > m ? b : m;
  return m;
}

}  // namespace

Status Sampler::check(const Config& c) {
  HOTSET_FAIL_IF(!(c.top_p > 0.0f && c.top_p <= 1.0f), invalid_argument, "top_p is %g, allowed (0, 1]", static_cast<double>(c.top_p));
  HOTSET_FAIL_IF(!(c.temperature >= 0.0f) || std::isinf(c.temperature), invalid_argument, "temperature is %g, allowed 0 and above",
                 static_cast<double>(c.temperature));
  HOTSET_FAIL_IF(!(c.repetition_penalty > 0.0f) || std::isinf(c.repetition_penalty), invalid_argument, "repetition_penalty is %g, must be above 0",
                 static_cast<double>(c.repetition_penalty));
  return {};
}

Status Sampler::accept(const int64_t* tokens, size_t n_tokens) {
  if (config_.repetition_penalty == 1.0f) return {};
  for (size_t i = 0; i < n_tokens; ++i) {
    const int64_t t = tokens[i];
    HOTSET_FAIL_IF(t < 0 || t >= kMaxToken, invalid_argument, "token %lld is out of range", static_cast<long long>(t));
    if (static_cast<size_t>(t) >= is_seen_.size()) is_seen_.resize(static_cast<size_t>(t) + 1);
    if (is_seen_[static_cast<size_t>(t)]) continue;
    is_seen_[static_cast<size_t>(t)] = true;
    seen_.push_back(t);
  }
  return {};
}

// float32 logits after the penalty; the caller's own row when nothing has to change.
const float* Sampler::scaled_logits(DType dtype, const void* logits, int64_t n) {
  const bool aligned = reinterpret_cast<uintptr_t>(logits) % alignof(float) == 0;
  if (dtype == DType::f32 && seen_.empty() && aligned) return static_cast<const float*>(logits);
  row_.resize(static_cast<size_t>(n));
  cpu::to_f32(dtype, logits, row_.data(), n);
  for (int64_t t : seen_) {
    if (t >= n) continue;
    float& x = row_[static_cast<size_t>(t)];
    x = x > 0 ? x / config_.repetition_penalty : x * config_.repetition_penalty;
  }
  return row_.data();
}

double Sampler::uniform() {  // splitmix64 of a counter: the same sequence everywhere
  uint64_t z = config_.seed + ++draws_ * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

// The k best values in candidates_, best first, the lower id first among equals.
void Sampler::largest(const float* x, int64_t n, size_t k) {
  const auto better = [](const Candidate& a, const Candidate& b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; };
  candidates_.clear();
  for (int64_t i = 0; i < n; ++i) {
    if (!(x[i] > -INFINITY)) continue;  // NaN and -infinity are never drawn
    const Candidate c{x[i], static_cast<int32_t>(i)};
    if (candidates_.size() < k) {
      candidates_.push_back(c);
      std::push_heap(candidates_.begin(), candidates_.end(), better);
    } else if (c.logit > candidates_.front().logit) {
      std::pop_heap(candidates_.begin(), candidates_.end(), better);
      candidates_.back() = c;
      std::push_heap(candidates_.begin(), candidates_.end(), better);
    }
  }
  std::sort_heap(candidates_.begin(), candidates_.end(), better);
}

int64_t Sampler::draw(const float* x, int64_t n, float best) {
  const double scale = 1.0 / static_cast<double>(config_.temperature);
  const auto weight = [&](float logit) { return std::exp((static_cast<double>(logit) - static_cast<double>(best)) * scale); };
  const bool limited = config_.top_k > 0 && config_.top_k < n;
  double total = 0;
  if (limited) {
    largest(x, n, static_cast<size_t>(config_.top_k));
    for (const Candidate& c : candidates_) total += weight(c.logit);
  } else {
    for (int64_t i = 0; i < n; ++i)
      if (x[i] > -INFINITY) total += weight(x[i]);
    if (config_.top_p >= 1.0f) {  // no set to find: one pass in id order
      double left = uniform() * total;
      int64_t last = 0;
      for (int64_t i = 0; i < n; ++i) {
        if (!(x[i] > -INFINITY)) continue;
        last = i;
        if ((left -= weight(x[i])) < 0) break;
      }
      return last;
    }
  }
  // The nucleus: grow the sorted head until it holds top_p of the mass.
  const double wanted = static_cast<double>(config_.top_p) * total;
  size_t count = 0;
  double mass = 0;
  for (size_t k = 256;; k *= 8) {
    if (!limited) largest(x, n, std::min(k, static_cast<size_t>(n)));
    mass = 0;
    count = 0;
    while (count < candidates_.size() && (count == 0 || mass < wanted)) mass += weight(candidates_[count++].logit);
    if (limited || mass >= wanted || k >= static_cast<size_t>(n)) break;
  }
  double left = uniform() * mass;
  for (size_t i = 0; i < count; ++i)
    if ((left -= weight(candidates_[i].logit)) < 0) return candidates_[i].id;
  return candidates_[count - 1].id;
}

Status Sampler::next(DType dtype, const void* logits, int64_t n, int64_t* out) {
  HOTSET_FAIL_IF(n <= 0, invalid_argument, "the row of logits is empty");
  HOTSET_FAIL_IF(n > INT32_MAX, invalid_argument, "a vocabulary of %lld is too large", static_cast<long long>(n));
  const float* x = scaled_logits(dtype, logits, n);
  const float best = maximum(x, n);
  if (best == -INFINITY) {
    const bool any = std::any_of(x, x + n, [](float v) { return v == -INFINITY; });
    HOTSET_FAIL_IF(!any, invalid_argument, "every logit is NaN");
  }
  const bool greedy = !config_.do_sample || config_.temperature == 0.0f || std::isinf(best);
  *out = greedy ? std::find(x, x + n, best) - x : draw(x, n, best);
  return accept(out, 1);
}

}  // namespace hotset
