// SPDX-License-Identifier: Apache-2.0
// Jobs of one mixture-of-experts layer: two parallel regions for a few rows, five for many.
#include "experts/expert_layer.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "cpu_avx/convert.h"

namespace hotset::experts {
namespace {

constexpr int64_t kFewRoutes = 128;               // up to here FC2 and the sum are one region
constexpr size_t kPieceBytes = size_t{96} << 20;  // of the buffers that grow with routes
constexpr int64_t kRowsPerJob = 256;
constexpr int64_t kInlineFloats = 24 << 10;  // prepared by the caller rather than by a region of its own

constexpr size_t round_up_64(size_t n) { return (n + 63) & ~size_t{63}; }
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Routes of one piece that go to one expert: rows [row, row + n) of the sorted order.
struct Group {
  int32_t expert;
  int32_t row, n;
  int32_t job;  // index of its first job of kRowsPerJob rows
};

// Whether jobs of this size are worth cutting finer at the end, so that threads end together.
bool worth_cutting(int64_t bytes_per_job, int n_threads) { return n_threads > 1 && bytes_per_job >= 128 << 10; }

// Row jobs times ranges of columns. The last quarter of the row jobs may have ranges a quarter as wide.
class Grid {
 public:
  Grid(int64_t n_row_jobs, int64_t n_columns, int64_t step, bool cut) : n_row_jobs_(n_row_jobs), n_columns_(n_columns), step_(step) {
    fine_step_ = cut ? fine(step) : step;
    coarse_ = cut ? n_row_jobs - ceil_div(n_row_jobs, 4) : n_row_jobs;
  }
  static int64_t fine(int64_t step) { return ceil_div(ceil_div(step, 4), WeightMatrix::kColumnStep) * WeightMatrix::kColumnStep; }

  int64_t n_jobs() const { return coarse_ * ceil_div(n_columns_, step_) + (n_row_jobs_ - coarse_) * ceil_div(n_columns_, fine_step_); }

  struct Job {
    int64_t row_job, n0, n;
  };
  Job job(int64_t i) const {
    const int64_t ranges = ceil_div(n_columns_, step_), n_coarse = coarse_ * ranges;
    if (i < n_coarse) return range(i / ranges, i % ranges, step_);
    const int64_t fine_ranges = ceil_div(n_columns_, fine_step_);
    return range(coarse_ + (i - n_coarse) / fine_ranges, (i - n_coarse) % fine_ranges, fine_step_);
  }

 private:
  Job range(int64_t row_job, int64_t i, int64_t step) const { return {row_job, i * step, std::min(step, n_columns_ - i * step)}; }

