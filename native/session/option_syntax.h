// SPDX-License-Identifier: Apache-2.0
// Value types of option keys that come from onnxruntime's expert offload: what is accepted and what is refused there.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hotset::syntax {

// ASCII case ignored.
bool equals(std::string_view value, std::string_view word);
bool is_auto(std::string_view value);

// Decimal digits up to 2^64 - 1; no sign, space or unit.
std::optional<uint64_t> parse_bytes(std::string_view value);
// Digits up to 2^31 - 1; "-0" is 0.
std::optional<int32_t> parse_int32(std::string_view value);
// As the C library reads a float32 from 0 to 1: surrounding space, '+' and hexadecimal allowed, underflow is 0.
std::optional<float> parse_unit_real(std::string_view value);
// A finite float32 of at least 0: digits, point and exponent only; overflow and underflow to 0 are refused.
std::optional<float> parse_strict_real(std::string_view value);

// Bounds of one node:  name:field=value,field=value;name:...
struct NodeOverride {
  std::string node;
  std::optional<int32_t> max_resident_slots;
  std::optional<uint64_t> device_expert_bytes;
};
std::optional<std::vector<NodeOverride>> parse_node_overrides(std::string_view value);

// Checks for the option table.
bool is_bytes(std::string_view value);
bool is_bytes_or_auto(std::string_view value);
bool is_positive_bytes(std::string_view value);
bool is_int32(std::string_view value);
bool is_positive_int32(std::string_view value);
bool is_digit_flag(std::string_view value);  // 0 or 1 only
bool is_word_flag(std::string_view value);   // also true and false in any case
bool is_unit_real(std::string_view value);
bool is_strict_real(std::string_view value);
bool is_strict_double(std::string_view value);  // the same, as a float64 reads it
bool is_node_overrides(std::string_view value);
bool is_offload_mode(std::string_view value);
bool is_cpu_execution(std::string_view value);
bool is_placement(std::string_view value);
bool is_device(std::string_view value);  // cpu, cuda (the first one) or cuda:N

}  // namespace hotset::syntax
