// SPDX-License-Identifier: Apache-2.0
// Launches of sample.cu.
#include "cuda/sample.h"

#include "cuda/sample_params.h"

namespace hotset::cuda {
namespace {
int64_t parts_of(int64_t n) { return (n + kSamplePart - 1) / kSamplePart; }
int64_t join_bytes(int64_t n, int64_t k) { return 2 * parts_of(n) * k * static_cast<int64_t>(sizeof(uint64_t)); }
}  // namespace

bool sample_fits(const Gpu& gpu, int64_t n, int64_t k) {
  return n > 0 && n <= INT32_MAX && k > 0 && k <= kSamplePart && (k == 1 || join_bytes(n, k) <= gpu.limits().shared_bytes_per_block);
}

size_t sample_workspace(int64_t rows, int64_t n, int64_t k) { return static_cast<size_t>(rows * parts_of(n) * k) * sizeof(uint64_t); }

Status launch_sample(Gpu& gpu, Stream stream, const SampleCall& c) {
  if (c.rows == 0) return {};
  HOTSET_FAIL_IF(!sample_fits(gpu, c.n, c.k) || c.rows > 65535, unsupported, "%d candidates of %lld logits in %lld rows", c.k,
                 static_cast<long long>(c.n), static_cast<long long>(c.rows));
  SampleParams p = {};
  p.logits = c.logits;
  p.candidates = static_cast<uint64_t*>(c.workspace);
  p.ids = c.ids;
  p.values = c.values;
  p.row_stride = c.row_stride;
  p.n = static_cast<int32_t>(c.n);
  p.k = c.k;
  p.parts = static_cast<int32_t>(parts_of(c.n));
  p.rows = static_cast<int32_t>(c.rows);
  const char* const suffix = c.type == DType::f32 ? "f32" : c.type == DType::f16 ? "f16" : "bf16";
  const bool one = c.k == 1;
  const int sort_bytes = one ? 0 : kSamplePart * static_cast<int>(sizeof(uint64_t)),
            lists_bytes = one ? 0 : static_cast<int>(join_bytes(c.n, c.k));
  HOTSET_ASSIGN(const Function parts,
                gpu.function("sample", format_text("hotset_sample_%s_of_part_%s", one ? "best" : "largest", suffix).c_str()));
  HOTSET_ASSIGN(const Function join,
                gpu.function("sample", one ? "hotset_sample_best" : "hotset_sample_join", one ? 0 : gpu.limits().shared_bytes_per_block));
  HOTSET_TRY(launch_with(gpu, stream,
                         {.function = parts,
                          .grid_x = static_cast<unsigned>(p.parts),
                          .grid_y = static_cast<unsigned>(c.rows),
                          .block = one ? 512u : 1024u,
                          .shared_bytes = static_cast<unsigned>(sort_bytes),
                          .overlap = true},
                         p));
  return launch_with(gpu, stream,
                     {.function = join,
                      .grid_x = static_cast<unsigned>(c.rows),
                      .block = one ? 256u : 1024u,
                      .shared_bytes = static_cast<unsigned>(lists_bytes),
                      .overlap = true},
                     p);
}

}  // namespace hotset::cuda