  int64_t n_row_jobs_, n_columns_, step_, fine_step_, coarse_;
};

// A piece of the call, and where its buffers lie in the workspace:
//
//   float_x [tokens][hidden]     only when x is not float32
//   groups, order, place, counts
//   prepared_x | rows [routes][hidden]   rows take the place of prepared_x, which FC1 has used up (many routes only)
//   prepared_h
//   h [routes][inter]
//   scratch [threads]
struct Plan {
  int64_t tokens, routes, max_groups;
  bool one_token, few;
  int64_t fc1_features;  // most features of a FC1 job, fc2_columns likewise
  int64_t fc2_columns;
  size_t float_x, groups, order, place, counts, prepared_x, rows, prepared_h, h, scratch, scratch_bytes, total;
};

int64_t floats_per_route(const ExpertLayer& layer) { return layer.hidden + 2 * layer.inter; }

Plan make_plan(const ExpertLayer& layer, int64_t tokens, int n_threads) {
  Plan p{};
  p.tokens = tokens;
  p.routes = tokens * layer.k;
  p.max_groups = std::min(layer.n_experts, p.routes);
  p.one_token = tokens == 1;
  p.few = p.routes <= kFewRoutes && p.max_groups <= layer.together;
  // One thread reads long runs of weights: every run begins with a wait for memory.
  const int64_t least = p.few && n_threads == 1 ? 4 * WeightMatrix::kUsualColumns : 0;
  const auto columns = [&](int64_t n, const WeightMatrix& w) {
    return std::min(ceil_div(n, WeightMatrix::kColumnStep) * WeightMatrix::kColumnStep, std::max(least, w.columns_of_job(p.routes)));
  };
  p.fc1_features = columns(layer.inter, layer.fc1);
  p.fc2_columns = columns(layer.hidden, layer.fc2);

  size_t at = 0;
  const auto place = [&at](size_t bytes) {
    const size_t here = at;
    at += round_up_64(bytes);
    return here;
  };
  const auto count = [](int64_t n) { return static_cast<size_t>(n); };
  p.float_x = place(layer.dtype == DType::f32 ? 0 : count(tokens * layer.hidden) * sizeof(float));
  p.groups = place(count(p.max_groups) * sizeof(Group));
  p.order = place(count(p.routes) * sizeof(int32_t));
  p.place = place(count(p.routes) * sizeof(int32_t));
  p.counts = place(count(layer.n_experts) * sizeof(int32_t));
  const size_t prepared_x = count(p.one_token ? 1 : p.routes) * layer.fc1.prepared_bytes(1);
  p.prepared_x = place(p.few ? prepared_x : std::max(prepared_x, count(p.routes * layer.hidden) * sizeof(float)));
  p.rows = p.prepared_x;
  p.prepared_h = place(count(p.routes) * layer.fc2.prepared_bytes(1));
  p.h = place(count(p.routes * layer.inter) * sizeof(float));

  // Scratch of a thread: FC1 results of a job and what its product needs, or FC2 results of all routes for a column range.
  const int64_t rows = std::min(p.routes, kRowsPerJob), features = p.fc1_features;
  size_t fc1 = round_up_64(count(rows * 2 * features) * sizeof(float)) + layer.fc1.scratch_bytes(p.routes, 2 * features);
  if (layer.pairing == Pairing::separate)
    fc1 = std::max(fc1, round_up_64(count(rows * 2 * features) * sizeof(float)) + layer.fc3.scratch_bytes(p.routes, features));
  // fc2_columns is a multiple of 16 floats, so all parts stay aligned.
  const size_t fc2 = count((1 + (p.few ? p.routes : 0)) * p.fc2_columns) * sizeof(float) + layer.fc2.scratch_bytes(p.routes, p.fc2_columns);
  p.scratch_bytes = round_up_64(std::max(fc1, fc2));
  p.scratch = place(p.scratch_bytes * count(n_threads));
  p.total = at;
  return p;
}

int64_t piece_tokens(const ExpertLayer& layer, int64_t n_tokens, int n_threads) {
  const int64_t per_token = layer.k * floats_per_route(layer) * static_cast<int64_t>(sizeof(float));
  int64_t most = std::min(n_tokens, std::max<int64_t>(static_cast<int64_t>(kPieceBytes) / std::max<int64_t>(per_token, 1), 64));
  while (most > 1 && make_plan(layer, most, n_threads).total > layer.working_bytes) most = ceil_div(most, 2);
  // Pieces of equal length: a short last one would read all weights again for few rows.
  return ceil_div(n_tokens, ceil_div(n_tokens, most));
}

class Piece {
 public:
  Piece(const ExpertLayer& layer, const LayerCall& call, const Plan& plan, int64_t token0)
      : layer_(layer),
        call_(call),
        plan_(plan),
        space_(static_cast<uint8_t*>(call.workspace)),
        token0_(token0),
        ids_(call.ids + token0 * layer.k),
        weights_(call.weights + token0 * layer.k) {}

  void run() {
    sort_routes();
    if (n_groups_ == 0) return sum();  // all routes were dropped
    if (call_.fetch) begin_fetch();
    prepare_x();
    fc1();
    prepare_h();
    if (plan_.few) {
      fc2_and_sum();
    } else {
      fc2();
      sum();
    }
    if (call_.fetch) call_.fetch->end();
  }

 private:
  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(space_ + offset);
  }
  uint8_t* scratch(int thread) const { return space_ + plan_.scratch + static_cast<size_t>(thread) * plan_.scratch_bytes; }
  size_t io_bytes() const { return static_cast<size_t>(dtype_bits(layer_.dtype)) / 8; }

  // A region of parallel jobs, or a plain loop when there is too little to do.
  template <class F>
  void jobs(int64_t n_jobs, bool parallel, F&& f) {
    if (parallel) return call_.pool->parallel_for(n_jobs, f);
    for (int64_t i = 0; i < n_jobs; ++i) f(i, 0);
  }

