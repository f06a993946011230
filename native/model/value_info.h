// SPDX-License-Identifier: Apache-2.0
// ValueInfoProto: the declared type and shape of a value.
#pragma once
#include "model/graph.h"
#include "model/wire.h"

namespace hotset::model {

struct Declared {
  std::string_view name;
  const char* kind = nullptr;  // what it is when it is no tensor
  DType dtype = DType::undefined;
  bool has_shape = false;
  std::vector<Dim> shape;
};

Status read_declared(Bytes message, Declared* out);
// Gives the value the declared type and shape, which are moved from. Constants know their own.
void declare(Declared& declared, Value* value);

Status malformed(const char* what);
// Copies a name, refusing what could not be shown or passed on.
Status copy_text(std::string_view text, const char* what, std::string* out);

}  // namespace hotset::model
