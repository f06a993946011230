// SPDX-License-Identifier: Apache-2.0
// Sizes and budgets -> home of the experts and frames of each pool.
#include "experts/store_plan.h"

#include <algorithm>

namespace hotset::experts {
namespace {

struct Pools {
  std::vector<FramePool> pools;
  std::vector<int64_t> least;  // frames that one run needs, by pool
  std::vector<int> pool_of[2];
};

Pools make_pools(const std::vector<LayerSize>& layers) {
  Pools p;
  for (const LayerSize& layer : layers) {
    int found[2] = {-1, -1};
    for (int part = 0; part < 2; ++part) {
      const size_t bytes = layer.frame_bytes[part];
      if (bytes > 0) {
        const auto at = std::find_if(p.pools.begin(), p.pools.end(), [&](const FramePool& pool) { return pool.frame_bytes == bytes; });
        found[part] = static_cast<int>(at - p.pools.begin());
        if (at == p.pools.end()) {
          p.pools.push_back({bytes, 0, 0});
          p.least.push_back(0);
        }
        p.pools[static_cast<size_t>(found[part])].n_parts += layer.n_experts;
      }
      p.pool_of[part].push_back(found[part]);
    }
    // The k experts of a row, and as many of the next row or of another run while they are read.
    const int64_t parts = found[0] == found[1] ? 2 : 1;
    for (const int pool : found)
      if (pool >= 0) p.least[static_cast<size_t>(pool)] = std::max(p.least[static_cast<size_t>(pool)], 2 * parts * layer.k);
  }
  for (size_t i = 0; i < p.pools.size(); ++i) p.least[i] = std::min(p.least[i], p.pools[i].n_parts);
  return p;
}

uint64_t bytes_of(const std::vector<FramePool>& pools) {
  uint64_t bytes = 0;
  for (const FramePool& pool : pools) bytes += pool.frame_bytes * static_cast<uint64_t>(pool.n_frames);
  return bytes;
}

// Every pool holds the same part of what belongs to it, as far as its least number of frames allows.
void fill_pools(Pools& p, uint64_t budget) {
  const auto give = [&](double part) {
    for (size_t i = 0; i < p.pools.size(); ++i) {
      FramePool& pool = p.pools[i];
      pool.n_frames = std::max(p.least[i], static_cast<int64_t>(part * static_cast<double>(pool.n_parts)));
    }
    return bytes_of(p.pools) <= budget;
  };
  double low = 0, high = 1;
  if (give(high)) return;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (give(middle) ? low : high) = middle;
  }
  give(low);
  for (FramePool& pool : p.pools) {  // what rounding left over
    const uint64_t left = budget - bytes_of(p.pools);
    pool.n_frames += static_cast<int64_t>(std::min<uint64_t>(left / pool.frame_bytes, static_cast<uint64_t>(pool.n_parts - pool.n_frames)));
  }
}

}  // namespace

const char* home_name(ExpertHome home) {
  switch (home) {
    case ExpertHome::mapped:
      return "mapped";
    case ExpertHome::cached:
      return "cached";
    case ExpertHome::paged:
      return "paged";
  }
  return "mapped";
}

size_t StorePlan::frames_bytes() const { return static_cast<size_t>(bytes_of(pools)); }