  // Counting sort of the routes by expert. order[row] is a route, place[route] its row, -1 for a dropped route.
  void sort_routes() {
    groups_ = at<Group>(plan_.groups);
    order_ = at<int32_t>(plan_.order);
    place_ = at<int32_t>(plan_.place);
    if (plan_.one_token) {
      for (int32_t j = 0, row = 0; j < plan_.routes; ++j) {
        place_[j] = ids_[j] < 0 ? -1 : row;
        if (ids_[j] < 0) continue;
        groups_[row] = {ids_[j], row, 1, row};
        order_[row] = j;
        n_groups_ = n_row_jobs_ = ++row;
      }
      return;
    }
    int32_t* const counts = at<int32_t>(plan_.counts);
    std::memset(counts, 0, static_cast<size_t>(layer_.n_experts) * sizeof(int32_t));
    for (int64_t r = 0; r < plan_.routes; ++r)
      if (ids_[r] >= 0) ++counts[ids_[r]];
    int32_t row = 0;
    for (int64_t e = 0; e < layer_.n_experts; ++e) {
      const int32_t n = counts[e];
      counts[e] = row;
      if (n == 0) continue;
      groups_[n_groups_++] = {static_cast<int32_t>(e), row, n, static_cast<int32_t>(n_row_jobs_)};
      n_row_jobs_ += ceil_div(n, kRowsPerJob);
      row += n;
    }
    for (int32_t r = 0; r < plan_.routes; ++r) {
      place_[r] = -1;
      if (ids_[r] < 0) continue;
      const int32_t here = counts[ids_[r]]++;
      order_[here] = r;
      place_[r] = here;
    }
  }

  // Experts at hand come first: they are computed while others are read.
  void begin_fetch() {
    std::partition(groups_, groups_ + n_groups_, [&](const Group& g) { return call_.fetch->is_at_hand(g.expert); });
    int32_t* const experts = at<int32_t>(plan_.counts);
    n_row_jobs_ = 0;
    for (int64_t g = 0; g < n_groups_; ++g) {
      experts[g] = groups_[g].expert;
      groups_[g].job = static_cast<int32_t>(n_row_jobs_);
      n_row_jobs_ += ceil_div(groups_[g].n, kRowsPerJob);
    }
    call_.fetch->begin(experts, n_groups_);
  }
  // Calls f(first row job, row jobs) for ranges of groups whose part of the weights is in memory together: one range, if all fit.
  template <class F>
  void each_range(int part, F&& f) {
    if (!call_.fetch) return f(0, n_row_jobs_);
    for (int64_t g0 = 0, g1 = 0; g0 < n_groups_; g0 = g1) {
      g1 = call_.fetch->next(part, g0);
      f(groups_[g0].job, (g1 < n_groups_ ? groups_[g1].job : n_row_jobs_) - groups_[g0].job);
    }
  }
  bool wait(int part, const Group& g) const { return !call_.fetch || call_.fetch->wait(part, &g - groups_); }

  struct RowJob {
    const Group* group;
    int64_t m0, m1;  // rows of the group
  };
  RowJob row_job(int64_t i) const {
    const Group* g = std::upper_bound(groups_, groups_ + n_groups_, i, [](int64_t job, const Group& group) { return job < group.job; }) - 1;
    const int64_t m0 = (i - g->job) * kRowsPerJob;
    return {g, m0, std::min<int64_t>(m0 + kRowsPerJob, g->n)};
  }

  uint8_t* prepared_x(const Group& g) const {
    return space_ + plan_.prepared_x + (plan_.one_token ? 0 : static_cast<size_t>(g.row) * layer_.fc1.prepared_bytes(1));
  }
  uint8_t* prepared_h(const Group& g) const {
    return space_ + plan_.prepared_h + static_cast<size_t>(g.row) * layer_.fc2.prepared_bytes(1);
  }

  void prepare_x() {
    const int64_t hidden = layer_.hidden;
    const uint8_t* const x = static_cast<const uint8_t*>(call_.x) + static_cast<size_t>(token0_ * hidden) * io_bytes();
    const float* float_x = reinterpret_cast<const float*>(x);
    const bool parallel = plan_.routes * hidden > kInlineFloats;
    if (layer_.dtype != DType::f32) {
      float* const converted = at<float>(plan_.float_x);
      float_x = converted;
      constexpr int64_t kTokens = 16;
      jobs(ceil_div(plan_.tokens, kTokens), parallel, [&](int64_t i, int) {
        const int64_t t0 = i * kTokens, n = std::min(kTokens, plan_.tokens - t0);
        cpu::to_f32(layer_.dtype, x + static_cast<size_t>(t0 * hidden) * io_bytes(), converted + t0 * hidden, n * hidden);
      });
    }
    if (plan_.one_token) return layer_.fc1.prepare(float_x, hidden, 1, 0, 1, prepared_x(groups_[0]));
    jobs(n_row_jobs_, parallel, [&](int64_t i, int) {
      const RowJob job = row_job(i);
      for (int64_t m = job.m0; m < job.m1; ++m) {  // one source row at a time: stride 0 makes it any row
        const float* row = float_x + order_[job.group->row + m] / layer_.k * hidden;
        layer_.fc1.prepare(row, 0, job.group->n, m, m + 1, prepared_x(*job.group));
      }
    });
  }

