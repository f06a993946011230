// SPDX-License-Identifier: Apache-2.0
// TensorProto -> Constant.
#pragma once
#include "model/external_data.h"
#include "model/graph.h"
#include "model/wire.h"

namespace hotset::model {

class TensorReader {
 public:
  TensorReader(Model& model, ExternalData& external) : model_(model), external_(external) {}

  // Raw data stay where they lie, typed fields are decoded into Model::owned. A string tensor gets a null data pointer.
  // *name is set even on failure (empty if there is none); texts do not mention the tensor.
  Status read(Bytes message, std::string_view* name, Constant* out);

  // A constant of `bytes` zeroed bytes owned by the model.
  uint8_t* own(size_t bytes);
  // Bytes decoded so far.
  uint64_t owned_bytes() const { return owned_bytes_; }

 private:
  struct Fields;
  Status read_fields(Bytes message, Fields* out);
  Status decode(Bytes message, const Fields& fields, size_t bytes, Constant* out);
  Status place_external(const Fields& fields, size_t bytes, Constant* out);

  Model& model_;
  ExternalData& external_;
  uint64_t owned_bytes_ = 0;
};

}  // namespace hotset::model
