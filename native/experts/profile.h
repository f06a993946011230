// SPDX-License-Identifier: Apache-2.0
// Profiles: how popular each expert of a model is, as files that a later session starts from.
//
//   read   MOEP   ours, binary, names its nodes            written too
//          text   "moe_expert_state 1", counters of onnxruntime, names its nodes
//          STRP   version 1, binary, a ranking of (layer, expert)
//
// MOEP, little endian:
//
//   0   "MOEP"   u32 version = 1   u32 nodes   u32 0   u64 observed tokens   u64 0
//   32  for each node:  u32 key bytes   u32 E   key, zero-padded to 4 bytes   E x f32 popularity, finite, >= 0
//       u32 CRC-32 (IEEE) of everything before
//
// with the keys of expert_key(). A file is taken as a whole or not at all.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace hotset::experts {

// An operator with experts, as profiles name it: its place in the graph of the file.
struct ProfileNode {
  std::string scope;  // "main"; of a subgraph followed by "/<index of its node>/<length>:<attribute>" for each level
  int64_t index = 0;  // of the node in its graph
  std::string op_type;
  int64_t n_experts = 0;
};

// scope#index#operator
std::string expert_key(const ProfileNode& node);

struct Profile {
  std::vector<std::vector<float>> popularity;  // [node][expert], finite, >= 0, on any scale
  uint64_t n_tokens = 0;                       // it was made from; 0: not known
};

// Reads any of the formats. `nodes` is the model's, in graph order: a profile of another model is refused.
// Failures are invalid_argument and say where: a line, or a byte.
Result<Profile> parse_profile(std::string_view bytes, std::span<const ProfileNode> nodes);

// MOEP. profile.popularity has a row for each node.
std::string format_profile(const Profile& profile, std::span<const ProfileNode> nodes);

// The same from and to a file; paths are UTF-8. A file that is written replaces an older one in one step: readers see the old
// or the new one, and after a failure the old one is still there.
Result<Profile> read_profile(const std::string& path, std::span<const ProfileNode> nodes);
Status write_profile(const std::string& path, const Profile& profile, std::span<const ProfileNode> nodes);

}  // namespace hotset::experts
