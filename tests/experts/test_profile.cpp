// SPDX-License-Identifier: Apache-2.0
// Profiles byte for byte: the documents' examples, every truncation, every field that lies, files that are replaced.
#include "experts/profile.h"

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "../model/proto.h"

using namespace hotset;
using namespace hotset::experts;

namespace {

using Nodes = std::vector<ProfileNode>;
using Rows = std::vector<std::vector<float>>;

const Nodes kTwo = {{"main", 4, "MoE", 3}, {"main", 9, "QMoE", 3}};

std::string refusal(const std::string& bytes, const Nodes& nodes = kTwo) {
  auto result = parse_profile(bytes, nodes);
  CHECK(!result.ok());
  const Status status = result.take_status();
  CHECK(status.code() == Code::invalid_argument && status.text().find('\n') == std::string::npos);
  return status.text();
}

bool has(const std::string& text, const char* word) {
  if (text.find(word) != std::string::npos) return true;
  std::printf("'%s' is not in: %s\n", word, text.c_str());
  return false;
}

void put(std::string& bytes, size_t at, uint32_t v) {
  for (size_t i = 0; i < 4; ++i) bytes[at + i] = static_cast<char>(v >> 8 * i);
}

std::string from_hex(const char* hex) {
  std::string bytes;
  for (const char* c = hex; *c; ++c) {
    if (*c == ' ') continue;
    bytes += static_cast<char>(std::stoi(std::string(c, 2), nullptr, 16));
    ++c;
  }
  return bytes;
}

const char* const kRanking =
    "53 54 52 50  01 00 00 00  02 00 00 00  03 00 00 00  04 00 00 00  04 00 00 00"
    "01 00 02 00  00 00 00 00  01 00 00 00  00 00 01 00"
    "01 00 00 00  03 00 00 00  ff ff ff ff  02 00 00 00  ff ff ff ff  00 00 00 00";

void test_ranking() {
  const std::string bytes = from_hex(kRanking);
  CHECK(bytes.size() == 64);
  auto result = parse_profile(bytes, kTwo);
  CHECK(result.ok() && result.value().popularity == (Rows{{.75f, .25f, 0}, {.5f, 0, 1}}));
  for (size_t n = 4; n < bytes.size(); ++n) CHECK(has(refusal(bytes.substr(0, n)), "STRP"));
  CHECK(has(refusal(bytes + "x"), "65 bytes"));
}

void test_rankings_that_lie() {
  const std::string good = from_hex(kRanking);
  const auto changed = [&](size_t at, uint32_t v) {
    std::string bytes = good;
    put(bytes, at, v);
    return refusal(bytes);
  };
  CHECK(has(changed(4, 2), "version 2"));
  CHECK(has(changed(20, 0), "0 ranked pairs"));
  CHECK(has(changed(20, 7), "7 ranked pairs for 2 layers of 3"));
  CHECK(has(changed(8, 0xffffffffu), "do not fit"));
  CHECK(has(changed(24, 0x00020002u), "rank 0 is layer 2, expert 2"));
  CHECK(has(changed(24, 0x00030001u), "rank 0 is layer 1, expert 3"));
  CHECK(has(changed(28, 0x00020001u), "repeats layer 1, expert 2"));
  CHECK(has(changed(40, 2), "layer 0, expert 0 has rank 1, but the inverse table says 2"));
  CHECK(has(changed(48, 0), "layer 0, expert 2 is not ranked, but the inverse table says 0"));
  CHECK(has(refusal(good, {kTwo[0]}), "the model has 1 nodes"));
  CHECK(has(refusal(good, {kTwo[0], {"main", 9, "QMoE", 4}}), "'main#9#QMoE' with 4 experts"));
  CHECK(parse_profile(good, Nodes{{"main", 0, "MoE", 3}, {"elsewhere", 1, "MoE", 3}}).ok());  // names no nodes
}

void test_text() {
  const Nodes nodes = {{"main", 0, "MoE", 3}, {"main", 1, "QMoE", 2}, {"main/4/11:then_branch", 0, "MoE", 2}};
  const std::string head = "moe_expert_state 1\n";
  const auto rows = [&](const std::string& lines) {
    auto result = parse_profile(head + lines, nodes);
    CHECK(result.ok());
    return result.value().popularity;
  };
  const Rows expected{{0, 0, 12}, {3.5f, 0}, {0, 7}};
  CHECK(rows("\"main\" 0 MoE 2 12\n\"main\" 1 QMoE 0 3.5\n\"main/4/11:then_branch\" 0 MoE 1 7\n") == expected);
  CHECK(rows("\"main\" 1 QMoE 0 3.5\r\n\"main/4/11:then_branch\" 0 MoE 1 7.0e0 \r\n\"main\" 0 MoE 2 12") == expected);
  CHECK(rows(" \"main\" +0 MoE 2 +12\n\"main\"\t01 QMoE  0 3.5\n\"main/4/11:then_branch\" 0 MoE 1 7\n") == expected);
  CHECK(rows("\"main\" 0 MoE 2 1e300\n") == (Rows{{0, 0, std::numeric_limits<float>::max()}, {0, 0}, {0, 0}}));
  CHECK(rows("") == (Rows{{0, 0, 0}, {0, 0}, {0, 0}}));

  const auto refused = [&](const std::string& lines) { return refusal(head + "\"main\" 0 MoE 0 1\n" + lines, nodes); };
  CHECK(has(refused("\"main\" 2 MoE 0 1\n"), "line 3: unknown node 'main' 2"));
  CHECK(has(refused("\"other\" 0 MoE 0 1"), "line 3: unknown node 'other' 0"));
  CHECK(has(refused("\"main\" 0 QMoE 0 1\n"), "line 3: node 'main' 0 is MoE, not 'QMoE'"));
  CHECK(has(refused("\"main\" 0 MoE 3 1\n"), "line 3: expert 3, but node 'main' 0 has 3"));
  CHECK(has(refused("\"main\" 0 MoE -1 1\n"), "line 3: expert -1"));
  CHECK(has(refused("\"main\" 0 MoE 1 1\n\"main\" 0 MoE 0 2\n"), "line 4: duplicate of expert 0"));
  for (const char* value : {"-1", "nan", "inf", "-inf"}) CHECK(has(refused("\"main\" 0 MoE 1 " + std::string(value)), "line 3: value"));
  for (const char* line : {"", "\"main\" 0 MoE 1", "\"main\" 0 MoE 1 2 3", "main 0 MoE 1 2", "\"main 0 MoE 1 2", "\"main\" x MoE 1 2",
                           "\"main\" 0 MoE 1 2x", "\"main\"0 MoE 1 2", "\"main\" 0 MoE 1 +-2", "\"main\" 0 MoE 99999999999999999999 2",
                           "\"main\" 0 MoE 1 1e999", "\"main\\", "\x01\xff"})
    CHECK(has(refused(std::string(line) + "\n\"main\" 0 MoE 1 2"), "line 3: ") && has(refused(std::string(line) + "\n"), "is malformed"));
  CHECK(has(refusal("moe_expert_state 2\n", nodes), "line 1: header"));
  CHECK(has(refusal("moe_expert_state 1 \n", nodes), "line 1: header"));
  const Nodes odd = {{"a \"b\\", 0, "MoE", 1}};
  auto result = parse_profile(head + "\"a \\\"b\\\\\" 0 MoE 0 5\n", odd);
  CHECK(result.ok() && result.value().popularity == (Rows{{5}}));
}

Profile some_profile() { return {{{.5f, 0, 2.25f}, {1, 1e-30f, 3e38f}}, 77}; }

void test_own_format() {
  const std::string bytes = format_profile(some_profile(), kTwo);
  // 32 + (8 + 12 + 12) + (8 + 12 + 12) + 4; "main#4#MoE" and "main#9#QMoE" both fill 12 bytes.
  CHECK(bytes.size() == 100);
  CHECK(bytes.substr(0, 56) == from_hex("4d 4f 45 50 01 00 00 00 02 00 00 00 00 00 00 00 4d 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00"
                                        "0a 00 00 00 03 00 00 00 6d 61 69 6e 23 34 23 4d 6f 45 00 00 00 00 00 3f"));
  CHECK(bytes.substr(96) == from_hex("9f 3c 2e ef"));
  auto result = parse_profile(bytes, kTwo);
  CHECK(result.ok() && result.value().popularity == some_profile().popularity && result.value().n_tokens == 77);
  auto swapped = parse_profile(bytes, Nodes{kTwo[1], kTwo[0]});  // nodes are found by name
  CHECK(swapped.ok() && swapped.value().popularity[1] == some_profile().popularity[0]);
  for (size_t n = 4; n < bytes.size(); ++n) CHECK(has(refusal(bytes.substr(0, n)), "MOEP"));
  for (size_t at = 4; at < bytes.size(); ++at) {
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ 0x10);
    CHECK(has(refusal(changed), "MOEP"));
  }
  CHECK(has(refusal(bytes, {kTwo[0]}), "another model: it has 2 nodes with experts, this model has 1"));
  CHECK(has(refusal(bytes, {kTwo[0], {"main", 8, "QMoE", 3}}), "another model: this one has no node 'main#9#QMoE'"));
  CHECK(has(refusal(bytes, {kTwo[0], {"main", 9, "QMoE", 4}}), "another model: it has 3 experts for 'main#9#QMoE' with 4 experts"));
}

