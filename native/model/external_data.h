// SPDX-License-Identifier: Apache-2.0
// Data files of a model: a location in the .onnx file -> a file in Model::files.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/graph.h"

namespace hotset::model {

class ExternalData {
 public:
  // `folder` may be empty (a model given as bytes): every location is then refused. `model_path` may be empty too.
  ExternalData(Model& model, const std::string& folder, const std::string& model_path, bool map);

  // Index into Model::files. Each file is opened once, whatever the spelling of its location.
  //
  // Locations are relative and stay inside the folder: absolute ones and `..` are refused, and so are links that lead out of
  // it. A link may lead into the folder where the model file itself really lies: download caches keep all files of a model
  // in one folder of blobs and link to them.
  Result<int> open(std::string_view location);

 private:
  Result<int> open_new(std::string_view location);

  Model& model_;
  std::filesystem::path folder_;
  std::string model_path_;
  bool map_;
  std::vector<std::filesystem::path> roots_;  // real paths of the folders that files may lie in
  std::unordered_map<std::string_view, int> by_location_;
  std::unordered_map<std::string, int> by_real_path_;
};

}  // namespace hotset::model
