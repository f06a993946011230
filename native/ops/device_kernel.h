// SPDX-License-Identifier: Apache-2.0
// The device form of an operator: what a session on a GPU runs instead of Kernel::run. Checks and shape inference stay those of
// the CPU kernel of the same node, so that a node means the same on both sides.
//
// One operator is one file with its class, its factory, and a table at the end:
//
//     HOTSET_CUDA_OPS(binary_cuda, {"", "Add", make_add}, {"", "Mul", make_mul});
//
// The build finds files by the text HOTSET_CUDA_OPS and lists them (tools/gen_op_table.py); the name is the file's stem.
//
// Life of a device kernel: create (session creation; types and constants known) → prepare (constants lie on the device) → for new
// shapes: the CPU kernel's infer, then plan → launch for every run. The launches of a step whose shapes and buffers repeat are
// captured into a CUDA graph and replayed without calling launch again, so launch may depend on nothing but what it is given here:
// shapes, addresses, the contents of inputs of InputUse::host.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/tensor.h"
#include "cuda/device.h"
#include "ops/op.h"

namespace hotset::ops {

// What a device kernel does with an input.
enum class InputUse : uint8_t {
  device,  // reads it on the device; the session uploads it when it is made on the host
  host,    // reads its content on the host, in plan() or launch(): a constant or a value that shapes depend on
  unused,  // reads its shape at most: it is neither uploaded nor waited for
};

// Once, at session creation, when the constants of the node lie on the device.
struct DeviceSetup {
  cuda::Gpu& gpu;
  cuda::Stream stream;             // launches and copies go here; the session waits for it before the first run
  std::span<const Tensor> inputs;  // data: the device address of a constant of InputUse::device, else null
  std::span<const Tensor> host;    // the same constants in host memory (the mapping), for InputUse::host too; else null
  void* state;                     // device, state_bytes() of it, 256-byte aligned; kept as long as the session
  std::byte* staging;              // pinned host memory, state_bytes() of it; free again when prepare's copies are through
};

// One launch of one node.
struct DeviceRun {
  cuda::Gpu& gpu;
  cuda::Stream stream;
  std::span<Tensor* const> inputs;   // data: device addresses; host addresses for InputUse::host; null where absent
  std::span<Tensor* const> outputs;  // data: device addresses, 256-byte aligned unless the caller's; null where nobody names it
  void* workspace;                   // device, as many bytes as plan() asked for, 256-byte aligned; content undefined
  void* state;                       // as prepare() left it; null without state_bytes()

  const Tensor* input(int i) const { return static_cast<size_t>(i) < inputs.size() ? inputs[static_cast<size_t>(i)] : nullptr; }
  Tensor* output(int i) const { return static_cast<size_t>(i) < outputs.size() ? outputs[static_cast<size_t>(i)] : nullptr; }
};

class DeviceKernel {
 public:
  virtual ~DeviceKernel() = default;
  // Several threads may plan and launch one kernel at once: no member changes after prepare().

  virtual InputUse use(int input) const {
    (void)input;
    return InputUse::device;
  }
  // Device memory that the node keeps for the session: tables of addresses, repacked scales. For the report too.
  virtual size_t state_bytes() const { return 0; }
  virtual Status prepare(const DeviceSetup& setup) {
    (void)setup;
    return {};
  }
  // After Kernel::infer with the same shapes: bytes of device workspace. Fails with Code::unsupported for shapes that the kernel
  // cannot do. It must not depend on the content of an input that is not InputUse::host.
  virtual Status plan(const InferContext& context, size_t* workspace) const {
    (void)context;
    *workspace = 0;
    return {};
  }
  // Enqueues kernels and copies on the stream; neither allocates nor waits, so that it can be captured in a CUDA graph. When an
  // output may be written over an input (InferContext::may_overwrite) or is updated in place (Kernel::in_place_input), the data
  // pointers are equal. Texts need not name the node: the caller adds it.
  virtual Status launch(const DeviceRun& run) const = 0;
  // What computes the node, for reports: "cuda simt", "cuda mma", "cuda wgmma" ...
  virtual std::string_view implementation() const = 0;
};

// The node at session creation, with the CPU kernel that checked it.
class DeviceContext {
 public:
  DeviceContext(const OpContext& op, const Kernel& kernel, cuda::Gpu& gpu, std::string* reason)
      : op(op), kernel(kernel), gpu(gpu), reason_(reason) {}
  const OpContext& op;
  const Kernel& kernel;
  cuda::Gpu& gpu;
  // "This node has no device form, because ...": it runs on the CPU, and the reason is shown where the user asks why.
  // `return c.on_cpu("block_size %d has no device kernel", n);`
#if defined(__GNUC__)
  __attribute__((format(printf, 2, 3)))
#endif
  std::unique_ptr<DeviceKernel> on_cpu(const char* format, ...) const;

 private:
  std::string* reason_;
};

// Null (through DeviceContext::on_cpu): the node runs on the CPU. A failure fails the session.
using DeviceFactory = Result<std::unique_ptr<DeviceKernel>> (*)(const DeviceContext& context);

struct DeviceOpEntry {
  std::string_view domain, op_type;
  DeviceFactory create;
};

struct DeviceOpList {
  const DeviceOpEntry* entries;
  size_t count;
};

// Defines the table of one file; `stem` is the file's name without .cpp:  HOTSET_CUDA_OPS(binary_cuda, {...}, {...})
#define HOTSET_CUDA_OPS(stem, ...)                                        \
  static constexpr DeviceOpEntry kDeviceEntries_##stem[] = {__VA_ARGS__}; \
  extern const DeviceOpList device_ops_##stem;                            \
  const DeviceOpList device_ops_##stem = {kDeviceEntries_##stem, sizeof(kDeviceEntries_##stem) / sizeof(kDeviceEntries_##stem[0])}

// The device form of a node, or null with the reason in *reason.
Result<std::unique_ptr<DeviceKernel>> make_device_kernel(const OpContext& op, const Kernel& kernel, cuda::Gpu& gpu, std::string* reason);

}  // namespace hotset::ops
