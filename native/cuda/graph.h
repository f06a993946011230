// SPDX-License-Identifier: Apache-2.0
// Work of a stream, captured once and launched again as one.
#pragma once
#include <memory>
#include <utility>

#include "cuda/device.h"

namespace hotset::cuda {

class CapturedGraph {
 public:
  CapturedGraph() = default;
  ~CapturedGraph() { drop(); }
  CapturedGraph(CapturedGraph&& o) noexcept : gpu_(std::move(o.gpu_)), exec_(std::exchange(o.exec_, nullptr)) {}
  CapturedGraph& operator=(CapturedGraph&& o) noexcept {
    std::swap(gpu_, o.gpu_);
    std::swap(exec_, o.exec_);
    return *this;
  }
  // Captures what `enqueue() -> Status` puts on the stream; nothing of it runs. The device's context is current.
  template <class F>
  static hotset::Result<CapturedGraph> capture(std::shared_ptr<Gpu> gpu, Stream stream, F&& enqueue) {
    HOTSET_TRY(begin(*gpu, stream));
    Status status = enqueue();
    CapturedGraph graph;
    Status ended = graph.end(std::move(gpu), stream);
    if (!status.ok()) return status;
    if (!ended.ok()) return ended;
    return graph;
  }
  explicit operator bool() const { return exec_ != nullptr; }
  Status launch(Stream stream) const;
  void drop();

 private:
  static Status begin(const Gpu& gpu, Stream stream);
  Status end(std::shared_ptr<Gpu> gpu, Stream stream);

  std::shared_ptr<Gpu> gpu_;
  GraphExec exec_ = nullptr;
};

}  // namespace hotset::cuda
