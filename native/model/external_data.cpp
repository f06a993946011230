// SPDX-License-Identifier: Apache-2.0
// Opens data files beside a model and keeps them inside its folder.
#include "model/external_data.h"

#include <algorithm>
#include <system_error>

namespace hotset::model {
namespace fs = std::filesystem;
namespace {
fs::path to_path(std::string_view utf8) { return fs::path(std::u8string(utf8.begin(), utf8.end())); }

std::string to_utf8(const fs::path& path) {
  const std::u8string text = path.u8string();
  return {text.begin(), text.end()};
}

bool inside(const fs::path& file, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), file.begin(), file.end()).first == folder.end();
}
}  // namespace

ExternalData::ExternalData(Model& model, const std::string& folder, const std::string& model_path, bool map)
    : model_(model), folder_(to_path(folder)), model_path_(model_path), map_(map) {}

Result<int> ExternalData::open(std::string_view location) {
  if (const auto known = by_location_.find(location); known != by_location_.end()) return known->second;
  HOTSET_ASSIGN(const int file, open_new(location));
  by_location_.emplace(location, file);
  return file;
}

Result<int> ExternalData::open_new(std::string_view location) {
  const std::string shown = quote(location);
  HOTSET_FAIL_IF(!valid_text(location), invalid_model, "the data file's name %s is not UTF-8", shown.c_str());
  HOTSET_FAIL_IF(folder_.empty(), invalid_argument, "the data lies in file %s, and a model given as bytes has no folder", shown.c_str());
  const fs::path relative = to_path(location);
  bool leaves = location.empty() || relative.is_absolute() || relative.has_root_name() || relative.has_root_directory();
  for (const fs::path& part : relative) leaves = leaves || part == "..";
  HOTSET_FAIL_IF(leaves, invalid_model, "data file %s is not inside the model's folder", shown.c_str());

  std::error_code error;
  const fs::path path = folder_ / relative;
  const fs::path real = fs::canonical(path, error);
  HOTSET_FAIL_IF(error == std::errc::not_enough_memory, out_of_memory, "data file %s: %s", quote(to_utf8(path)).c_str(), error.message().c_str());
  HOTSET_FAIL_IF(error, not_found, "data file %s: %s", quote(to_utf8(path)).c_str(), error.message().c_str());
  if (roots_.empty()) {
    if (fs::path root = fs::canonical(folder_, error); !error) roots_.push_back(std::move(root));
    if (!model_path_.empty()) {
      if (const fs::path model = fs::canonical(to_path(model_path_), error); !error) roots_.push_back(model.parent_path());
    }
  }
  HOTSET_FAIL_IF(std::none_of(roots_.begin(), roots_.end(), [&](const fs::path& root) { return inside(real, root); }), invalid_model,
                 "data file %s is a link to %s, outside the model's folder", shown.c_str(), quote(to_utf8(real)).c_str());

  const std::string real_path = to_utf8(real);
  if (const auto known = by_real_path_.find(real_path); known != by_real_path_.end()) return known->second;
  HOTSET_ASSIGN(std::shared_ptr<MappedFile> file, MappedFile::open(real_path, map_));
  const int id = static_cast<int>(model_.files.size());
  model_.files.push_back(std::move(file));
  by_real_path_.emplace(real_path, id);
  return id;
}

}  // namespace hotset::model