// The same with a right checksum: what a checksum does not catch.
void test_own_format_that_lies() {
  const auto refused = [](const Profile& profile, const Nodes& nodes) { return refusal(format_profile(profile, nodes)); };
  Profile profile = some_profile();
  profile.popularity[1][2] = -1;
  CHECK(has(refused(profile, kTwo), "expert 2 of node 'main#9#QMoE' has popularity -1"));
  profile.popularity[1][2] = std::numeric_limits<float>::quiet_NaN();
  CHECK(has(refused(profile, kTwo), "popularity nan"));
  CHECK(has(refused(some_profile(), {kTwo[0], kTwo[0]}), "given twice"));
  const auto written_for = [](const Nodes& nodes) { return refusal(format_profile(some_profile(), nodes)); };
  CHECK(has(written_for({kTwo[0], {"main", 9, "QMoE", 1 << 30}}), "node 1 at byte 64 does not fit the file"));
  CHECK(has(written_for({kTwo[0], {"main", 9, "QMoE", 4}}), "node 1 at byte 64 does not fit the file"));
  CHECK(has(written_for({kTwo[0], {"main", 9, "QMoE", 2}}), "it has 2 experts for 'main#9#QMoE' with 3 experts"));
  CHECK(has(written_for({{"main", 4, "MoE", 2}, kTwo[1]}), "it has 2 experts"));
}

