// SPDX-License-Identifier: Apache-2.0
// Session options: strings over one table, from which parsing, bounds, documentation and bindings come.
#pragma once
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace hotset {

enum class OptionType { integer, boolean, choice, bytes, real, text };

struct OptionInfo {
  const char* key;
  OptionType type;
  const char* default_value;                           // "" of a key that is not text: absent, which is not a value one can set
  const char* allowed;                                 // "0..1024", "auto|float|int8", "" when free
  const char* help;                                    // one sentence
  bool (*is_valid)(std::string_view value) = nullptr;  // of values that `allowed` alone does not describe
};

std::span<const OptionInfo> option_table();
const char* option_type_name(OptionType type);

class Options {
 public:
  // Checks key and value against the table. Unknown keys outside our own namespaces are kept for `unknown_keys`.
  Status set(std::string_view key, std::string_view value);
  bool is_set(std::string_view key) const { return values_.find(key) != values_.end(); }
  // Value in force, or null for an unknown key that was never set.
  const std::string* find(std::string_view key) const;
  // Of keys in the table only.
  const std::string& get(std::string_view key) const;
  int64_t get_int(std::string_view key) const;
  bool get_bool(std::string_view key) const;
  // Number of the GPU that hotset.device names, -1 for the CPU.
  int device_index() const;
  std::vector<std::string> unknown_keys() const;

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

}  // namespace hotset
