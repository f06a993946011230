// SPDX-License-Identifier: Apache-2.0
// Look-up of device forms in the generated table.
#include "ops/device_kernel.h"

#include <cstdarg>
#include <cstdio>

namespace hotset::ops {

extern const DeviceOpList* const kDeviceOpLists[];  // generated: one list a file of native/ops
extern const size_t kDeviceOpListCount;

std::unique_ptr<DeviceKernel> DeviceContext::on_cpu(const char* format, ...) const {
  char text[512];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  *reason_ = text;
  return nullptr;
}

Result<std::unique_ptr<DeviceKernel>> make_device_kernel(const OpContext& op, const Kernel& kernel, cuda::Gpu& gpu, std::string* reason) {
  const model::Node& node = op.node();
  for (size_t i = 0; i < kDeviceOpListCount; ++i)
    for (const DeviceOpEntry& e : std::span(kDeviceOpLists[i]->entries, kDeviceOpLists[i]->count))
      if (e.op_type == node.op_type && e.domain == node.domain) return e.create(DeviceContext(op, kernel, gpu, reason));
  *reason = "the operator has no device kernel";
  return std::unique_ptr<DeviceKernel>();
}

}  // namespace hotset::ops
