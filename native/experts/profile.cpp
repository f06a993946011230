// SPDX-License-Identifier: Apache-2.0
// The three formats of profiles.
#include "experts/profile.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

namespace hotset::experts {
namespace {

using Nodes = std::span<const ProfileNode>;
constexpr std::string_view kMoep = "MOEP", kStrp = "STRP", kText = "moe_expert_state";
constexpr size_t kMoepHeader = 32, kStrpHeader = 24;

std::vector<std::vector<float>> zeros(Nodes nodes) {
  std::vector<std::vector<float>> rows;
  for (const ProfileNode& node : nodes) rows.emplace_back(static_cast<size_t>(node.n_experts));
  return rows;
}

bool is_popularity(float p) { return std::isfinite(p) && p >= 0; }

// Little-endian numbers of a buffer; the caller has checked the length.
uint32_t read_u32(std::string_view bytes, size_t at) {
  uint32_t v = 0;
  for (size_t i = 4; i-- > 0;) v = v << 8 | static_cast<uint8_t>(bytes[at + i]);
  return v;
}

uint64_t read_u64(std::string_view bytes, size_t at) { return read_u32(bytes, at) | static_cast<uint64_t>(read_u32(bytes, at + 4)) << 32; }

uint32_t read_u16(std::string_view bytes, size_t at) {
  return static_cast<uint32_t>(static_cast<uint8_t>(bytes[at]) | static_cast<uint8_t>(bytes[at + 1]) << 8);
}

void append_u32(std::string& bytes, uint32_t v) {
  for (int i = 0; i < 4; ++i) bytes += static_cast<char>(v >> 8 * i);
}

void append_u64(std::string& bytes, uint64_t v) {
  append_u32(bytes, static_cast<uint32_t>(v));
  append_u32(bytes, static_cast<uint32_t>(v >> 32));
}

// IEEE 802.3, reflected, as zlib's crc32.
uint32_t crc32(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int bit = 0; bit < 8; ++bit) c = c & 1 ? c >> 1 ^ 0xedb88320u : c >> 1;
      table[i] = c;
    }
    return table;
  }();
  uint32_t crc = ~uint32_t{0};
  for (char byte : bytes) crc = crc >> 8 ^ kTable[(crc ^ static_cast<uint8_t>(byte)) & 0xff];
  return ~crc;
}

// Printable in one line whatever the file holds.
std::string shown(std::string_view text) {
  constexpr size_t kMost = 80;
  std::string out = "'";
  for (char c : text.substr(0, kMost)) out += c >= ' ' && c <= '~' ? c : '?';
  return out + (text.size() > kMost ? "...'" : "'");
}

std::string describe(const ProfileNode& node) { return shown(expert_key(node)) + " with " + std::to_string(node.n_experts) + " experts"; }

// ---- STRP ----

struct StrpHeader {
  uint32_t n_layers = 0, n_experts = 0, n_ranked = 0;
  size_t ranking(uint32_t i) const { return kStrpHeader + size_t{4} * i; }
  size_t inverse(size_t pair) const { return kStrpHeader + size_t{4} * n_ranked + 4 * pair; }
};

Status read_strp_header(std::string_view bytes, StrpHeader* out) {
  HOTSET_FAIL_IF(bytes.size() < kStrpHeader, invalid_argument, "STRP: %zu bytes, the header alone has %zu", bytes.size(), kStrpHeader);
  HOTSET_FAIL_IF(read_u32(bytes, 4) != 1, invalid_argument, "STRP: version %u, supported: 1", read_u32(bytes, 4));
  const uint32_t n_layers = read_u32(bytes, 8), n_experts = read_u32(bytes, 12), n_ranked = read_u32(bytes, 20);
  const uint64_t pairs = static_cast<uint64_t>(n_layers) * n_experts;
  HOTSET_FAIL_IF(n_ranked == 0 || n_ranked > pairs, invalid_argument, "STRP: %u ranked pairs for %u layers of %u experts", n_ranked,
                 n_layers, n_experts);
  // Against the size first: 4 * pairs may not fit 64 bits.
  HOTSET_FAIL_IF(pairs > bytes.size() / 4 || bytes.size() != kStrpHeader + uint64_t{4} * n_ranked + 4 * pairs, invalid_argument,
                 "STRP: %zu bytes do not fit %u layers of %u experts and %u ranked pairs", bytes.size(), n_layers, n_experts, n_ranked);
  *out = {n_layers, n_experts, n_ranked};
  return {};
}

