// SPDX-License-Identifier: Apache-2.0
// Reads declared types and shapes.
#include "model/value_info.h"

#include <charconv>
#include <climits>

namespace hotset::model {

Status malformed(const char* what) { return fail(Code::invalid_model, "malformed %s message", what); }

Status copy_text(std::string_view text, const char* what, std::string* out) {
  HOTSET_FAIL_IF(!valid_text(text), invalid_model, "%s %s is not UTF-8 text", what, quote(text).c_str());
  out->assign(text);
  return {};
}

namespace {

Status read_dim(Bytes message, Dim* out) {
  WireReader r(message);
  while (r.next()) {
    if (r.field() == 1) {
      out->value = r.integer();
      if (out->value < 0) out->value = -1;
      out->name.clear();
    } else if (r.field() == 2) {
      HOTSET_TRY(copy_text(r.text(), "dimension", &out->name));
      out->value = -1;
    }
  }
  if (!r.ok()) return malformed("dimension");
  const char* const end = out->name.data() + out->name.size();
  if (int64_t number; !out->name.empty() && out->name[0] != '-') {
    const auto [stop, error] = std::from_chars(out->name.data(), end, number);
    if (error == std::errc() && stop == end) {
      out->value = number;
      out->name.clear();
    }
  }
  return {};
}

Status read_tensor_type(Bytes message, Declared* out) {
  WireReader r(message);
  while (r.next()) {
    if (r.field() == 1) {
      const int64_t type = r.integer();
      const DType known = static_cast<DType>(type);
      out->dtype = type > 0 && type <= INT_MAX && (dtype_bits(known) || known == DType::string) ? known : DType::undefined;
    } else if (r.field() == 2) {
      WireReader shape(r.bytes());
      out->has_shape = true;
      while (shape.next()) {
        if (shape.field() != 1) continue;
        out->shape.emplace_back();
        HOTSET_TRY(read_dim(shape.bytes(), &out->shape.back()));
      }
      if (!shape.ok()) return malformed("shape");
    }
  }
  return r.ok() ? Status() : malformed("tensor type");
}

}  // namespace

Status read_declared(Bytes message, Declared* out) {
  WireReader r(message);
  while (r.next()) {
    if (r.field() == 1) out->name = r.text();
    if (r.field() != 2) continue;
    WireReader type(r.bytes());
    while (type.next()) {
      switch (type.field()) {
        case 1:
          HOTSET_TRY(read_tensor_type(type.bytes(), out));
          break;
        case 4:
          out->kind = "a sequence";
          break;
        case 5:
          out->kind = "a map";
          break;
        case 7:
          out->kind = "an opaque value";
          break;
        case 8:
          out->kind = "a sparse tensor";
          break;
        case 9:
          out->kind = "an optional value";
          break;
        default:
          break;
      }
    }
    if (!type.ok()) return malformed("type");
  }
  return r.ok() ? Status() : malformed("value info");
}

void declare(Declared& declared, Value* value) {
  if (value->constant >= 0) return;  // the tensor says it better
  if (declared.dtype != DType::undefined) value->dtype = declared.dtype;
  if (declared.has_shape) {
    value->has_shape = true;
    value->shape = std::move(declared.shape);
  }
}

}  // namespace hotset::model