Result<StorePlan> plan_expert_store(const StoreRequest& r) {
  StorePlan plan;
  Pools pools = make_pools(r.layers);
  plan.pool_of[0] = pools.pool_of[0];
  plan.pool_of[1] = pools.pool_of[1];
  size_t largest = 0;
  for (const LayerSize& layer : r.layers) {
    plan.total_bytes += static_cast<size_t>(layer.n_experts) * (layer.part_bytes[0] + layer.part_bytes[1]);
    largest = std::max(largest, layer.frame_bytes[0] + layer.frame_bytes[1]);
  }
  for (size_t i = 0; i < pools.pools.size(); ++i) pools.pools[i].n_frames = pools.least[i];
  plan.minimum_bytes = r.fixed_bytes + static_cast<size_t>(bytes_of(pools.pools));
  if (pools.pools.empty()) {
    HOTSET_FAIL_IF(
        r.has_bound && r.bound > 0 && r.bound < r.fixed_bytes, budget,
        "OFFLOAD_HOST_MEMORY: the experts are %zu bytes of the model given as bytes, session.moe.offload.host_expert_bytes is %llu",
        r.fixed_bytes, static_cast<unsigned long long>(r.bound));
    plan.bound_bytes = r.fixed_bytes;
    plan.reason = "no expert lies in a file";
    return plan;
  }

  const size_t all = r.fixed_bytes + plan.total_bytes;
  uint64_t bound = r.has_bound ? (r.bound == 0 ? plan.minimum_bytes : r.bound) : r.available_bytes;
  if (!r.has_bound && bound < all) {
    HOTSET_FAIL_IF(r.is_chosen && !r.allow_file_backing, budget,
                   "OFFLOAD_HOST_MEMORY: the experts need %zu bytes of host memory, session.moe.offload.host_expert_bytes is auto and %llu "
                   "are available; with session.moe.offload.allow_file_backing=1 they are read from the file as needed and %zu are enough",
                   all, static_cast<unsigned long long>(bound), std::min(plan.minimum_bytes, all));
    if (!r.allow_file_backing) {  // a model that runs without this library's options, as slow as the system makes it
      plan.bound_bytes = all;
      plan.is_short = true;
      plan.reason = format_text(
          "mapped, but %zu bytes of experts are more than the %llu of memory available: the system reads them again and again; "
          "session.moe.offload.allow_file_backing=1 keeps those in memory that are used most",
          all, static_cast<unsigned long long>(bound));
      return plan;
    }
    bound = std::max<uint64_t>(bound / 4 * 3, plan.minimum_bytes);
  }
  if (bound < all) {
    HOTSET_FAIL_IF(!r.allow_file_backing, budget,
                   "OFFLOAD_HOST_MEMORY: the experts need %zu bytes of host memory, session.moe.offload.host_expert_bytes is %llu; with "
                   "session.moe.offload.allow_file_backing=1 they are read from the file as needed and %zu are enough",
                   all, static_cast<unsigned long long>(bound), std::min(plan.minimum_bytes, all));
    HOTSET_FAIL_IF(bound < plan.minimum_bytes, budget,
                   "OFFLOAD_HOST_MEMORY: the experts need at least %zu bytes of host memory (two sets of the experts of a row, or all), "
                   "session.moe.offload.host_expert_bytes is %llu",
                   std::min(plan.minimum_bytes, all), static_cast<unsigned long long>(bound));
  }

  fill_pools(pools, bound - std::min<uint64_t>(bound, r.fixed_bytes));
  const bool fits_frames = std::all_of(pools.pools.begin(), pools.pools.end(), [](const FramePool& p) { return p.n_frames == p.n_parts; });
  if (bound >= all && (r.pages != HostPages::huge || !fits_frames)) {
    plan.bound_bytes = all;
    plan.reason = r.pages == HostPages::huge ? "mapped: the bound has no room for the alignment of experts in huge pages" : "mapped";
    return plan;
  }
  plan.pools = pools.pools;
  plan.holds_all = fits_frames;
  const bool spare = bound >= plan.minimum_bytes + static_cast<uint64_t>(r.n_readers) * largest;
  plan.home = r.io == FileIo::map && !fits_frames && spare ? ExpertHome::paged : ExpertHome::cached;
  plan.bound_bytes = r.fixed_bytes + plan.frames_bytes();
  plan.reason = fits_frames                      ? "read once into huge pages"
                : plan.home == ExpertHome::paged ? "pages of the mapped file, brought in and given back"
                : r.io == FileIo::map            ? "read into a cache: the bound is too small to map pages in and out"
                                                 : "read into a cache";
  return plan;
}

}  // namespace hotset::experts
