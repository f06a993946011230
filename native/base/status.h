// SPDX-License-Identifier: Apache-2.0
// Failure as a value: a code a caller can act on and one line of text that says what was seen, expected, and where.
#pragma once
#include <cassert>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace hotset {

enum class Code : int {  // the numbers of hotset_status
  ok = 0,
  invalid_argument = 1,
  not_found = 2,
  invalid_model = 3,
  unsupported = 4,
  budget = 5,
  out_of_memory = 6,
  out_of_device_memory = 7,
  device = 8,
  cancelled = 9,
  invalid_state = 10,
  internal = 20,
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string text) : failure_(std::make_unique<Failure>(code, std::move(text))) {}
  bool ok() const { return !failure_; }
  Code code() const { return failure_ ? failure_->code : Code::ok; }
  const std::string& text() const {
    static const std::string none;
    return failure_ ? failure_->text : none;
  }
  // The same failure with `prefix` (where it happened) before its text.
  Status at(const std::string& prefix) && {
    if (failure_) failure_->text = prefix + ": " + failure_->text;
    return std::move(*this);
  }

 private:
  struct Failure {
    Failure(Code c, std::string t) : code(c), text(std::move(t)) {}
    Code code;
    std::string text;
  };
  std::unique_ptr<Failure> failure_;  // null: success, so that returning it costs one register
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) { assert(!status_.ok()); }
  bool ok() const { return status_.ok(); }
  Status take_status() { return std::move(status_); }
  T& value() { return *value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

// printf-style construction of a failure.
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
Status fail(Code code, const char* format, ...);

#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
std::string format_text(const char* format, ...);

#define HOTSET_TRY(expr)                                                              \
  do {                                                                                \
    if (::hotset::Status try_status_ = (expr); !try_status_.ok()) return try_status_; \
  } while (0)

#define HOTSET_FAIL_IF(cond, code, ...)                                 \
  do {                                                                  \
    if (cond) return ::hotset::fail(::hotset::Code::code, __VA_ARGS__); \
  } while (0)

#define HOTSET_CONCAT_(a, b) a##b
#define HOTSET_CONCAT(a, b) HOTSET_CONCAT_(a, b)
// HOTSET_ASSIGN(auto x, function_returning_Result());
#define HOTSET_ASSIGN(lhs, expr) HOTSET_ASSIGN_(HOTSET_CONCAT(result_, __LINE__), lhs, expr)
#define HOTSET_ASSIGN_(name, lhs, expr)      \
  auto name = (expr);                        \
  if (!name.ok()) return name.take_status(); \
  lhs = std::move(name.value())

}  // namespace hotset
