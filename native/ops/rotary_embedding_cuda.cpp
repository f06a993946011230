// SPDX-License-Identifier: Apache-2.0
// RotaryEmbedding and MRotaryEmbedding on a GPU. A position outside the tables gives NaN there: a kernel cannot fail a run.
#include <algorithm>

#include "cuda/rotary.h"
#include "ops/device_kernel.h"

namespace hotset::ops {
namespace {

class RotaryOnDevice final : public DeviceKernel {
 public:
  RotaryOnDevice(const DeviceContext& c, bool standard, bool multi) : standard_(standard), multi_(multi) {
    const model::Node& node = c.op.node();
    interleaved_ = node.get_int("interleaved", 0) == 1;
    heads_ = node.get_int("num_heads", 0);
    dim_ = node.get_int("rotary_embedding_dim", 0);
    layout_ = static_cast<int32_t>(node.get_int("mrope_layout", 0));
    if (const std::vector<int64_t>* const section = node.get_ints("mrope_section"))
      for (size_t i = 0; i < 3 && i < section->size(); ++i) section_[i] = static_cast<int32_t>((*section)[i]);
  }
  std::string_view implementation() const override { return "cuda simt"; }

  Status launch(const DeviceRun& run) const override {
    const Tensor &x = *run.inputs[0], &cos = *run.inputs[standard_ ? 1 : 2], &sin = *run.inputs[standard_ ? 2 : 3];
    const Tensor* const ids = run.input(standard_ ? 3 : 1);
    cuda::RotaryParams p = {};
    p.x = x.data;
    p.cos = cos.data;
    p.sin = sin.data;
    p.ids = ids ? ids->as<const int64_t>() : nullptr;
    p.y = run.outputs[0]->data;
    p.half = cos.shape[-1];
    p.table_rows = cos.size() / std::max<int64_t>(1, p.half);
    p.batch = x.shape[0];
    if (x.shape.rank == 4) {
      p.heads = x.shape[1];
      p.length = x.shape[2];
      p.channels = x.shape[3];
      p.x_batch = p.heads * p.length * p.channels;
      p.x_head = p.length * p.channels;
      p.x_row = p.channels;
    } else {
      p.length = x.shape[1];
      p.channels = heads_ == 0 || (!standard_ && !multi_ && dim_ == 0) ? 2 * p.half : x.shape[2] / heads_;
      p.heads = p.channels ? x.shape[2] / p.channels : 0;
      p.x_batch = p.length * x.shape[2];
      p.x_row = x.shape[2];
      p.x_head = p.channels;
    }
    p.positions = !ids ? 0 : multi_ ? 3 : ids->shape.rank < 2 ? 1 : 2;
    p.interleaved = interleaved_;
    p.layout = layout_;
    for (int i = 0; i < 3; ++i) p.section[i] = section_[i];
    return cuda::launch_rotary(run.gpu, run.stream, x.dtype, p);
  }

 private:
  const bool standard_, multi_;
  bool interleaved_ = false;
  int64_t heads_ = 0, dim_ = 0;
  int32_t layout_ = 0, section_[3] = {};
};

template <bool standard, bool multi>
Result<std::unique_ptr<DeviceKernel>> make_rotary_on_device(const DeviceContext& c) {
  return std::unique_ptr<DeviceKernel>(std::make_unique<RotaryOnDevice>(c, standard, multi));
}

}  // namespace

HOTSET_CUDA_OPS(rotary_embedding_cuda, {"com.microsoft", "RotaryEmbedding", make_rotary_on_device<false, false>},
                {"com.microsoft", "MRotaryEmbedding", make_rotary_on_device<false, true>},
                {"", "RotaryEmbedding", make_rotary_on_device<true, false>});

}  // namespace hotset::ops
