// SPDX-License-Identifier: Apache-2.0
// JSON written straight into a text. A document tree is not used: the library's tree allocates in its destructor, which ends
// the process when memory is full; values are still formatted by it.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace hotset {

class JsonText {
 public:
  JsonText& object() { return open('{', '}'); }
  JsonText& array() { return open('[', ']'); }
  JsonText& end() {
    text_ += closers_.back();
    closers_.pop_back();
    first_ = false;
    return *this;
  }
  JsonText& key(std::string_view name) {
    separate();
    append(std::string(name));
    text_ += ':';
    first_ = true;  // the value follows without a comma
    return *this;
  }
  // A string, number, bool or nullptr.
  template <class T>
  JsonText& value(const T& v) {
    separate();
    append(v);
    return *this;
  }
  template <class T>
  JsonText& field(std::string_view name, const T& v) {
    return key(name).value(v);
  }
  std::string take() { return std::move(text_); }

 private:
  JsonText& open(char opener, char closer) {
    separate();
    text_ += opener;
    closers_ += closer;
    first_ = true;
    return *this;
  }
  void separate() {
    if (!first_ && !closers_.empty()) text_ += ',';
    first_ = false;
  }
  template <class T>
  void append(const T& v) {
    // Names come from model files: what is not UTF-8 is replaced, never refused.
    text_ += nlohmann::json(v).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
  std::string text_, closers_;
  bool first_ = true;
};

}  // namespace hotset
