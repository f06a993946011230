// SPDX-License-Identifier: Apache-2.0
// Where the values of a run lie.
#include <algorithm>
#include <climits>
#include <map>

#include "session/plan.h"

namespace hotset {
namespace {

constexpr size_t kDeviceAlignment = 256;

size_t aligned(size_t n, size_t to = AlignedBuffer::kAlignment) { return (n + to - 1) & ~(to - 1); }

// Free parts of a block that grows at its top; the smallest that fits is taken.
class FreeRanges {
 public:
  size_t take(size_t bytes) {
    auto best = ranges_.end();
    for (auto it = ranges_.begin(); it != ranges_.end(); ++it)
      if (it->second >= bytes && (best == ranges_.end() || it->second < best->second)) best = it;
    if (best == ranges_.end()) {
      size_t offset = top_;
      if (!ranges_.empty()) {  // extend a free range at the top instead of starting above it
        const auto last = std::prev(ranges_.end());
        if (last->first + last->second == top_) {
          offset = last->first;
          ranges_.erase(last);
        }
      }
      top_ = offset + bytes;
      return offset;
    }
    const size_t offset = best->first, rest = best->second - bytes;
    ranges_.erase(best);
    if (rest) ranges_.emplace(offset + bytes, rest);
    return offset;
  }
  void give(size_t offset, size_t bytes) {
    if (!bytes) return;
    auto next = ranges_.lower_bound(offset);
    if (next != ranges_.end() && offset + bytes == next->first) {
      bytes += next->second;
      next = ranges_.erase(next);
    }
    if (next != ranges_.begin()) {
      const auto previous = std::prev(next);
      if (previous->first + previous->second == offset) {
        previous->second += bytes;
        return;
      }
    }
    ranges_.emplace(offset, bytes);
  }
  size_t top() const { return top_; }