  // FC1, FC3 and the activation: a job is a range of rows of one expert and a range of features.
  void fc1() {
    each_range(0, [&](int64_t first, int64_t n) { fc1(first, n); });
  }

  void fc1(int64_t first, int64_t n_row_jobs) {
    const bool two = layer_.pairing == Pairing::interleaved || layer_.pairing == Pairing::halves;
    const MatrixForm& form = layer_.fc1.form();
    const int64_t bytes_per_feature = static_cast<int64_t>(form.weight_bytes()) / std::max<int64_t>(layer_.inter, 1);
    const int64_t step = columns_per_job(layer_.inter, plan_.fc1_features, n_row_jobs, call_.pool->size(), bytes_per_feature);
    const Grid grid(n_row_jobs, layer_.inter, step, worth_cutting(step * bytes_per_feature, call_.pool->size()));
    float* const h = at<float>(plan_.h);
    jobs(grid.n_jobs(), true, [&, two](int64_t i, int thread) {
      const auto [row_job_index, i0, n] = grid.job(i);
      const RowJob job = row_job(first + row_job_index);
      const Group& g = *job.group;
      if (!wait(0, g)) return;
      const int64_t rows = job.m1 - job.m0;
      const int64_t width = two || layer_.pairing == Pairing::separate ? 2 * n : n;
      float* const a = reinterpret_cast<float*>(scratch(thread));
      void* const space = scratch(thread) + round_up_64(static_cast<size_t>(rows * width) * sizeof(float));
      const ExpertBytes& expert = call_.experts[g.expert];
      const auto product = [&](const WeightMatrix& w, const MatrixBytes& bytes, int64_t n0, int64_t n1, float* y, const NextColumns& then) {
        w.multiply(bytes, prepared_x(g), g.n, job.m0, job.m1, n0, n1, y, width, space, then);
      };
      NextColumns next;
      if (const int64_t later = i + call_.pool->size(); later < grid.n_jobs() && !call_.fetch) {
        const auto next_job = grid.job(later);
        next = {&call_.experts[row_job(first + next_job.row_job).group->expert].fc1, next_job.n0};
      }
      switch (layer_.pairing) {
        case Pairing::interleaved:
          next.n0 *= 2;
          product(layer_.fc1, expert.fc1, 2 * i0, 2 * (i0 + n), a, next);
          break;
        case Pairing::none:
          product(layer_.fc1, expert.fc1, i0, i0 + n, a, next);
          break;
        case Pairing::halves:
          product(layer_.fc1, expert.fc1, i0, i0 + n, a, {&expert.fc1, layer_.inter + i0});
          product(layer_.fc1, expert.fc1, layer_.inter + i0, layer_.inter + i0 + n, a + n, next);
          break;
        case Pairing::separate:
          product(layer_.fc1, expert.fc1, i0, i0 + n, a, {&expert.fc3, i0});
          product(layer_.fc3, expert.fc3, i0, i0 + n, a + n, next);
          break;
      }
      for (int64_t m = 0; m < rows; ++m) {
        const float* row = a + m * width;
        float* out = h + (g.row + job.m0 + m) * layer_.inter + i0;
        const float* value = layer_.pairing == Pairing::halves || layer_.pairing == Pairing::separate ? row + n : nullptr;
        activate(layer_.activation, row, value, layer_.pairing == Pairing::interleaved, n, out);
      }
    });
  }

  void prepare_h() {
    const float* const h = at<float>(plan_.h);
    jobs(n_row_jobs_, plan_.routes * layer_.inter > kInlineFloats, [&](int64_t i, int) {
      const RowJob job = row_job(i);
      layer_.fc2.prepare(h + job.group->row * layer_.inter, layer_.inter, job.group->n, job.m0, job.m1, prepared_h(*job.group));
    });
  }

