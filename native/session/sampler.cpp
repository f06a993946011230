// SPDX-License-Identifier: Apache-2.0
// Greedy choice, temperature, top-k, top-p and repetition penalty.
#include "session/sampler.h"

#include <algorithm>
#include <cmath>

#include "cpu_avx/convert.h"
#include "cpu_avx/sample_row.h"

namespace hotset {
namespace {

constexpr int64_t kMaxToken = int64_t{1} << 28;  // bound of the seen-token bitmap: 32 MiB
constexpr int64_t kSumBlock = 2048;              // weights whose sum is kept

}  // namespace

Status Sampler::check(const Config& c) {
  HOTSET_FAIL_IF(!(c.top_p > 0.0f && c.top_p <= 1.0f), invalid_argument, "top_p is %g, allowed (0, 1]", static_cast<double>(c.top_p));
  HOTSET_FAIL_IF(!(c.temperature >= 0.0f) || std::isinf(c.temperature), invalid_argument, "temperature is %g, allowed 0 and above",
                 static_cast<double>(c.temperature));
  HOTSET_FAIL_IF(!(c.repetition_penalty > 0.0f) || std::isinf(c.repetition_penalty), invalid_argument,
                 "repetition_penalty is %g, must be above 0", static_cast<double>(c.repetition_penalty));
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
const float* Sampler::penalised(DType dtype, const void* logits, int64_t n) {
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

// The k largest logits, best first, the lower id first among equals: ids in ids_, values in kept_. maxima_ holds the
// maxima of groups: the k-th largest of them is a bound that at least k values reach, so few have to be sorted.
void Sampler::keep_largest(const float* x, int64_t n, int64_t k) {
  float bound = -INFINITY;
  order_ = maxima_;
  if (k <= static_cast<int64_t>(order_.size())) {
    std::nth_element(order_.begin(), order_.begin() + (k - 1), order_.end(), std::greater<>());
    bound = order_[static_cast<size_t>(k - 1)];
  }
  ids_.resize(static_cast<size_t>(n + cpu::kSampleSlack));
  const int64_t count = cpu::sample_kernels().collect(x, n, bound, ids_.data());
  const auto better = [x](int32_t a, int32_t b) { return x[a] != x[b] ? x[a] > x[b] : a < b; };
  k = std::min(k, count);
  std::partial_sort(ids_.begin(), ids_.begin() + k, ids_.begin() + count, better);
  kept_.resize(static_cast<size_t>(k));
  for (int64_t i = 0; i < k; ++i) kept_[static_cast<size_t>(i)] = x[ids_[static_cast<size_t>(i)]];
}

// Draws one of the n weights w of mass `total`, in proportion; with top_p from the nucleus alone. -1: all weights are zero.
//
// Weights are ordered by size, the lower index first among equals, and the nucleus is a beginning of that order: a weight is
// in it when those before it do not reach top_p yet. So a draw is kept if the mass before it is small enough, else all that
// stands before it is what is left to draw from. Nothing is sorted, and it takes 1 + log(1 / top_p) rounds on average.
int64_t Sampler::choose(const float* w, int64_t n, double total) {
  const cpu::SampleKernels& kernels = cpu::sample_kernels();
  const double wanted = static_cast<double>(config_.top_p) * total;
  double mass = total;
  float border = 0;  // left to draw from: weights above it, and those equal to it at an index below `end`
  int64_t end = 0;
  for (;;) {
    size_t n_blocks = sums_.size();
    while (n_blocks > 0 && sums_[n_blocks - 1] == 0) --n_blocks;
    double left = uniform() * mass;
    int64_t drawn = -1;
    for (size_t block = 0; block < n_blocks && left >= 0; ++block) {
      if (sums_[block] <= left && block + 1 < n_blocks) {  // what rounding leaves at the end falls to the last weight
        left -= sums_[block];
        continue;
      }
      const int64_t from = static_cast<int64_t>(block) * kSumBlock, to = std::min(from + kSumBlock, n);
      for (int64_t i = from; i < to && left >= 0; ++i) {
        if (!(w[i] > border || (w[i] == border && i < end))) continue;
        drawn = i;
        left -= static_cast<double>(w[i]);
      }
    }
    if (drawn < 0 || config_.top_p == 1.0f) return drawn;

    const float value = w[drawn], below = std::nextafter(value, -INFINITY);
    double before = 0;
    for (size_t block = 0; block < sums_.size(); ++block) {
      const int64_t from = static_cast<int64_t>(block) * kSumBlock, to = std::min(from + kSumBlock, n),
                    middle = std::clamp(drawn, from, to);
      double sum = middle > from ? kernels.sum_above(w + from, middle - from, below) : 0;
      if (to > middle) sum += kernels.sum_above(w + middle, to - middle, value);
      before += sums_[block] = sum;
    }
    if (before < wanted) return drawn;
    mass = before;
    border = value;
    end = drawn;
  }
}

// One of n logits, in proportion to its weight, or the first of the best ones when all weights are zero.
int64_t Sampler::draw_one(const float* x, int64_t n, float best) {
  const float scale = 1.0f / config_.temperature;
  weights_.resize(static_cast<size_t>(n + cpu::kSampleSlack));
  sums_.clear();
  double total = 0;
  for (int64_t from = 0; from < n; from += kSumBlock) {
    sums_.push_back(cpu::sample_kernels().exp_weights(x + from, std::min(kSumBlock, n - from), best, scale, weights_.data() + from));
    total += sums_.back();
  }
  const int64_t i = choose(weights_.data(), n, total);
  return i < 0 ? std::find(x, x + n, best) - x : i;
}

int64_t Sampler::draw(const float* x, int64_t n, float best) {
  if (config_.top_k <= 0 || config_.top_k >= n) return draw_one(x, n, best);
  keep_largest(x, n, config_.top_k);
  return ids_[static_cast<size_t>(draw_one(kept_.data(), static_cast<int64_t>(kept_.size()), best))];
}

bool Sampler::is_greedy(float best) const { return !config_.do_sample || config_.temperature == 0.0f || std::isinf(best); }

int64_t Sampler::candidates(int64_t n) const {
  if (!seen_.empty()) return 0;
  if (is_greedy(0)) return 1;
  return config_.top_k > 0 && config_.top_k < n ? config_.top_k : 0;
}

Status Sampler::next_of(const int32_t* ids, const float* logits, int64_t n_candidates, int64_t* out) {
  HOTSET_FAIL_IF(n_candidates <= 0 || ids[0] < 0, invalid_argument, "every logit is NaN");
  int64_t n = 1;
  while (n < n_candidates && ids[n] >= 0) ++n;
  *out = ids[is_greedy(logits[0]) ? 0 : draw_one(logits, n, logits[0])];
  return accept(out, 1);
}

Status Sampler::next(DType dtype, const void* logits, int64_t n, int64_t* out) {
  HOTSET_FAIL_IF(n <= 0, invalid_argument, "the row of logits is empty");
  HOTSET_FAIL_IF(n > INT32_MAX, invalid_argument, "a vocabulary of %lld is too large", static_cast<long long>(n));
  const float* x = penalised(dtype, logits, n);
  maxima_.resize(static_cast<size_t>((n + cpu::kSampleChunk - 1) / cpu::kSampleChunk * 16));
  cpu::sample_kernels().group_maxima(x, n, maxima_.data());
  const auto best_group = std::max_element(maxima_.begin(), maxima_.end());
  const float best = *best_group;
  if (best == -INFINITY) {
    const bool any = std::any_of(x, x + n, [](float v) { return v == -INFINITY; });
    HOTSET_FAIL_IF(!any, invalid_argument, "every logit is NaN");
  }
  *out = is_greedy(best) ? std::find(x + (best_group - maxima_.begin()) / 16 * cpu::kSampleChunk, x + n, best) - x : draw(x, n, best);
  return accept(out, 1);
}

}  // namespace hotset