 private:
  std::map<size_t, size_t> ranges_;  // offset -> bytes
  size_t top_ = 0;
};

}  // namespace

Status Plan::layout() {
  ++n_layouts_;
  active_.clear();
  copies_.clear();
  io_views_.clear();
  for (PlanValue& v : values_) {
    v.output = -1;
    v.last_reader = -1;
  }
  find_live_steps();
  place_values();
  find_last_readers();
  place_outputs();
  join_overwritten();
  HOTSET_TRY(assign_offsets());
  list_active_steps();
  return {};
}

// Steps that a requested output needs; the others are left out of the run.
void Plan::find_live_steps() {
  const auto& steps = program_.steps();
  const auto& graph = program_.graph();
  live_.assign(steps.size(), 0);
  std::vector<char> read_by_live(values_.size(), 0);
  for (size_t o = 0; o < graph.outputs.size(); ++o)
    if (requested_[o]) read_by_live[graph.outputs[o]] = 1;
  for (size_t s = steps.size(); s-- > 0;) {
    if (s < static_cast<size_t>(first_dynamic_) && skipped_[s]) continue;
    for (int32_t id : steps[s].outputs) live_[s] |= id != model::kNone && read_by_live[id];
    if (!live_[s]) continue;
    for (const auto& [condition, value] : program_.node(steps[s]).guards) read_by_live[condition] = 1;
    for (int32_t id : steps[s].inputs)
      if (id != model::kNone) read_by_live[id] = 1;
  }
}

bool Plan::is_bound_copy(const Step& step) const { return step.kind == StepKind::upload && bound_on_device_[step.inputs[0]]; }

// Places and roots, in the order in which values are made.
void Plan::place_values() {
  const auto& steps = program_.steps();
  runs_.assign(first_dynamic_, 0);
  for (int s = 0; s < first_dynamic_; ++s) {
    for (int32_t id : steps[s].outputs) {
      if (id == model::kNone) continue;
      PlanValue& v = values_[id];
      v.root = id;
      v.root_offset = 0;
      if (skipped_[s]) {
        v.place = Place::none;
        v.root = -1;
      } else if (v.is_known) {
        v.place = Place::known;
        v.tensor.data = v.content.data();
      } else if (v.view_of >= 0) {
        v.place = values_[v.view_of].root < 0 ? Place::none : Place::view;
        v.root = values_[v.view_of].root;
        v.root_offset = values_[v.view_of].root_offset + v.view_offset;
      } else if (is_bound_copy(steps[s])) {
        v.place = Place::input;
      } else {
        v.place = live_[s] ? Place::arena : Place::none;
        runs_[s] |= live_[s] && v.bytes > 0;  // nothing is computed for empty results, however many rows of nothing they have
      }
    }
  }
  for (size_t s = first_dynamic_; s < steps.size(); ++s)
    for (int32_t id : steps[s].outputs)
      if (id != model::kNone) values_[id].place = Place::none;
}

// Last readers. What the dynamic part reads lives to the end.
void Plan::find_last_readers() {
  const auto& steps = program_.steps();
  const auto read = [&](int32_t id, int s) {
    if (id != model::kNone && values_[id].root >= 0)
      values_[values_[id].root].last_reader = std::max(values_[values_[id].root].last_reader, s);
  };
  for (int s = 0; s < first_dynamic_; ++s)
    if (runs_[s])
      for (int32_t id : steps[s].inputs) read(id, s);
  for (size_t s = first_dynamic_; s < steps.size(); ++s) {
    if (!live_[s]) continue;
    for (int32_t id : steps[s].inputs)
      if (id != model::kNone && values_[id].place != Place::none) read(id, INT_MAX);
    for (const auto& [condition, value] : program_.node(steps[s]).guards)
      if (values_[condition].place != Place::none) read(condition, INT_MAX);
  }
}

// Requested outputs. A value in the arena moves to the caller's buffer; a view of all of such a value takes it along.
void Plan::place_outputs() {
  const auto& graph = program_.graph();
  for (size_t o = 0; o < graph.outputs.size(); ++o) {
    if (!requested_[o]) continue;
    const int32_t id = graph.outputs[o];
    PlanValue& v = values_[id];
    if (v.place == Place::none) {  // made by the dynamic part
      if (v.output < 0)
        v.output = static_cast<int>(o);
      else
        copies_.emplace_back(static_cast<int>(o), id);
      continue;
    }
    PlanValue& root = values_[v.root];
    const bool on_its_side = program_.on_device(id) == (wanted_on_device_[o] != 0);
    if (root.place == Place::arena && v.root_offset == 0 && v.bytes == root.bytes && on_its_side) {
      root.place = Place::output;
      root.output = static_cast<int>(o);
    } else {
      copies_.emplace_back(static_cast<int>(o), id);
      root.last_reader = INT_MAX;
    }
  }
}

// Outputs written over an input that nobody reads later join the input's place.
void Plan::join_overwritten() {
  const auto& steps = program_.steps();
  for (int s = 0; s < first_dynamic_; ++s) {
    for (int32_t id : steps[s].outputs) {
      if (id == model::kNone) continue;
      PlanValue& v = values_[id];
      if (v.place == Place::view) {  // the root of its root may have joined another
        v.root_offset = values_[v.view_of].root_offset + v.view_offset;
        v.root = values_[v.view_of].root;
      }
      if (v.place != Place::arena || v.overwrites < 0 || v.last_reader <= s) continue;  // one that nobody reads may not clobber another
      PlanValue& source = values_[v.overwrites];
      if (source.root < 0) continue;
      PlanValue& root = values_[source.root];
      if (root.place != Place::arena || root.last_reader != s || source.root_offset != 0 || root.bytes != v.bytes ||
          source.bytes != v.bytes || program_.on_device(id) != program_.on_device(v.overwrites))
        continue;
      v.place = Place::view;
      v.root = source.root;
      v.root_offset = 0;
      root.last_reader = v.last_reader;
    }
  }
}

// Offsets: a walk over the steps.
Status Plan::assign_offsets() {
  const auto& steps = program_.steps();
  FreeRanges sides[2];  // host, device
  std::vector<std::vector<int32_t>> ends(first_dynamic_);
  const auto too_large = [] { return fail(Code::out_of_memory, "the values of this run need more than %zu bytes at a time", kMaxBytes); };
  const auto room = [&](int32_t id) {
    return aligned(values_[id].bytes, program_.on_device(id) ? kDeviceAlignment : AlignedBuffer::kAlignment);
  };
  workspace_max_ = device_workspace_max_ = 0;
  for (int s = 0; s < first_dynamic_; ++s) {
    if (!runs_[s]) continue;
    if (workspace_[s] > kMaxBytes) return too_large();
    size_t& workspace = steps[s].device ? device_workspace_max_ : workspace_max_;
    workspace = std::max(workspace, aligned(workspace_[s], steps[s].device ? kDeviceAlignment : AlignedBuffer::kAlignment));
    for (int32_t id : steps[s].outputs) {
      if (id == model::kNone || values_[id].place != Place::arena) continue;
      PlanValue& v = values_[id];
      FreeRanges& ranges = sides[program_.on_device(id)];
      v.offset = ranges.take(room(id));
      if (ranges.top() > kMaxBytes) return too_large();
      const int end = std::max(v.last_reader, s);
      if (end < first_dynamic_) ends[end].push_back(id);
    }
    for (int32_t id : ends[s]) sides[program_.on_device(id)].give(values_[id].offset, room(id));
  }
  arena_bytes_ = workspace_max_ + sides[0].top();
  device_arena_bytes_ = device_workspace_max_ + sides[1].top();
  return {};
}

// What a run executes, and the views whose memory changes from run to run.
void Plan::list_active_steps() {
  const auto& steps = program_.steps();
  size_t n_pointers = 0;
  for (int s = 0; s < first_dynamic_; ++s)
    if (runs_[s]) n_pointers += steps[s].inputs.size() + steps[s].outputs.size();
  pointers_.assign(n_pointers, nullptr);
  size_t p = 0;
  for (int s = 0; s < first_dynamic_; ++s) {
    for (int32_t id : steps[s].outputs) {
      if (id == model::kNone || values_[id].place != Place::view) continue;
      const Place root = values_[values_[id].root].place;
      if (root == Place::input || root == Place::output || root == Place::constant || root == Place::known) io_views_.push_back(id);
    }
    if (!runs_[s]) continue;
    const auto list = [&](const std::vector<model::ValueId>& ids) {
      Tensor** first = pointers_.data() + p;
      for (int32_t id : ids) pointers_[p++] = id == model::kNone ? nullptr : &values_[id].tensor;
      return std::span<Tensor* const>(first, ids.size());
    };
    const auto in = list(steps[s].inputs), out = list(steps[s].outputs);
    active_.push_back({s, {in, out, nullptr, nullptr}});
    if (steps[s].kind != StepKind::upload) continue;
    const PlanValue& source = values_[steps[s].inputs[0]];
    const Place place = values_[source.root].place;
    if (place == Place::arena || (place == Place::input && source.bytes > kMostStaged)) continue;
    active_.back().staging_offset = arena_bytes_;
    arena_bytes_ += aligned(source.bytes);
  }
}

void Plan::bind_arena(void* memory, void* device_memory) {
  std::byte* const bases[2] = {static_cast<std::byte*>(memory) + workspace_max_,
                               static_cast<std::byte*>(device_memory) + device_workspace_max_};
  for (size_t id = 0; id < values_.size(); ++id)
    if (PlanValue& v = values_[id]; v.place == Place::arena) v.tensor.data = bases[program_.on_device(static_cast<int32_t>(id))] + v.offset;
  for (PlanValue& v : values_)
    if (v.place == Place::view && values_[v.root].place == Place::arena)
      v.tensor.data = static_cast<std::byte*>(values_[v.root].tensor.data) + v.root_offset;
  for (ActiveStep& a : active_) {
    a.context.workspace = program_.steps()[a.step].device ? device_memory : memory;
    a.staging = a.staging_offset == kNoStaging ? nullptr : static_cast<std::byte*>(memory) + a.staging_offset;
  }
}

void Plan::bind_views() {
  for (int32_t id : io_views_) {
    PlanValue& v = values_[id];
    v.tensor.data = static_cast<std::byte*>(values_[v.root].tensor.data) + v.root_offset;
  }
}

}  // namespace hotset
