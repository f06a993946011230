// SPDX-License-Identifier: Apache-2.0
// Where experts lie, from sizes and budgets: every bound is kept, refusals say what is needed.
#include "experts/store_plan.h"

#include <cstdio>
#include <cstdlib>
#include <random>

using namespace hotset;
using namespace hotset::experts;

namespace {

int failures = 0;
void expect(bool ok, const char* what) {
  if (ok) return;
  ++failures;
  std::printf("FAILED: %s\n", what);
}

StoreRequest request() {  // 4 layers of 8 experts, 2 a row; frames as large as the parts
  StoreRequest r;
  r.layers.assign(4, {8, 2, {2000, 1000}, {2000, 1000}});
  r.has_bound = true;
  r.n_readers = 4;
  return r;
}

constexpr size_t kAll = 4 * 8 * 3000, kLeast = 4 * 3000;  // twice the two experts of a row

StorePlan plan_of(const StoreRequest& r) {
  auto plan = plan_expert_store(r);
  if (!plan.ok()) std::printf("%s\n", plan.take_status().text().c_str());
  return plan.ok() ? plan.value() : StorePlan();
}

bool is_refused(const StoreRequest& r, const char* text) {
  auto plan = plan_expert_store(r);
  if (plan.ok()) return false;
  const Status status = plan.take_status();
  return status.code() == Code::budget && status.text().find("OFFLOAD_HOST_MEMORY") == 0 && status.text().find(text) != std::string::npos &&
         status.text().find('\n') == std::string::npos;
}

void homes() {
  StoreRequest r = request();
  r.bound = kAll;
  expect(plan_of(r).home == ExpertHome::mapped && plan_of(r).bound_bytes == kAll, "all fit");
  r.pages = HostPages::huge;
  expect(plan_of(r).home == ExpertHome::cached && plan_of(r).holds_all && plan_of(r).frames_bytes() == kAll, "huge pages for all");
  r.pages = HostPages::automatic;
  r.bound = kAll - 1;
  expect(is_refused(r, std::to_string(kAll).c_str()) && is_refused(r, "allow_file_backing=1"), "one byte less");
  r.allow_file_backing = true;
  StorePlan plan = plan_of(r);
  expect(plan.home == ExpertHome::cached && !plan.holds_all && plan.bound_bytes <= r.bound && plan.bound_bytes > r.bound - 3000, "a cache");
  r.io = FileIo::map;
  expect(plan_of(r).home == ExpertHome::paged, "pages");
  r.bound = kLeast + 4 * 3000 - 1;  // no room for what readers bring in beyond the bound
  expect(plan_of(r).home == ExpertHome::cached, "pages need one expert a reader more");
}

void borders() {
  StoreRequest r = request();
  r.allow_file_backing = true;
  r.bound = 0;
  StorePlan plan = plan_of(r);
  expect(plan.minimum_bytes == kLeast && plan.bound_bytes == kLeast, "0 is the least");
  r.bound = kLeast;
  expect(plan_of(r).bound_bytes == kLeast, "the least");
  r.bound = kLeast - 1;
  expect(is_refused(r, std::to_string(kLeast).c_str()), "less than the least");
  r.bound = UINT64_MAX;
  expect(plan_of(r).home == ExpertHome::mapped, "the largest bound");
  r.fixed_bytes = 500;
  r.bound = kLeast + 499;
  expect(is_refused(r, std::to_string(kLeast + 500).c_str()), "what lies in memory anyway counts");
  r.bound = kLeast + 500;
  expect(plan_of(r).bound_bytes == kLeast + 500, "the least with what lies in memory anyway");

  r = request();
  r.has_bound = false;
  r.available_bytes = kAll;
  expect(plan_of(r).home == ExpertHome::mapped, "auto: all are available");
  r.available_bytes = kAll - 1;
  expect(plan_of(r).home == ExpertHome::mapped && plan_of(r).is_short, "auto: not all are available");
  r.is_chosen = true;
  expect(is_refused(r, "host_expert_bytes is auto and") && is_refused(r, std::to_string(kAll).c_str()), "auto that was asked for");
  r.is_chosen = false;
  r.allow_file_backing = true;
  expect(plan_of(r).bound_bytes <= (kAll - 1) / 4 * 3 && plan_of(r).home == ExpertHome::cached, "auto: three quarters");
  r.available_bytes = 1;
  expect(plan_of(r).bound_bytes == kLeast, "auto: at least the least");
}

void empty() {
  StoreRequest r;
  expect(plan_of(r).home == ExpertHome::mapped && plan_of(r).bound_bytes == 0, "no layers");
  r.fixed_bytes = 100;
  r.has_bound = true;
  r.bound = 99;
  expect(is_refused(r, "given as bytes"), "all in memory");
  r.layers.push_back({1, 1, {0, 700}, {0, 4096}});  // FC1 is not in a file
  r.bound = 100 + 4096;
  r.allow_file_backing = true;
  StorePlan plan = plan_of(r);
  expect(plan.pool_of[0][0] == -1 && plan.home == ExpertHome::mapped, "one part");
  r.bound = 100 + 699;
  expect(is_refused(r, "at least 800 bytes"), "all are less than a frame and its alignment");
}

// Any layers, any bound: frames stay within it, each pool has its least and never more than its parts.
void random_plans() {
  std::mt19937 rng(3);
  const auto pick = [&](int low, int high) { return low + static_cast<int>(rng() % static_cast<unsigned>(high - low + 1)); };
  for (int round = 0; round < 3000; ++round) {
    StoreRequest r;
    r.has_bound = r.allow_file_backing = true;
    r.fixed_bytes = static_cast<size_t>(pick(0, 1) * pick(0, 9999));
    r.n_readers = pick(1, 4);
    r.io = static_cast<FileIo>(pick(0, 2));
    r.pages = static_cast<HostPages>(pick(0, 2));
    for (int l = pick(1, 6); l > 0; --l) {
      LayerSize layer{pick(1, 40), 1, {}, {}};
      layer.k = pick(1, static_cast<int>(layer.n_experts));
      for (int part = 0; part < 2; ++part) {
        layer.part_bytes[part] = static_cast<size_t>(pick(0, 3) * 700);
        layer.frame_bytes[part] = layer.part_bytes[part] ? (layer.part_bytes[part] + 4095 + 4095) / 4096 * 4096 : 0;
      }
      r.layers.push_back(layer);
    }
    r.bound = 0;
    auto least = plan_expert_store(r);
    if (!least.ok()) {
      expect(false, "0 is refused");
      continue;
    }
    const size_t minimum = least.value().minimum_bytes;
    r.bound = minimum + rng() % 2000000;
    if (r.bound == 0) continue;
    const StorePlan plan = plan_of(r);
    expect(plan.bound_bytes <= r.bound, "within the bound");
    expect(plan.pools.empty() || plan.bound_bytes == r.fixed_bytes + plan.frames_bytes(), "frames are the bound");
    for (size_t l = 0; l < r.layers.size(); ++l)
      for (int part = 0; part < 2 && !plan.pools.empty(); ++part) {
        const int p = plan.pool_of[part][l];
        expect((p < 0) == (r.layers[l].frame_bytes[part] == 0), "a pool for each part");
        if (p < 0) continue;
        const FramePool& pool = plan.pools[static_cast<size_t>(p)];
        expect(pool.frame_bytes == r.layers[l].frame_bytes[part] && pool.n_frames <= pool.n_parts, "frames of the right size");
        expect(pool.n_frames >= std::min(pool.n_parts, 2 * r.layers[l].k), "two sets of the experts of a row");
      }
    if (r.bound > 1 && minimum > 1) {
      r.bound = minimum - 1;
      if (plan.total_bytes + r.fixed_bytes > r.bound) expect(!plan_expert_store(r).ok(), "below the least");
    }
  }
}

}  // namespace

int main() {
  homes();
  borders();
  empty();
  random_plans();
  if (failures) return EXIT_FAILURE;
  std::printf("ok\n");
  return EXIT_SUCCESS;
}
