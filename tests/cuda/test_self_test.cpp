// SPDX-License-Identifier: Apache-2.0
// Every GPU of this machine runs the device code of this build.
#include "cuda/self_test.h"

#include <cstdio>
#include <string_view>

#include "cuda/driver.h"
#include "cuda/fatbins.h"

int main() {
  int n = 0;
  std::string note;
  if (!hotset::cuda::device_count(&n, &note)) {
    std::printf("%s\n", note.c_str());
    return 77;
  }
  if (hotset::cuda::kFatbinCount == 0 || std::string_view(hotset::cuda::kFatbinArchs) == "none") {
    std::printf("built without device code\n");
    return 77;
  }
  bool ok = true;
  for (int i = 0; i < n; ++i) {
    ok &= hotset::cuda::self_test(i, &note);
    std::printf("device %d: %s\n", i, note.c_str());
  }
  return ok ? 0 : 1;
}