  // A job is a range of output columns for all routes: its rows stay in the scratch of the thread and are summed there.
  void fc2_and_sum() {
    const MatrixForm& form = layer_.fc2.form();
    const int64_t bytes_per_column = static_cast<int64_t>(form.weight_bytes()) / std::max<int64_t>(form.n, 1) * n_groups_;
    // Where wide ranges are read best, one a thread.
    const int64_t ranges_together = plan_.fc2_columns > WeightMatrix::kUsualColumns && call_.pool->size() > 1 ? 4 : 1;
    const int64_t step = columns_per_job(layer_.hidden, plan_.fc2_columns, ranges_together, call_.pool->size(), bytes_per_column);
    if (call_.fetch) call_.fetch->next(1, 0);
    // The last quarter of the columns goes in jobs a quarter as wide.
    const bool cut = worth_cutting(step * bytes_per_column, call_.pool->size());
    const int64_t coarse = cut ? layer_.hidden * 3 / 4 / step * step : ceil_div(layer_.hidden, step) * step, fine_step = Grid::fine(step);
    const int64_t n_coarse = coarse / step, n_fine = cut ? ceil_div(layer_.hidden - coarse, fine_step) : 0;
    struct Columns {
      int64_t n0, n;
    };
    const auto columns = [&](int64_t i) {
      const int64_t n0 = i < n_coarse ? i * step : coarse + (i - n_coarse) * fine_step;
      return Columns{n0, std::min(i < n_coarse ? step : fine_step, layer_.hidden - n0)};
    };
    jobs(n_coarse + n_fine, true, [&](int64_t i, int thread) {
      const auto [n0, n] = columns(i);
      float* const line = reinterpret_cast<float*>(scratch(thread));
      float* const rows = line + plan_.fc2_columns;
      for (int64_t g = 0; g < n_groups_; ++g) {
        const Group& group = groups_[g];
        const bool same_columns = g + 1 < n_groups_;
        const NextColumns next = {&call_.experts[groups_[same_columns ? g + 1 : 0].expert].fc2,
                                  same_columns ? n0 : columns(std::min(i + call_.pool->size(), n_coarse + n_fine - 1)).n0};
        fc2_rows({&group, 0, group.n}, n0, n, rows + group.row * n, n, line, rows + plan_.routes * plan_.fc2_columns, next);
      }
      for (int64_t t = 0; t < plan_.tokens; ++t) sum_token(t, n0, n, rows, n, 0, line);
    });
  }

  // A job is a range of rows of one expert and a range of output columns.
  void fc2() {
    each_range(1, [&](int64_t first, int64_t n) { fc2(first, n); });
  }

  void fc2(int64_t first, int64_t n_row_jobs) {
    const MatrixForm& form = layer_.fc2.form();
    const int64_t bytes_per_column = static_cast<int64_t>(form.weight_bytes()) / std::max<int64_t>(form.n, 1);
    const int64_t step = columns_per_job(layer_.hidden, plan_.fc2_columns, n_row_jobs, call_.pool->size(), bytes_per_column);
    const Grid grid(n_row_jobs, layer_.hidden, step, worth_cutting(step * bytes_per_column, call_.pool->size()));
    float* const rows = at<float>(plan_.rows);
    jobs(grid.n_jobs(), true, [&](int64_t i, int thread) {
      const auto [row_job_index, n0, n] = grid.job(i);
      const RowJob job = row_job(first + row_job_index);
      float* const y = rows + (job.group->row + job.m0) * layer_.hidden + n0;
      float* const line = reinterpret_cast<float*>(scratch(thread));
      NextColumns next;
      if (const int64_t later = i + call_.pool->size(); later < grid.n_jobs()) {
        const auto next_job = grid.job(later);
        next = {&call_.experts[row_job(first + next_job.row_job).group->expert].fc2, next_job.n0};
      }
      fc2_rows(job, n0, n, y, layer_.hidden, line, line + plan_.fc2_columns, next);
    });
  }