void test_unknown_magic() {
  CHECK(has(refusal("GGUF\x03\0\0\0"), "begins with 'GGUF?'"));
  CHECK(has(refusal(""), "begins with ''"));
  CHECK(has(refusal("MOE"), "begins with 'MOE'"));
}

void test_files() {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("hotset-profile-" + std::to_string(std::random_device()()));
  fs::create_directory(folder);
  const std::string path = (folder / "expert \xc3\xa9 profile.bin").string();
  CHECK(write_profile(path, some_profile(), kTwo).ok());
  Profile second = some_profile();
  second.n_tokens = 78;
  CHECK(write_profile(path, second, kTwo).ok());
  auto result = read_profile(path, kTwo);
  CHECK(result.ok() && result.value().n_tokens == 78);
  CHECK(std::distance(fs::directory_iterator(folder), fs::directory_iterator()) == 1);

  CHECK(!write_profile((folder / "no" / "such.bin").string(), second, kTwo).ok());
  CHECK(!write_profile(folder.string(), second, kTwo).ok());  // a folder cannot be replaced
  CHECK(std::distance(fs::directory_iterator(folder), fs::directory_iterator()) == 1);
  for (const fs::path& wrong : {folder, folder / "absent.bin"}) {
    const Status status = read_profile(wrong.string(), kTwo).take_status();
    CHECK(status.code() == Code::not_found);
  }
  fs::remove_all(folder);
}

}  // namespace

int main() {
  test_ranking();
  test_rankings_that_lie();
  test_text();
  test_own_format();
  test_own_format_that_lies();
  test_unknown_magic();
  test_files();
}
