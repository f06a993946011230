// SPDX-License-Identifier: Apache-2.0
// The choice of a driver among targets, and whether everything loads.
#include "cuda/code_choice.h"

#include <charconv>

#include "cuda/device.h"
#include "cuda/fatbins.h"

namespace hotset::cuda {

std::string choose_code(std::string_view targets, int major, int minor) {
  std::string best;
  int best_rank = 0;  // 1000 and more: machine code, by minor version; else PTX, by version
  while (!targets.empty()) {
    const std::string_view target = targets.substr(0, targets.find(','));
    targets.remove_prefix(std::min(targets.size(), target.size() + 1));
    const bool is_ptx = target.starts_with("ptx"), is_exact = target.ends_with('a');
    const std::string_view digits = is_ptx ? target.substr(3) : target;
    int version = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), version);
    int rank = 0;
    if (is_ptx) {
      rank = version <= 10 * major + minor ? version : 0;
    } else if (version / 10 == major && (is_exact ? version % 10 == minor : version % 10 <= minor)) {
      rank = 1000 + 2 * (version % 10) + is_exact;
    }
    if (rank <= best_rank) continue;
    best_rank = rank;
    best = is_ptx ? "compute_" + std::string(digits) : "sm_" + std::string(target);
  }
  return best;
}

hotset::Result<std::vector<CodeChoice>> load_all_code(int index) {
  HOTSET_ASSIGN(const std::shared_ptr<Gpu> gpu, Gpu::open(index));
  std::vector<CodeChoice> choices;
  for (size_t f = 0; f < kFatbinCount; ++f) choices.push_back({kFatbins[f].name, gpu->load(kFatbins[f].name)});
  return choices;
}

}  // namespace hotset::cuda