  // Columns [n0, n0 + n) of what the rows of a job add: the product, rounded to the type of the layer, plus the bias.
  void fc2_rows(const RowJob& job, int64_t n0, int64_t n, float* y, int64_t ldy, float* line, void* space,
                const NextColumns& next = {}) const {
    const Group& g = *job.group;
    if (!wait(1, g)) return;
    const MatrixBytes& bytes = call_.experts[g.expert].fc2;
    layer_.fc2.multiply(bytes, prepared_h(g), g.n, job.m0, job.m1, n0, n0 + n, y, ldy, space, call_.fetch ? NextColumns{} : next);
    const float* bias = nullptr;
    if (layer_.fc2_bias != DType::undefined) {
      cpu::to_f32(layer_.fc2_bias, bytes.bias + n0 * dtype_bits(layer_.fc2_bias) / 8, line, n);
      bias = line;
    }
    for (int64_t m = 0; m < job.m1 - job.m0; ++m, y += ldy) {
      if (layer_.dtype == DType::f16)
        for (int64_t c = 0; c < n; ++c) y[c] = f16_to_f32(f32_to_f16(y[c]));
      if (layer_.dtype == DType::bf16)
        for (int64_t c = 0; c < n; ++c) y[c] = bf16_to_f32(f32_to_bf16(y[c]));
      if (bias)
        for (int64_t c = 0; c < n; ++c) y[c] += bias[c];
    }
  }

  void sum() {
    constexpr int64_t kTokens = 8;
    jobs(ceil_div(plan_.tokens, kTokens), true, [&](int64_t i, int thread) {
      float* const total = reinterpret_cast<float*>(scratch(thread));
      for (int64_t t = i * kTokens; t < std::min(plan_.tokens, (i + 1) * kTokens); ++t)
        for (int64_t n0 = 0; n0 < layer_.hidden; n0 += plan_.fc2_columns)
          sum_token(t, n0, std::min(plan_.fc2_columns, layer_.hidden - n0), at<float>(plan_.rows), layer_.hidden, n0, total);
    });
  }

  // Columns [n0, n0 + n) of token t: its rows in the order of routes. They begin at column c0 of `rows`.
  void sum_token(int64_t t, int64_t n0, int64_t n, const float* rows, int64_t ldr, int64_t c0, float* total) const {
    uint8_t* const y = static_cast<uint8_t*>(call_.y) + static_cast<size_t>((token0_ + t) * layer_.hidden + n0) * io_bytes();
    if (layer_.dtype == DType::f32) total = reinterpret_cast<float*>(y);
    bool is_first = true;
    for (int64_t j = 0; j < layer_.k; ++j) {
      const int32_t place = place_[t * layer_.k + j];
      if (place < 0) continue;
      const float* const row = rows + place * ldr + c0;
      const float w = weights_[t * layer_.k + j];
      if (is_first) {
        for (int64_t c = 0; c < n; ++c) total[c] = w * row[c];
        is_first = false;
      } else {
        for (int64_t c = 0; c < n; ++c) total[c] += w * row[c];
      }
    }
    if (is_first) std::memset(total, 0, static_cast<size_t>(n) * sizeof(float));
    if (layer_.dtype != DType::f32) cpu::from_f32(layer_.dtype, total, y, n);
  }

  const ExpertLayer& layer_;
  const LayerCall& call_;
  const Plan& plan_;
  uint8_t* const space_;
  const int64_t token0_;
  const int32_t* const ids_;
  const float* const weights_;
  Group* groups_ = nullptr;
  int32_t* order_ = nullptr;
  int32_t* place_ = nullptr;
  int64_t n_groups_ = 0, n_row_jobs_ = 0;
};

}  // namespace

size_t expert_layer_workspace(const ExpertLayer& layer, int64_t n_tokens, int n_threads) {
  if (n_tokens == 0) return 0;
  const int64_t piece = piece_tokens(layer, n_tokens, n_threads), rest = n_tokens % piece;
  const size_t total = make_plan(layer, piece, n_threads).total;
  return rest == 0 ? total : std::max(total, make_plan(layer, rest, n_threads).total);
}

size_t expert_layer_packing(const ExpertLayer& layer, int64_t n_tokens, int n_threads) {
  if (n_tokens == 0) return 0;
  return make_plan(layer, piece_tokens(layer, n_tokens, n_threads), n_threads).scratch_bytes * static_cast<size_t>(n_threads);
}

void run_expert_layer(const ExpertLayer& layer, const LayerCall& call) {
  if (call.n_tokens == 0) return;
  const int64_t piece = piece_tokens(layer, call.n_tokens, call.pool->size());
  for (int64_t t = 0; t < call.n_tokens; t += piece) {
    const Plan plan = make_plan(layer, std::min(piece, call.n_tokens - t), call.pool->size());
    Piece(layer, call, plan, t).run();
  }
}

}  // namespace hotset::experts
