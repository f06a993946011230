// SPDX-License-Identifier: Apache-2.0
// Parsers of option values. None depends on the locale.
#include "session/option_syntax.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

namespace hotset::syntax {
namespace {

constexpr std::string_view kSpace = " \t\n\v\f\r";

std::string_view trimmed(std::string_view s) {
  const size_t first = s.find_first_not_of(kSpace);
  return first == std::string_view::npos ? std::string_view() : s.substr(first, s.find_last_not_of(kSpace) - first + 1);
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// A number whose digits are all 0 before its exponent; others that round to 0 have underflowed.
bool is_zero(std::string_view number) {
  const bool hex = number.size() > 1 && lower(number[1]) == 'x';
  const std::string_view digits = number.substr(hex ? 2 : 0, number.find_first_of(hex ? "pP" : "eE") - (hex ? 2 : 0));
  return digits.find_first_not_of("0.") == std::string_view::npos;
}

enum class Range { inside, overflow, underflow };

// A whole unsigned number, decimal or hexadecimal ("0x").
std::optional<float> parse_real(std::string_view number, Range* range) {
  *range = Range::inside;
  const bool hex = number.size() > 1 && number[0] == '0' && lower(number[1]) == 'x';
  const std::string_view digits = number.substr(hex ? 2 : 0);
  if (digits.empty() || !(digits[0] == '.' || std::isalnum(static_cast<unsigned char>(digits[0])))) return std::nullopt;
  double value = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value, hex ? std::chars_format::hex : std::chars_format::general);
  if (error == std::errc::invalid_argument || stop != end || std::isnan(value)) return std::nullopt;
  if (std::isinf(value) && error == std::errc()) return std::nullopt;  // the word, not a number
  const float narrow = static_cast<float>(value);
  if (error == std::errc::result_out_of_range) {  // of a double: which end the exponent's sign tells
    const size_t exponent = digits.find_first_of(hex ? "pP" : "eE");
    const bool small = exponent != std::string_view::npos && exponent + 1 < digits.size() && digits[exponent + 1] == '-';
    *range = small ? Range::underflow : Range::overflow;
    return 0.0f;
  }
  if (std::isinf(narrow)) *range = Range::overflow;
  if (narrow == 0 && !is_zero(number)) *range = Range::underflow;
  return narrow;
}

bool parse_field(std::string_view field, NodeOverride* out) {
  const size_t equal = field.find('=');
  if (equal == std::string_view::npos) return false;
  const std::string_view name = trimmed(field.substr(0, equal)), value = trimmed(field.substr(equal + 1));
  if (name == "max_resident_slots") return (out->max_resident_slots = parse_int32(value)).has_value();
  if (name == "device_expert_bytes") return (out->device_expert_bytes = parse_bytes(value)).has_value();
  return false;
}

// Calls f for each part between separators until it returns false.
template <class F>
bool each_part(std::string_view text, char separator, F&& f) {
  for (size_t from = 0; from <= text.size();) {
    const size_t to = std::min(text.find(separator, from), text.size());
    if (!f(trimmed(text.substr(from, to - from)))) return false;
    from = to + 1;
  }
  return true;
}

}  // namespace

bool equals(std::string_view value, std::string_view word) {
  return std::equal(value.begin(), value.end(), word.begin(), word.end(), [](char a, char b) { return lower(a) == b; });
}

bool is_auto(std::string_view value) { return equals(value, "auto"); }

std::optional<uint64_t> parse_bytes(std::string_view value) {
  uint64_t bytes = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), bytes);
  if (value.empty() || value[0] == '-' || error != std::errc() || end != value.data() + value.size()) return std::nullopt;
  return bytes;
}

std::optional<int32_t> parse_int32(std::string_view value) {
  int32_t n = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), n);
  if (error != std::errc() || end != value.data() + value.size() || n < 0) return std::nullopt;
  return n;
}

std::optional<float> parse_unit_real(std::string_view value) {
  value = trimmed(value);
  bool negative = false;
  if (!value.empty() && (value[0] == '+' || value[0] == '-')) {
    negative = value[0] == '-';
    value.remove_prefix(1);
  }
  Range range;
  const std::optional<float> number = parse_real(value, &range);
  if (!number || range == Range::overflow) return std::nullopt;
  const float x = range == Range::underflow ? 0.0f : negative ? -*number : *number;
  if (!(x >= 0 && x <= 1)) return std::nullopt;
  return x;
}

std::optional<float> parse_strict_real(std::string_view value) {
  bool negative = false;
  if (!value.empty() && value[0] == '-') {
    negative = true;
    value.remove_prefix(1);
  }
  if (value.find_first_of("xX") != std::string_view::npos) return std::nullopt;
  Range range;
  const std::optional<float> number = parse_real(value, &range);
  if (!number || range != Range::inside || (negative && *number != 0)) return std::nullopt;
  return number;
}

std::optional<std::vector<NodeOverride>> parse_node_overrides(std::string_view value) {
  std::vector<NodeOverride> all;
  const bool ok = each_part(value, ';', [&](std::string_view entry) {
    if (entry.empty()) return true;
    const size_t colon = entry.find(':');
    if (colon == std::string_view::npos) return false;
    NodeOverride node;
    node.node = trimmed(entry.substr(0, colon));
    bool first = true;
    const bool fields = each_part(entry.substr(colon + 1), ',', [&](std::string_view field) {
      const bool skip = field.empty() && !first;
      first = false;
      return skip || parse_field(field, &node);
    });
    all.push_back(std::move(node));
    return fields && !all.back().node.empty();
  });
  if (!ok) return std::nullopt;
  return all;
}

bool is_bytes(std::string_view value) { return parse_bytes(value).has_value(); }
bool is_bytes_or_auto(std::string_view value) { return is_auto(value) || is_bytes(value); }
bool is_positive_bytes(std::string_view value) { return parse_bytes(value).value_or(0) > 0; }
bool is_int32(std::string_view value) { return parse_int32(value).has_value(); }
bool is_positive_int32(std::string_view value) { return parse_int32(value).value_or(0) > 0; }
bool is_digit_flag(std::string_view value) { return value == "0" || value == "1"; }
bool is_word_flag(std::string_view value) { return is_digit_flag(value) || equals(value, "true") || equals(value, "false"); }
bool is_unit_real(std::string_view value) { return parse_unit_real(value).has_value(); }
bool is_strict_real(std::string_view value) { return parse_strict_real(value).has_value(); }
bool is_strict_double(std::string_view value) {
  double number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  return error == std::errc() && end == value.data() + value.size() && std::isfinite(number) && number >= 0;
}
bool is_node_overrides(std::string_view value) { return parse_node_overrides(value).has_value(); }

bool is_offload_mode(std::string_view value) {
  for (std::string_view word : {"disabled", "off", "0", "auto", "required", "on", "1"})
    if (equals(value, word)) return true;
  return false;
}

bool is_cpu_execution(std::string_view value) {
  for (std::string_view word : {"auto", "enabled", "1", "disabled", "0"})
    if (equals(value, word)) return true;
  return false;
}

bool is_placement(std::string_view value) { return equals(value, "adaptive") || equals(value, "static"); }
bool is_device(std::string_view value) {
  if (value == "cpu" || value == "cuda") return true;
  if (!value.starts_with("cuda:")) return false;
  const std::string_view digits = value.substr(5);
  return digits.size() <= 4 && parse_int32(digits).has_value() && digits.find_first_not_of("0123456789") == std::string_view::npos;
}

}  // namespace hotset::syntax
