// SPDX-License-Identifier: Apache-2.0
// The program around a fuzz target.
//
// tools/fuzz.sh builds it with clang and libFuzzer (HOTSET_LIBFUZZER). Without, main() of a program of its own:
//   fuzz_x PATH...                         replays files, and those of folders, as they are, then the seeds with a few
//                                          thousand mutations (the plain test)
//   fuzz_x --mutate SECONDS [--seed N] [--save FILE] PATH...
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n);

namespace fuzz {

std::vector<std::string> seeds();  // of the target
inline std::string folder;         // of the file that is being replayed

}  // namespace fuzz

#if !defined(HOTSET_LIBFUZZER)

namespace fuzz {

using Random = std::mt19937_64;

size_t below(Random& random, size_t n) { return n ? random() % n : 0; }

// Bytes changed, pieces cut, doubled or exchanged, mostly without keeping the messages' lengths right.
void mutate(std::string& bytes, const std::string& other, Random& random) {
  static const char interesting[] = {0, 1, 2, 4, 8, 16, 32, 0x7f, static_cast<char>(0x80), static_cast<char>(0xff)};
  for (size_t count = 1 + below(random, 4); count && !bytes.empty(); --count) {
    const size_t at = below(random, bytes.size()), n = 1 + below(random, std::min<size_t>(64, bytes.size() - at));
    switch (below(random, 8)) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes[at] ^= static_cast<char>(1u << below(random, 8));
        break;
      case 2:
        bytes[at] = interesting[below(random, sizeof interesting)];
        break;
      case 3:
        bytes[at] = static_cast<char>(bytes[at] + static_cast<char>(below(random, 9)) - 4);
        break;
      case 4:
        bytes.erase(at, n);
        break;
      case 5:
        bytes.insert(at, bytes.substr(below(random, bytes.size()), n));
        break;
      case 6:
        bytes.replace(at, n, other.substr(below(random, other.size()), n));
        break;
      default: {  // the same bytes elsewhere: names are confused, lengths stay right
        const std::string piece = bytes.substr(below(random, bytes.size() - n + 1), n);
        bytes.replace(at, n, piece);
        break;
      }
    }
  }
}

}  // namespace fuzz

int main(int argc, char** argv) {
  using namespace fuzz;
  namespace fs = std::filesystem;
  double seconds = 0;
  uint64_t seed = 1;
  std::string save;  // where the input that is being run is written, so that one that ends the program can be looked at
  std::vector<std::pair<std::string, std::string>> corpus;  // folder, bytes
  for (int i = 1; i < argc; ++i) {
    if (!std::strcmp(argv[i], "--mutate") && i + 1 < argc) {
      seconds = std::atof(argv[++i]);
    } else if (!std::strcmp(argv[i], "--seed") && i + 1 < argc) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (!std::strcmp(argv[i], "--save") && i + 1 < argc) {
      save = argv[++i];
    } else {
      std::vector<fs::path> paths{argv[i]};
      if (fs::is_directory(paths[0])) {
        paths.assign(fs::directory_iterator(paths[0]), {});
        std::sort(paths.begin(), paths.end());
      }
      for (const fs::path& path : paths) {
        std::ifstream file(path, std::ios::binary);
        if (!file) return std::printf("cannot read %s\n", path.string().c_str()), 1;
        corpus.emplace_back(path.parent_path().empty() ? "." : path.parent_path().string(),
                            std::string(std::istreambuf_iterator<char>(file), {}));
      }
    }
  }
  const size_t n_files = corpus.size();
  for (std::string& bytes : seeds()) corpus.emplace_back("", std::move(bytes));
  const auto run = [&](const std::string& from, const std::string& bytes) {
    if (!save.empty()) std::ofstream(save, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    folder = from;
    const std::vector<uint8_t> copy(bytes.begin(), bytes.end());  // of exactly this size, so that reading past its end shows
    LLVMFuzzerTestOneInput(copy.data(), copy.size());
  };
  for (const auto& [from, bytes] : corpus) run(from, bytes);
  Random random(seed);
  size_t n_runs = 0;
  const auto start = std::chrono::steady_clock::now();
  const auto more = [&] {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    return seconds == 0 ? n_runs < 5000 && spent.count() < 10 : spent.count() < seconds;
  };
  for (; more(); ++n_runs) {
    const auto& [from, bytes] = corpus[below(random, corpus.size())];
    std::string mutant = bytes;
    mutate(mutant, corpus[below(random, corpus.size())].second, random);
    run(from, mutant);
  }
  std::printf("%zu files, %zu mutants, seed %llu\n", n_files, n_runs, static_cast<unsigned long long>(seed));
  return 0;
}

#endif