// The model has L nodes of E experts, taken in graph order.
Status match_strp(const StrpHeader& header, Nodes nodes) {
  HOTSET_FAIL_IF(header.n_layers != nodes.size(), invalid_argument,
                 "STRP: a profile of %u layers of %u experts, but the model has %zu nodes with experts", header.n_layers, header.n_experts,
                 nodes.size());
  for (const ProfileNode& node : nodes)
    HOTSET_FAIL_IF(node.n_experts != header.n_experts, invalid_argument, "STRP: a profile of %u layers of %u experts, but the model has %s",
                   header.n_layers, header.n_experts, describe(node).c_str());
  return {};
}

Result<Profile> parse_strp(std::string_view bytes, Nodes nodes) {
  StrpHeader header;
  HOTSET_TRY(read_strp_header(bytes, &header));
  HOTSET_TRY(match_strp(header, nodes));
  Profile profile{zeros(nodes)};
  for (uint32_t i = 0; i < header.n_ranked; ++i) {
    const uint32_t layer = read_u16(bytes, header.ranking(i)), expert = read_u16(bytes, header.ranking(i) + 2);
    HOTSET_FAIL_IF(layer >= header.n_layers || expert >= header.n_experts, invalid_argument,
                   "STRP: rank %u is layer %u, expert %u; there are %u layers of %u experts", i, layer, expert, header.n_layers,
                   header.n_experts);
    float& p = profile.popularity[layer][expert];
    HOTSET_FAIL_IF(p != 0, invalid_argument, "STRP: rank %u repeats layer %u, expert %u", i, layer, expert);
    p = static_cast<float>(static_cast<double>(header.n_ranked - i) / header.n_ranked);
    const size_t pair = static_cast<size_t>(layer) * header.n_experts + expert;
    HOTSET_FAIL_IF(read_u32(bytes, header.inverse(pair)) != i, invalid_argument,
                   "STRP: layer %u, expert %u has rank %u, but the inverse table says %d", layer, expert, i,
                   static_cast<int32_t>(read_u32(bytes, header.inverse(pair))));
  }
  for (uint32_t layer = 0; layer < header.n_layers; ++layer)
    for (uint32_t expert = 0; expert < header.n_experts; ++expert) {
      const uint32_t rank = read_u32(bytes, header.inverse(static_cast<size_t>(layer) * header.n_experts + expert));
      HOTSET_FAIL_IF(profile.popularity[layer][expert] == 0 && rank != UINT32_MAX, invalid_argument,
                     "STRP: layer %u, expert %u is not ranked, but the inverse table says %d", layer, expert, static_cast<int32_t>(rank));
    }
  return profile;
}

// ---- text ----

// One line of the text format, cut into its parts.
class Line {
 public:
  explicit Line(std::string_view text) : rest_(text) {}

  // "...", with \" and \\ inside.
  bool quoted(std::string* out) {
    if (!take('"')) return false;
    for (; !rest_.empty() && rest_[0] != '"'; rest_.remove_prefix(1)) {
      if (rest_[0] == '\\') rest_.remove_prefix(1);
      if (rest_.empty()) return false;
      *out += rest_[0];
    }
    return take('"');
  }
  std::string_view word() {
    const std::string_view found = rest_.substr(0, rest_.find_first_of(" \t"));
    rest_.remove_prefix(found.size());
    return found;
  }
  template <class T>
  bool number(T* out) {
    std::string_view text = word();
    if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
    return error == std::errc() && end == text.data() + text.size();
  }
  bool space() {
    const size_t n = std::min(rest_.find_first_not_of(" \t"), rest_.size());
    rest_.remove_prefix(n);
    return n > 0;
  }
  bool at_end() const { return rest_.empty(); }

