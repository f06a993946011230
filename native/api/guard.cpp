// SPDX-License-Identifier: Apache-2.0
// Error texts, versions, texts and tensors at the C edge.
#include "api/guard.h"

#include <cstdlib>

static_assert(static_cast<int>(hotset::Code::internal) == HOTSET_ERROR_INTERNAL &&
              static_cast<int>(hotset::Code::invalid_state) == HOTSET_ERROR_INVALID_STATE);
static_assert(static_cast<int>(hotset::DType::f8e8m0) == HOTSET_FLOAT8E8M0 && static_cast<int>(hotset::DType::bf16) == HOTSET_BFLOAT16);
static_assert(hotset::kMaxRank == HOTSET_MAX_RANK);

namespace hotset::api {
namespace {
thread_local std::string last_error;
thread_local std::string note;
}  // namespace

std::string& thread_note() { return note; }

hotset_status record(const Status& status) noexcept {
  if (status.ok()) return HOTSET_OK;
  try {
    last_error = status.text();
  } catch (...) {
    last_error.clear();
  }
  return static_cast<hotset_status>(status.code());
}

hotset_status record(Code code, const char* text) noexcept {
  try {
    last_error = text;
  } catch (...) {
    last_error.clear();
  }
  return static_cast<hotset_status>(code);
}

Status give_text(const std::string& text, char** out) {
  HOTSET_FAIL_IF(!out, invalid_argument, "out is NULL");
  *out = static_cast<char*>(std::malloc(text.size() + 1));
  HOTSET_FAIL_IF(!*out, out_of_memory, "cannot allocate %zu bytes", text.size() + 1);
  std::memcpy(*out, text.c_str(), text.size() + 1);
  return {};
}

Status read_tensor(const hotset_tensor& from, const char* what, Tensor* out) {
  HOTSET_FAIL_IF(from.struct_size < offsetof(hotset_tensor, owner), invalid_argument,
                 "%s: struct_size is %u: set it to sizeof(hotset_tensor)", what, from.struct_size);
  HOTSET_FAIL_IF(from.rank < 0 || from.rank > HOTSET_MAX_RANK, invalid_argument, "%s: rank %lld, allowed 0..%d", what,
                 static_cast<long long>(from.rank), HOTSET_MAX_RANK);
  HOTSET_FAIL_IF(from.device > HOTSET_CPU, unsupported, "%s: device %d; this build takes host memory", what, from.device);
  out->dtype = static_cast<DType>(from.dtype);
  out->shape = Shape(std::span(from.shape, static_cast<size_t>(from.rank)));
  int64_t n = 0;
  size_t bytes = 0;
  HOTSET_FAIL_IF(!checked_size(out->shape.dims(), &n), invalid_argument, "%s: impossible shape %s", what, to_text(out->shape).c_str());
  HOTSET_FAIL_IF(!dense_bytes(out->dtype, n, &bytes), invalid_argument, "%s: unknown element type %d", what, from.dtype);
  bool dense = true, any = false;
  int64_t step = 1;
  for (int i = out->shape.rank; i-- > 0;) {
    any |= from.strides[i] != 0;
    dense &= out->shape[i] <= 1 || from.strides[i] == step;
    step *= out->shape[i] > 0 ? out->shape[i] : 1;
  }
  HOTSET_FAIL_IF(any && !dense && n > 1, invalid_argument, "%s: the tensor is not dense row-major; make a contiguous copy", what);
  HOTSET_FAIL_IF(!from.data && bytes, invalid_argument, "%s: data is NULL", what);
  const size_t element = std::clamp<size_t>(static_cast<size_t>(dtype_bits(out->dtype)) / 8, 1, 8);
  HOTSET_FAIL_IF(reinterpret_cast<uintptr_t>(from.data) % element != 0, invalid_argument,
                 "%s: data is not aligned to elements of %zu bytes; make an aligned copy", what, element);
  HOTSET_FAIL_IF(from.bytes < bytes, invalid_argument, "%s: the buffer has %zu bytes, shape %s of %s needs %zu", what, from.bytes,
                 to_text(out->shape).c_str(), dtype_name(out->dtype), bytes);
  out->data = from.data;
  return {};
}

}  // namespace hotset::api

using namespace hotset;
using namespace hotset::api;

extern "C" {

uint32_t hotset_api_version(void) { return HOTSET_API_VERSION; }

const char* hotset_version(void) { return HOTSET_BUILD_VERSION; }

const char* hotset_last_error(void) { return last_error.c_str(); }

const char* hotset_status_name(hotset_status status) {
  switch (status) {
    case HOTSET_OK:
      return "ok";
    case HOTSET_ERROR_INVALID_ARGUMENT:
      return "invalid argument";
    case HOTSET_ERROR_NOT_FOUND:
      return "not found";
    case HOTSET_ERROR_INVALID_MODEL:
      return "invalid model";
    case HOTSET_ERROR_UNSUPPORTED:
      return "unsupported";
    case HOTSET_ERROR_BUDGET:
      return "budget too small";
    case HOTSET_ERROR_OUT_OF_MEMORY:
      return "out of memory";
    case HOTSET_ERROR_OUT_OF_DEVICE_MEMORY:
      return "out of device memory";
    case HOTSET_ERROR_DEVICE:
      return "device error";
    case HOTSET_ERROR_CANCELLED:
      return "cancelled";
    case HOTSET_ERROR_INVALID_STATE:
      return "invalid state";
    case HOTSET_ERROR_INTERNAL:
      return "internal error";
  }
  return "unknown status";
}

void hotset_text_free(char* text) { std::free(text); }

void hotset_tensor_free(hotset_tensor* tensor) {
  if (!tensor || tensor->struct_size < sizeof(hotset_tensor) || !tensor->owner) return;
  std::free(tensor->owner);
  tensor->owner = nullptr;
  tensor->data = nullptr;
  tensor->bytes = 0;
}

size_t hotset_tensor_bytes(int32_t dtype, const int64_t* shape, int64_t rank) {
  int64_t n = 0;
  size_t bytes = 0;
  if (rank < 0 || rank > HOTSET_MAX_RANK || (rank && !shape)) return 0;
  if (!checked_size({shape, static_cast<size_t>(rank)}, &n) || !dense_bytes(static_cast<DType>(dtype), n, &bytes)) return 0;
  return bytes;
}

const char* hotset_dtype_name(int32_t dtype) { return dtype_name(static_cast<DType>(dtype)); }

}  // extern "C"
