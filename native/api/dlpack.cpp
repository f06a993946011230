// SPDX-License-Identifier: Apache-2.0
// Tensors in and out by DLPack: the layout of its structures is the interface (dlpack.h of version 0.8, which all later ones read).
#include <cstddef>

#include "api/tensors.h"

namespace hotset::api {
namespace {

struct DlDevice {
  int32_t type, id;  // 1 CPU, 2 CUDA, 3 pinned host memory
};

struct DlType {
  uint8_t code, bits;
  uint16_t lanes;
};

struct DlTensor {
  void* data;
  DlDevice device;
  int32_t rank;
  DlType type;
  int64_t* shape;
  int64_t* strides;  // elements; null: dense row-major
  uint64_t byte_offset;
};

struct DlManagedTensor {
  DlTensor tensor;
  void* context;
  void (*deleter)(DlManagedTensor*);
};
static_assert(sizeof(DlTensor) == 48 && offsetof(DlTensor, shape) == 24 && sizeof(DlManagedTensor) == 64);

constexpr struct {
  uint8_t code, bits;
  DType dtype;
} kTypes[] = {
    {0, 8, DType::i8},      {0, 16, DType::i16},        {0, 32, DType::i32},    {0, 64, DType::i64},      {1, 8, DType::u8},
    {1, 16, DType::u16},    {1, 32, DType::u32},        {1, 64, DType::u64},    {2, 16, DType::f16},      {2, 32, DType::f32},
    {2, 64, DType::f64},    {4, 16, DType::bf16},       {6, 8, DType::boolean}, {10, 8, DType::f8e4m3fn}, {11, 8, DType::f8e4m3fnuz},
    {12, 8, DType::f8e5m2}, {13, 8, DType::f8e5m2fnuz}, {14, 8, DType::f8e8m0},
};

Status read_type(DlType type, int32_t* out) {
  for (const auto& t : kTypes) {
    if (t.code != type.code || t.bits != type.bits || type.lanes != 1) continue;
    *out = static_cast<int32_t>(t.dtype);
    return {};
  }
  return fail(Code::unsupported, "DLPack element type with code %d, %d bits, %d lanes", type.code, type.bits, type.lanes);
}

// An exported tensor: the structure that goes out, its shape, and a share of the memory.
struct Exported {
  DlManagedTensor managed{};
  int64_t shape[HOTSET_MAX_RANK] = {}, strides[HOTSET_MAX_RANK] = {};
  SharedDeviceMemory* memory = nullptr;
};

void delete_exported(DlManagedTensor* managed) {
  auto* exported = static_cast<Exported*>(managed->context);
  drop(exported->memory);
  delete exported;
}

}  // namespace
}  // namespace hotset::api

using namespace hotset;
using namespace hotset::api;

extern "C" {

hotset_status hotset_tensor_from_dlpack(hotset_tensor* out, const void* managed) {
  return guard([&]() -> Status {
    HOTSET_FAIL_IF(!out || !managed, invalid_argument, "out or managed is NULL");
    HOTSET_FAIL_IF(out->struct_size < sizeof(hotset_tensor), invalid_argument, "struct_size is %u: set it to sizeof(hotset_tensor)",
                   out->struct_size);
    const DlTensor& from = static_cast<const DlManagedTensor*>(managed)->tensor;
    HOTSET_FAIL_IF(from.rank < 0 || from.rank > HOTSET_MAX_RANK, unsupported, "a DLPack tensor of rank %d, at most %d", from.rank,
                   HOTSET_MAX_RANK);
    HOTSET_FAIL_IF(from.device.type < 1 || from.device.type > 3, unsupported,
                   "DLPack device type %d: expected CPU (1), CUDA (2) or pinned (3)", from.device.type);
    hotset_tensor t = {};
    t.struct_size = out->struct_size;
    HOTSET_TRY(read_type(from.type, &t.dtype));
    t.device = from.device.type == 2 ? HOTSET_CUDA : HOTSET_CPU;
    t.device_id = from.device.type == 2 ? from.device.id : 0;
    t.rank = from.rank;
    for (int32_t d = 0; d < from.rank; ++d) {
      t.shape[d] = from.shape[d];
      if (from.strides) t.strides[d] = from.strides[d];
    }
    t.bytes = hotset_tensor_bytes(t.dtype, t.shape, t.rank);
    t.data = from.data ? static_cast<std::byte*>(from.data) + from.byte_offset : nullptr;
    Tensor checked;
    HOTSET_TRY(read_tensor(t, "the DLPack tensor", &checked));
    for (int64_t& stride : t.strides) stride = 0;  // dense, as was checked
    *out = t;
    return {};
  });
}

hotset_status hotset_tensor_to_dlpack(const hotset_tensor* tensor, void** out) {
  return guard([&]() -> Status {
    HOTSET_FAIL_IF(!tensor || !out, invalid_argument, "tensor or out is NULL");
    *out = nullptr;
    Tensor t;
    HOTSET_TRY(read_tensor(*tensor, "tensor", &t));
    HOTSET_FAIL_IF(tensor->device != HOTSET_CUDA || tensor->struct_size < sizeof(hotset_tensor) || !tensor->owner, unsupported,
                   "only device memory that the library allocated is shared");
    auto exported = std::make_unique<Exported>();
    DlTensor& to = exported->managed.tensor;
    for (const auto& type : kTypes)
      if (type.dtype == t.dtype) to.type = {type.code, type.bits, 1};
    HOTSET_FAIL_IF(to.type.lanes == 0, unsupported, "DLPack has no element type for %s", dtype_name(t.dtype));
    int64_t step = 1;
    for (int d = t.shape.rank; d-- > 0;) {
      exported->shape[d] = t.shape[d];
      exported->strides[d] = step;
      step *= t.shape[d];
    }
    to.data = t.data;
    to.device = {2, tensor->device_id};
    to.rank = t.shape.rank;
    to.shape = exported->shape;
    to.strides = exported->strides;
    exported->memory = static_cast<SharedDeviceMemory*>(tensor->owner);
    exported->memory->n_owners.fetch_add(1, std::memory_order_relaxed);
    exported->managed.context = exported.get();
    exported->managed.deleter = delete_exported;
    *out = &exported.release()->managed;
    return {};
  });
}

}  // extern "C"
