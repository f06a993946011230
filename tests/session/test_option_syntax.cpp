// SPDX-License-Identifier: Apache-2.0
// Value types of the offload keys: border values, and what looks right but is refused.
#include "session/option_syntax.h"

#include <cstdio>
#include <cstdlib>
#include <initializer_list>

using namespace hotset::syntax;

namespace {

int failures = 0;

void expect(bool ok, const char* type, std::string_view value) {
  if (ok) return;
  ++failures;
  std::printf("FAILED: %s '%.*s'\n", type, static_cast<int>(value.size()), value.data());
}

using Check = bool (*)(std::string_view);
void accepts(const char* type, Check check, std::initializer_list<std::string_view> values) {
  for (std::string_view v : values) expect(check(v), type, v);
}
void refuses(const char* type, Check check, std::initializer_list<std::string_view> values) {
  for (std::string_view v : values) expect(!check(v), type, v);
}

void numbers() {
  accepts("bytes", is_bytes, {"0", "007", "18446744073709551615"});
  refuses("bytes", is_bytes,
          {"", "-0", "-1", "+1", " 1", "1 ", "1_000", "0x10", "1e3", "1KiB", "18446744073709551616", "auto", std::string_view("1\0", 2)});
  accepts("bytes or auto", is_bytes_or_auto, {"auto", "AUTO", "Auto", "0", "18446744073709551615"});
  refuses("bytes or auto", is_bytes_or_auto, {"", "automatic", " auto"});
  accepts("positive bytes", is_positive_bytes, {"1", "18446744073709551615"});
  refuses("positive bytes", is_positive_bytes, {"", "0", "auto", "000"});
  accepts("int32", is_int32, {"0", "-0", "0012", "2147483647"});
  refuses("int32", is_int32, {"", "-1", "+1", " 1", "2147483648", "99999999999999999999", "1.0"});
  accepts("positive int32", is_positive_int32, {"1", "2147483647"});
  refuses("positive int32", is_positive_int32, {"0", "-0", "2147483648"});
}

void reals() {
  accepts("unit real", is_unit_real,
          {"0", "1", "0.5", ".5", "1.", "+0.25", " 0.5\n", "1e-3", "0x1p-2", "0X.8", "1e-400", "-0", "1e-46", "0e999999"});
  refuses("unit real", is_unit_real,
          {"", " ", "1.1", "-0.1", "nan", "NaN", "inf", "infinity", "1e400", "half", "0.5 0.5", "++1", "+-0", "0x", "e5", "."});
  expect(parse_unit_real("1e-46") == 0.0f, "unit real", "1e-46 is 0");
  expect(parse_unit_real("0x1p-2") == 0.25f, "unit real", "0x1p-2 is 0.25");

  accepts("strict real", is_strict_real, {"0", "-0", "6", ".5", "5.", "1e-40", "3.4e38", "1E2", "0.0e-99999"});
  refuses("strict real", is_strict_real,
          {"", " 1", "1 ", "+1", "0x1", "-1", "nan", "inf", "3.5e38", "1e-46", "1e-400", "1e400", "-1e-40", "."});
  expect(parse_strict_real("1e-40").value_or(0) > 0, "strict real", "1e-40 is subnormal");
}

void words() {
  accepts("mode", is_offload_mode, {"disabled", "OFF", "0", "Auto", "required", "on", "1"});
  refuses("mode", is_offload_mode, {"", "true", "enabled", "2", "auto ", "prototype"});
  accepts("cpu_execution", is_cpu_execution, {"auto", "ENABLED", "1", "disabled", "0"});
  refuses("cpu_execution", is_cpu_execution, {"", "on", "required"});
  accepts("placement", is_placement, {"adaptive", "Static"});
  refuses("placement", is_placement, {"", "basic", "layered", "0"});
  accepts("word flag", is_word_flag, {"0", "1", "TRUE", "false"});
  refuses("word flag", is_word_flag, {"", "yes", "2", "on"});
  accepts("digit flag", is_digit_flag, {"0", "1"});
  refuses("digit flag", is_digit_flag, {"", "true", "01"});
}

void overrides() {
  accepts("node_overrides", is_node_overrides,
          {"", ";", " ; ;", "a:max_resident_slots=3", "a:max_resident_slots=3,",
           "a: max_resident_slots = 0 ,, device_expert_bytes = 007 ; b:device_expert_bytes=1", "a b=c,d:max_resident_slots=1",
           "a:max_resident_slots=1;a:max_resident_slots=2\n"});
  refuses("node_overrides", is_node_overrides,
          {"a", "a:", "a:,max_resident_slots=1", ":max_resident_slots=1", "a:slots=1", "a:Max_resident_slots=1", "a:max_resident_slots",
           "a:max_resident_slots=", "a:max_resident_slots=-1", "a:device_expert_bytes=auto", "a:device_expert_bytes=1KiB",
           "a:b:max_resident_slots=1"});
  const auto parsed = parse_node_overrides("blk3_moe:max_resident_slots=16;blk7:max_resident_slots=8,device_expert_bytes=268435456");
  expect(parsed && parsed->size() == 2 && (*parsed)[0].node == "blk3_moe" && (*parsed)[0].max_resident_slots == 16 &&
             !(*parsed)[0].device_expert_bytes && (*parsed)[1].device_expert_bytes == 268435456u,
         "node_overrides", "two nodes");
}

}  // namespace

int main() {
  numbers();
  reals();
  words();
  overrides();
  if (failures) return EXIT_FAILURE;
  std::printf("ok\n");
  return EXIT_SUCCESS;
}
