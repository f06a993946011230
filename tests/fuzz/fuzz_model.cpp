// SPDX-License-Identifier: Apache-2.0
// Feeds bytes to the model reader: whatever they are, it returns a model or one line of text.
//
// With clang: -fsanitize=fuzzer -DHOTSET_LIBFUZZER. Without, a program of its own:
//   fuzz_model                        a built-in seed, a few thousand mutations (the plain test)
//   fuzz_model FILE...                replays files as they are
//   fuzz_model --mutate SECONDS [--seed N] FILE...
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "../model/proto.h"
#include "model/graph.h"

using namespace hotset::model;

namespace {

// What later rooms rely on; touches both ends of every constant, so that a place outside its file shows.
uint64_t check_graph(const Graph& graph, int depth) {
  uint64_t sum = 0;
  const auto valid = [&](ValueId id) { return id >= kNone && id < static_cast<ValueId>(graph.values.size()); };
  std::vector<char> made(graph.values.size());
  for (const ValueId id : graph.inputs) made[static_cast<size_t>(id)] = true;
  for (const Capture& c : graph.captures) made[static_cast<size_t>(c.inner)] = true;
  for (size_t i = 0; i < graph.values.size(); ++i) {
    const Value& value = graph.values[i];
    CHECK(valid_text(value.name) && !value.name.empty() && graph.ids.find(value.name)->second == static_cast<ValueId>(i));
    if (value.constant >= 0) made[i] = true;
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    for (const auto* list : {&node.inputs, &node.captures}) {
      for (const ValueId id : *list) CHECK(valid(id) && (id == kNone || made[static_cast<size_t>(id)]));
    }
    for (const auto& [name, attribute] : node.attributes) {
      const auto* subgraph = std::get_if<std::shared_ptr<Graph>>(&attribute.value);
      if (!subgraph) continue;
      CHECK(depth < 100);
      for (const Capture& c : (*subgraph)->captures) CHECK(valid(c.outer) && made[static_cast<size_t>(c.outer)]);
      sum += check_graph(**subgraph, depth + 1);
    }
    for (const ValueId id : node.outputs) {
      CHECK(valid(id));
      if (id == kNone) continue;
      CHECK(!made[static_cast<size_t>(id)] && graph.values[static_cast<size_t>(id)].producer == static_cast<int32_t>(n));
      made[static_cast<size_t>(id)] = true;
    }
  }
  for (const ValueId id : graph.outputs) CHECK(id != kNone && valid(id) && made[static_cast<size_t>(id)]);
  for (const Constant& c : graph.constants) {
    const size_t n = c.tensor.data ? c.tensor.bytes() : 0;
    if (n) sum += c.tensor.as<uint8_t>()[0] + c.tensor.as<uint8_t>()[n - 1];
  }
  return sum;
}

bool has_kernel(std::string_view, std::string_view op_type) { return op_type.size() % 2 == 0; }

std::string external_folder;  // of the file that is being replayed

uint64_t run_one(const uint8_t* data, size_t n) {
  ReadOptions options;
  options.has_kernel = has_kernel;
  options.external_folder = external_folder;
  auto result = read_model_bytes(data, n, options);
  if (result.ok()) return check_graph(result.value()->graph, 0);
  const std::string text = result.take_status().text();
  CHECK(valid_text(text) && text.find('\n') == std::string::npos && !text.empty());
  return 0;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n) {
  run_one(data, n);
  return 0;
}

#if !defined(HOTSET_LIBFUZZER)

namespace {

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

std::string seed_model() {
  using namespace proto;
  const Message branch = graph({{}, {"b"}, {node("Sum", {"p", "t", "w"}, {"b"})}, {floats("w", {1, 2})}});
  const Message body = function(
      "Func", {"p", "q"}, {"r", "p"},
      {with(node("Abs", {"p", "q"}, {"t"}), {reference("k", "k", 2)}), with(node("If", {"p"}, {"r"}), {attribute("then_branch", branch)})},
      {attribute("k", 1)});
  return model(graph({{"x"},
                      {"y"},
                      {node("Func", {"x"}, {"h", "g"}, "local"), with(node("Constant", {}, {"c"}), {attribute("value_int", 1)}),
                       with(node("Loop", {"h", "w"}, {"z"}), {attribute("body", branch)}), node("Func", {"z", "t"}, {"p"}, "local"),
                       node("Add", {"p", "c", "g"}, {"y"})},
                      {floats("w", {1, 2, 3}), tensor("t", 7, {2}).number(7, 1).number(7, 2), floats("p0", {})}}),
               {body})
      .bytes;
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 0;
  uint64_t seed = 1;
  std::vector<std::pair<std::string, std::string>> corpus;  // folder, bytes
  for (int i = 1; i < argc; ++i) {
    if (!std::strcmp(argv[i], "--mutate") && i + 1 < argc) {
      seconds = std::atof(argv[++i]);
    } else if (!std::strcmp(argv[i], "--seed") && i + 1 < argc) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else {
      const std::string path = argv[i];
      std::ifstream file(path, std::ios::binary);
      if (!file) return std::printf("cannot read %s\n", argv[i]), 1;
      const size_t slash = path.find_last_of('/');
      corpus.emplace_back(slash == std::string::npos ? "." : path.substr(0, slash), std::string(std::istreambuf_iterator<char>(file), {}));
    }
  }
  const bool plain = corpus.empty();
  if (plain) corpus.emplace_back("", seed_model());
  uint64_t sum = 0;
  for (const auto& [folder, bytes] : corpus) {
    external_folder = folder;
    sum += run_one(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
  Random random(seed);
  size_t n_runs = 0;
  const auto start = std::chrono::steady_clock::now();
  const auto more = [&] {
    return plain && seconds == 0 ? n_runs < 5000 : std::chrono::steady_clock::now() - start < std::chrono::duration<double>(seconds);
  };
  for (; more(); ++n_runs) {
    const auto& [folder, bytes] = corpus[below(random, corpus.size())];
    external_folder = folder;
    std::string mutant = bytes;
    mutate(mutant, corpus[below(random, corpus.size())].second, random);
    const auto* data = reinterpret_cast<const uint8_t*>(mutant.data());
    sum += run_one(data, mutant.size());
  }
  std::printf("%zu files, %zu mutants, seed %llu, sum %llu\n", corpus.size(), n_runs, static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(sum));
  return 0;
}

#endif
