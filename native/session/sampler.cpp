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
constexpr int64_t kBlock = 64;                   // elements whose largest value is kept
constexpr int64_t kSortAtMost = 64;              // a nucleus border among so few values is found by sorting

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

// The k largest logits, best first, the lower id first among equals: ids in ids_, values in kept_. maxima_ holds the block
// maxima: the k-th largest of them is a bound that at least k values reach, so few have to be sorted.
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

// The nucleus of the weights w of mass `total`: all values above the returned border and the first *n_ties values equal to
// it. A quickselect by mass.
float Sampler::nucleus_border(const float* w, int64_t n, double total, int64_t* n_ties) {
  const cpu::SampleKernels& kernels = cpu::sample_kernels();
  const double wanted = static_cast<double>(config_.top_p) * total;
  const size_t room = static_cast<size_t>(n + cpu::kSampleSlack);
  for (std::vector<float>& part : parts_) part.resize(room);
  const float* current = w;
  int64_t count = n;
  double above = 0;       // mass of what is certainly in
  double inside = total;  // mass of `current`
  int free_part = 0;
  for (int round = 0; count > kSortAtMost; ++round) {
    // Where the border lies in a sample, a little to either side in turn: two passes then leave a narrow band.
    float probe[kSortAtMost];
    double probed = 0;
    for (int64_t i = 0; i < kSortAtMost; ++i) probed += static_cast<double>(probe[i] = current[(count - 1) * i / (kSortAtMost - 1)]);
    std::sort(probe, probe + kSortAtMost, std::greater<>());
    int at = 0;
    for (double sum = static_cast<double>(probe[0]); at < kSortAtMost - 1 && sum * inside < (wanted - above) * probed; ++at)
      sum += static_cast<double>(probe[at + 1]);
    at = round % 2 ? std::max(at - 6, 0) : std::min<int>(at + 6, kSortAtMost - 1);
    float pivot = probe[at];
    // Buffers: `current` is w or one of three; the other two take the parts.
    float* high = parts_[free_part % 3].data();
    float* low = parts_[(free_part + 1) % 3].data();
    int64_t n_high = 0;
    double mass = kernels.split(current, count, pivot, high, &n_high, low);
    if (n_high == count) {  // nothing below: part off the values equal to the pivot, unless all are
      pivot = std::nextafter(pivot, INFINITY);
      mass = kernels.split(current, count, pivot, high, &n_high, low);
      if (n_high == 0) break;
    }
    const bool in_high = above + mass >= wanted;
    if (!in_high) above += mass;
    inside = in_high ? mass : inside - mass;
    current = in_high ? high : low;
    count = in_high ? n_high : count - n_high;
    free_part = (free_part + (in_high ? 1 : 2)) % 3;
  }
  if (count == 0) {  // rounding of the sums left nothing: everything is in
    *n_ties = n;
    return -1.0f;
  }
  std::vector<float>& sorted = parts_[3];
  std::copy(current, current + count, sorted.begin());
  std::sort(sorted.begin(), sorted.begin() + count, std::greater<>());
  const float* last = sorted.data();
  for (int64_t i = 0; i < count; ++i) {
    last = sorted.data() + i;
    above += static_cast<double>(*last);
    if (above >= wanted) break;
  }
  *n_ties = std::count(static_cast<const float*>(sorted.data()), last + 1, *last);
  return *last;
}

int64_t Sampler::draw(const float* x, int64_t n, float best) {
  const cpu::SampleKernels& kernels = cpu::sample_kernels();
  const float scale = 1.0f / config_.temperature;
  const bool limited = config_.top_k > 0 && config_.top_k < n;
  if (limited) keep_largest(x, n, config_.top_k);
  const float* row = limited ? kept_.data() : x;
  const int64_t count = limited ? static_cast<int64_t>(kept_.size()) : n;
  weights_.resize(static_cast<size_t>(count + cpu::kSampleSlack));
  float* const w = weights_.data();
  const double total = kernels.exp_weights(row, count, best, scale, w);

  float border = 0.0f;  // without a nucleus: every weight above zero
  int64_t n_ties = 0;
  double mass = total;
  if (config_.top_p < 1.0f) {
    border = nucleus_border(w, count, total, &n_ties);
    mass = kernels.sum_above(w, count, border) + static_cast<double>(n_ties) * static_cast<double>(border);
  }
  // Walk in id order (in order of rank after top-k): whole blocks first, then one by one.
  double left = uniform() * mass;
  int64_t last = -1, ties_left = n_ties;
  constexpr int64_t kStride = 2048;
  for (int64_t from = 0; from < count; from += kStride) {
    const int64_t to = std::min(from + kStride, count);
    if (ties_left == 0) {
      const double block = kernels.sum_above(w + from, to - from, border);
      if (block == 0) continue;
      if (block <= left && to < count) {
        left -= block;
        continue;
      }
    }
    for (int64_t i = from; i < to; ++i) {
      const bool tie = w[i] == border && ties_left > 0;
      if (!(w[i] > border || tie)) continue;
      ties_left -= tie;
      last = i;
      if ((left -= static_cast<double>(w[i])) < 0) return limited ? ids_[static_cast<size_t>(i)] : i;
    }
  }
  if (last < 0) return std::find(x, x + n, best) - x;
  return limited ? ids_[static_cast<size_t>(last)] : last;
}

Status Sampler::next(DType dtype, const void* logits, int64_t n, int64_t* out) {
  HOTSET_FAIL_IF(n <= 0, invalid_argument, "the row of logits is empty");
  HOTSET_FAIL_IF(n > INT32_MAX, invalid_argument, "a vocabulary of %lld is too large", static_cast<long long>(n));
  const float* x = penalised(dtype, logits, n);
  maxima_.resize(static_cast<size_t>((n + kBlock - 1) / kBlock));
  cpu::sample_kernels().block_maxima(x, n, kBlock, maxima_.data());
  const auto best_block = std::max_element(maxima_.begin(), maxima_.end());
  const float best = *best_block;
  if (best == -INFINITY) {
    const bool any = std::any_of(x, x + n, [](float v) { return v == -INFINITY; });
    HOTSET_FAIL_IF(!any, invalid_argument, "every logit is NaN");
  }
  const bool greedy = !config_.do_sample || config_.temperature == 0.0f || std::isinf(best);
  *out = greedy ? std::find(x + (best_block - maxima_.begin()) * kBlock, x + n, best) - x : draw(x, n, best);
  return accept(out, 1);
}

}  // namespace hotset
