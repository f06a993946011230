// SPDX-License-Identifier: Apache-2.0
// Where the experts of a session lie on the host: a decision from sizes and budgets alone. No clock, no system call.
//
// The unit of everything is a part: of one expert either its first matrices (FC1 and FC3) or its last (FC2), with scales, zero
// points and biases. A frame holds one part. Parts of one size share a pool of frames.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace hotset::experts {

enum class HostPages { automatic, map, huge };  // hotset.host_pages
enum class FileIo { automatic, map, read };     // hotset.file_io

enum class ExpertHome {
  mapped,  // in the mapped file, which host memory has room for
  cached,  // in frames of anonymous memory, read from the file when first needed; frames for all parts or for some
  paged,   // in the mapped file, whose pages are brought in and given back
};

const char* home_name(ExpertHome home);

// Parts of one layer.
struct LayerSize {
  int64_t n_experts = 0, k = 1;
  size_t part_bytes[2] = {};   // in the file
  size_t frame_bytes[2] = {};  // with what alignment adds; 0: the layer has no such part in a file
};

struct StoreRequest {
  std::vector<LayerSize> layers;
  size_t fixed_bytes = 0;        // bytes of experts that lie in host memory whatever is decided
  bool has_bound = false;        // else host_expert_bytes=auto
  uint64_t bound = 0;            // 0 with has_bound: the minimum
  uint64_t available_bytes = 0;  // memory of this machine or control group that is free or can be freed
  bool allow_file_backing = false;
  bool is_chosen = false;  // somebody chose host_expert_bytes or allow_file_backing, if only as they are by default
  HostPages pages = HostPages::automatic;
  FileIo io = FileIo::automatic;
  int n_readers = 1;
};

struct FramePool {
  size_t frame_bytes = 0;
  int64_t n_parts = 0;   // that live here
  int64_t n_frames = 0;  // at most n_parts
};

struct StorePlan {
  ExpertHome home = ExpertHome::mapped;
  std::vector<FramePool> pools;  // empty when mapped
  std::vector<int> pool_of[2];   // by part and layer, index into pools; -1: the layer has no such part
  size_t total_bytes = 0;        // of all parts in the file
  size_t minimum_bytes = 0;      // the least bound that works
  size_t bound_bytes = 0;        // host bytes that experts will take at most
  bool holds_all = true;         // nothing is ever read twice
  bool is_short = false;         // mapped although memory is short, as nobody chose anything: worth a warning
  std::string reason;            // one sentence

  size_t frames_bytes() const;
};

// Refusals: Code::budget, with what is needed.
Result<StorePlan> plan_expert_store(const StoreRequest& request);

}  // namespace hotset::experts
