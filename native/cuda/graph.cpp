// SPDX-License-Identifier: Apache-2.0
// Capture and launch of graphs.
#include "cuda/graph.h"

namespace hotset::cuda {
namespace {
constexpr int kThreadLocal = 1;  // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: what other threads do meanwhile does not matter
}

Status CapturedGraph::begin(const Gpu& gpu, Stream stream) {
  return gpu.check(driver().stream_begin_capture(stream, kThreadLocal), "cuStreamBeginCapture");
}

Status CapturedGraph::end(std::shared_ptr<Gpu> gpu, Stream stream) {
  const Driver& d = driver();
  Graph graph = nullptr;
  HOTSET_TRY(gpu->check(d.stream_end_capture(stream, &graph), "cuStreamEndCapture"));
  const int result = d.graph_instantiate(&exec_, graph, 0);
  d.graph_destroy(graph);
  if (result != 0) exec_ = nullptr;
  HOTSET_TRY(gpu->check(result, "cuGraphInstantiateWithFlags"));
  gpu_ = std::move(gpu);
  return {};
}

Status CapturedGraph::launch(Stream stream) const { return gpu_->check(driver().graph_launch(exec_, stream), "cuGraphLaunch"); }

void CapturedGraph::drop() {
  if (!exec_) return;
  const Current current(*gpu_);
  driver().graph_exec_destroy(exec_);
  exec_ = nullptr;
  gpu_.reset();
}

}  // namespace hotset::cuda