 private:
  bool take(char c) {
    if (rest_.empty() || rest_[0] != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  std::string_view rest_;
};

struct TextRecord {
  ProfileNode node;  // n_experts is not known
  int64_t expert = 0;
  double value = 0;
};

bool read_record(std::string_view text, TextRecord* out) {
  Line line(text);
  line.space();
  if (!line.quoted(&out->node.scope) || !line.space() || !line.number(&out->node.index) || !line.space()) return false;
  out->node.op_type = line.word();
  if (out->node.op_type.empty() || !line.space() || !line.number(&out->expert) || !line.space() || !line.number(&out->value)) return false;
  line.space();
  return line.at_end();
}

class TextReader {
 public:
  explicit TextReader(Nodes nodes) : nodes_(nodes) {
    for (size_t n = 0; n < nodes.size(); ++n) by_place_[{nodes[n].scope, nodes[n].index}] = n;
    for (const ProfileNode& node : nodes) seen_.emplace_back(static_cast<size_t>(node.n_experts), char{0});
    profile_.popularity = zeros(nodes);
  }

  Status add(std::string_view text, size_t line) {
    TextRecord r;
    HOTSET_FAIL_IF(!read_record(text, &r), invalid_argument, "line %zu: %s is malformed, expected: \"scope\" node operator expert value",
                   line, shown(text).c_str());
    const std::string place = shown(r.node.scope) + " " + std::to_string(r.node.index);
    const auto found = by_place_.find({r.node.scope, r.node.index});
    HOTSET_FAIL_IF(found == by_place_.end(), invalid_argument, "line %zu: unknown node %s: the model has no experts there", line,
                   place.c_str());
    const size_t n = found->second;
    const ProfileNode& node = nodes_[n];
    HOTSET_FAIL_IF(node.op_type != r.node.op_type, invalid_argument, "line %zu: node %s is %s, not %s", line, place.c_str(),
                   node.op_type.c_str(), shown(r.node.op_type).c_str());
    HOTSET_FAIL_IF(r.expert < 0 || r.expert >= node.n_experts, invalid_argument, "line %zu: expert %lld, but node %s has %lld", line,
                   static_cast<long long>(r.expert), place.c_str(), static_cast<long long>(node.n_experts));
    HOTSET_FAIL_IF(!std::isfinite(r.value) || r.value < 0, invalid_argument, "line %zu: value %g, expected a finite number of at least 0",
                   line, r.value);
    char& seen = seen_[n][static_cast<size_t>(r.expert)];
    HOTSET_FAIL_IF(seen, invalid_argument, "line %zu: duplicate of expert %lld of node %s", line, static_cast<long long>(r.expert),
                   place.c_str());
    seen = 1;
    profile_.popularity[n][static_cast<size_t>(r.expert)] =
        static_cast<float>(std::min<double>(r.value, std::numeric_limits<float>::max()));
    return {};
  }
  Profile take() { return std::move(profile_); }

 private:
  const Nodes nodes_;
  std::map<std::pair<std::string, int64_t>, size_t> by_place_;
  std::vector<std::vector<char>> seen_;
  Profile profile_;
};

Result<Profile> parse_text(std::string_view bytes, Nodes nodes) {
  TextReader reader(nodes);
  for (size_t number = 1; !bytes.empty(); ++number) {
    const size_t end = std::min(bytes.find('\n'), bytes.size());
    std::string_view line = bytes.substr(0, end);
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (number > 1) HOTSET_TRY(reader.add(line, number));
    HOTSET_FAIL_IF(number == 1 && line != "moe_expert_state 1", invalid_argument, "line 1: header %s, expected 'moe_expert_state 1'",
                   shown(line).c_str());
  }
  return reader.take();
}

// ---- MOEP ----

Status check_moep(std::string_view bytes) {
  HOTSET_FAIL_IF(bytes.size() < kMoepHeader + 4, invalid_argument, "MOEP: %zu bytes, an empty profile has %zu", bytes.size(),
                 kMoepHeader + 4);
  HOTSET_FAIL_IF(read_u32(bytes, 4) != 1, invalid_argument, "MOEP: version %u, supported: 1", read_u32(bytes, 4));
  const size_t body = bytes.size() - 4;
  HOTSET_FAIL_IF(read_u32(bytes, body) != crc32(bytes.substr(0, body)), invalid_argument,
                 "MOEP: the checksum does not match: the file was cut or changed");
  HOTSET_FAIL_IF(read_u32(bytes, 12) != 0 || read_u64(bytes, 24) != 0, invalid_argument, "MOEP: bytes 12 and 24 of the header are not 0");
  return {};
}

Result<Profile> parse_moep(std::string_view bytes, Nodes nodes) {
  HOTSET_TRY(check_moep(bytes));
  const uint32_t n_nodes = read_u32(bytes, 8);
  HOTSET_FAIL_IF(n_nodes != nodes.size(), invalid_argument,
                 "MOEP: a profile of another model: it has %u nodes with experts, this model has %zu", n_nodes, nodes.size());
  std::map<std::string, size_t, std::less<>> by_key;
  for (size_t n = 0; n < nodes.size(); ++n) by_key[expert_key(nodes[n])] = n;
  Profile profile{zeros(nodes), read_u64(bytes, 16)};
  std::vector<char> seen(nodes.size(), 0);
  const size_t end = bytes.size() - 4;
  size_t at = kMoepHeader;
  for (uint32_t i = 0; i < n_nodes; ++i) {
    HOTSET_FAIL_IF(end - at < 8, invalid_argument, "MOEP: node %u at byte %zu does not fit the file", i, at);
    const uint64_t key_bytes = read_u32(bytes, at), n_experts = read_u32(bytes, at + 4), padded = (key_bytes + 3) / 4 * 4;
    at += 8;
    HOTSET_FAIL_IF(padded + 4 * n_experts > end - at, invalid_argument, "MOEP: node %u at byte %zu does not fit the file", i, at - 8);
    const std::string_view key = bytes.substr(at, key_bytes);
    const auto found = by_key.find(key);
    HOTSET_FAIL_IF(found == by_key.end(), invalid_argument, "MOEP: a profile of another model: this one has no node %s",
                   shown(key).c_str());
    const size_t n = found->second;
    HOTSET_FAIL_IF(static_cast<int64_t>(n_experts) != nodes[n].n_experts, invalid_argument,
                   "MOEP: a profile of another model: it has %llu experts for %s", static_cast<unsigned long long>(n_experts),
                   describe(nodes[n]).c_str());
    HOTSET_FAIL_IF(seen[n], invalid_argument, "MOEP: node %s is given twice", shown(key).c_str());
    seen[n] = 1;
    at += padded;
    for (size_t e = 0; e < n_experts; ++e, at += 4) {
      const uint32_t bits = read_u32(bytes, at);
      float p;
      std::memcpy(&p, &bits, sizeof p);
      HOTSET_FAIL_IF(!is_popularity(p), invalid_argument, "MOEP: expert %zu of node %s has popularity %g", e, shown(key).c_str(),
                     static_cast<double>(p));
      profile.popularity[n][e] = p;
    }
  }
  HOTSET_FAIL_IF(at != end, invalid_argument, "MOEP: %zu bytes after the last node", end - at);
  return profile;
}

}  // namespace

std::string expert_key(const ProfileNode& node) { return node.scope + "#" + std::to_string(node.index) + "#" + node.op_type; }

Result<Profile> parse_profile(std::string_view bytes, Nodes nodes) {
  if (bytes.starts_with(kMoep)) return parse_moep(bytes, nodes);
  if (bytes.starts_with(kStrp)) return parse_strp(bytes, nodes);
  if (bytes.starts_with(kText)) return parse_text(bytes, nodes);
  return fail(Code::invalid_argument, "begins with %s; profiles begin with 'MOEP', 'STRP' or 'moe_expert_state'",
              shown(bytes.substr(0, 16)).c_str());
}

std::string format_profile(const Profile& profile, Nodes nodes) {
  std::string bytes(kMoep);
  append_u32(bytes, 1);
  append_u32(bytes, static_cast<uint32_t>(nodes.size()));
  append_u32(bytes, 0);
  append_u64(bytes, profile.n_tokens);
  append_u64(bytes, 0);
  for (size_t n = 0; n < nodes.size(); ++n) {
    const std::string key = expert_key(nodes[n]);
    append_u32(bytes, static_cast<uint32_t>(key.size()));
    append_u32(bytes, static_cast<uint32_t>(nodes[n].n_experts));
    bytes += key;
    bytes.append((4 - key.size() % 4) % 4, '\0');
    for (float p : profile.popularity[n]) {
      uint32_t bits;
      std::memcpy(&bits, &p, sizeof bits);
      append_u32(bytes, bits);
    }
  }
  append_u32(bytes, crc32(bytes));
  return bytes;
}

}  // namespace hotset::experts
