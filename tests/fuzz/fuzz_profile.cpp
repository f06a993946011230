// SPDX-License-Identifier: Apache-2.0
// Reads a profile from bytes: it is taken as a whole, or refused with one line of text. The first byte chooses the model, and
// its highest bit gives a MOEP profile the checksum of its content, so that what comes after the checksum is reached.
#include <cmath>

#include "../model/proto.h"
#include "experts/profile.h"
#include "replay.h"

using namespace hotset;
using namespace hotset::experts;

namespace {

const std::vector<std::vector<ProfileNode>> kModels = {
    {{"main", 0, "MoE", 3}, {"main", 1, "QMoE", 3}},
    {{"main", 7, "QMoE", 4}, {"main/4/11:then_branch", 0, "MoE", 2}},
    {},
};

// IEEE CRC-32 in the last four bytes.
void sign(std::string& bytes) {
  uint32_t crc = ~uint32_t{0};
  for (size_t i = 0; i + 4 < bytes.size(); ++i) {
    crc ^= static_cast<uint8_t>(bytes[i]);
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0xedb88320u : crc >> 1;
  }
  for (size_t i = 0; i < 4; ++i) bytes[bytes.size() - 4 + i] = static_cast<char>(~crc >> 8 * i);
}

std::string seed(char model, const std::string& bytes) { return model + bytes; }

}  // namespace

std::vector<std::string> fuzz::seeds() {
  const unsigned char ranking[] = {0x53, 0x54, 0x52, 0x50, 1,    0,    0,    0,    2, 0, 0, 0, 3,    0,    0,    0,    4, 0, 0, 0, 4, 0,
                                   0,    0,    1,    0,    2,    0,    0,    0,    0, 0, 1, 0, 0,    0,    0,    0,    1, 0, 1, 0, 0, 0,
                                   3,    0,    0,    0,    0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0};
  std::vector<std::string> seeds = {
      seed(0, std::string(reinterpret_cast<const char*>(ranking), sizeof ranking)),
      seed(0, "moe_expert_state 1\n\"main\" 0 MoE 2 12\r\n\"main\" 1 QMoE 0 3.5\n"),
      seed(1, "moe_expert_state 1\n\"main\" 7 QMoE 3 1e-3\n\"main/4/11:then_branch\" 0 MoE 1 7"),
  };
  for (size_t m = 0; m < kModels.size(); ++m) {
    Profile profile;
    for (const ProfileNode& node : kModels[m]) profile.popularity.emplace_back(static_cast<size_t>(node.n_experts), 0.25f);
    seeds.push_back(seed(static_cast<char>(m), format_profile(profile, kModels[m])));
    seeds.push_back(seed(static_cast<char>(0x80 | m), format_profile(profile, kModels[m])));
  }
  return seeds;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n) {
  if (n == 0) return 0;
  const std::vector<ProfileNode>& nodes = kModels[(data[0] & 0x7f) % kModels.size()];
  std::string bytes(reinterpret_cast<const char*>(data + 1), n - 1);
  if (data[0] & 0x80 && bytes.size() > 8) sign(bytes);
  auto result = parse_profile(bytes, nodes);
  if (!result.ok()) {
    const Status status = result.take_status();
    CHECK(status.code() == Code::invalid_argument && !status.text().empty());
    CHECK(status.text().find('\n') == std::string::npos && model::valid_text(status.text()));
    return 0;
  }
  const Profile& profile = result.value();
  CHECK(profile.popularity.size() == nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    CHECK(static_cast<int64_t>(profile.popularity[i].size()) == nodes[i].n_experts);
    for (float p : profile.popularity[i]) CHECK(std::isfinite(p) && p >= 0);
  }
  auto again = parse_profile(format_profile(profile, nodes), nodes);
  CHECK(again.ok() && again.value().popularity == profile.popularity && again.value().n_tokens == profile.n_tokens);
  return 0;
}
