// SPDX-License-Identifier: Apache-2.0
// Which target of a build serves which GPU.
#include "cuda/code_choice.h"

#include "cuda/fatbins.h"
#include "fake_gpu.h"

using namespace hotset::cuda;

namespace {

constexpr const char* kAll = "80,86,89,90a,100,120,ptx80";

struct Case {
  const char* targets;
  int major, minor;
  const char* expected;
};

constexpr Case kCases[] = {
    {kAll, 8, 0, "sm_80"},       {kAll, 8, 6, "sm_86"},   {kAll, 8, 7, "sm_86"},   {kAll, 8, 9, "sm_89"},
    {kAll, 9, 0, "sm_90a"},      {kAll, 10, 0, "sm_100"}, {kAll, 10, 3, "sm_100"}, {kAll, 12, 0, "sm_120"},
    {kAll, 11, 0, "compute_80"}, {kAll, 7, 5, ""},        {"90a", 9, 0, "sm_90a"}, {"90a", 10, 0, ""},
    {"90,90a", 9, 0, "sm_90a"},  {"86", 8, 0, ""},        {"", 9, 0, ""},          {"ptx80,ptx90", 12, 1, "compute_90"},
};

}  // namespace

int main() {
  int failures = 0;
  for (const Case& c : kCases) {
    const std::string seen = choose_code(c.targets, c.major, c.minor);
    if (seen == c.expected) continue;
    ++failures;
    std::printf("FAIL %s on %d.%d: '%s', expected '%s'\n", c.targets, c.major, c.minor, seen.c_str(), c.expected);
  }
  fake::library();
  fake::reset();
  fake::fail("cuLibraryLoadData", 2, 209);
  auto loaded = load_all_code(0);
  if (!loaded.ok() || loaded.value().size() != kFatbinCount) ++failures;
  for (size_t f = 0; loaded.ok() && f < loaded.value().size(); ++f) {
    const CodeChoice& choice = loaded.value()[f];
    if (choice.status.ok() == (f == 1) || choice.family != kFatbins[f].name) ++failures;
  }
  if (fake::live() != 0 || !fake::misuse().empty()) ++failures;
  std::printf("%d failures\n", failures);
  return failures != 0;
}
