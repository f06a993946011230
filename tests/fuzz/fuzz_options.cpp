// SPDX-License-Identifier: Apache-2.0
// Sets options from bytes, one "key=value" a line: each is taken, or refused with one line of text, and reads back as it was set.
#include <string_view>

#include "../model/proto.h"
#include "replay.h"
#include "session/option_syntax.h"
#include "session/options.h"

using namespace hotset;

std::vector<std::string> fuzz::seeds() {
  std::string all;
  for (const OptionInfo& o : option_table()) all += std::string(o.key) + "=" + o.default_value + "\n";
  return {all,
          "intra_op_num_threads=4096\nhotset.fuse=false\nhotset.cpu_activation=int8\nhotset.device=cuda:0\nhotset.fusee=1\nep.cuda.x=y\n"};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n) {
  std::string_view rest(reinterpret_cast<const char*>(data), n);
  Options options;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size()), equals = std::min(rest.find('='), end);
    const std::string_view key = rest.substr(0, equals),
                           value = equals < end ? rest.substr(equals + 1, end - equals - 1) : std::string_view();
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const Status status = options.set(key, value);
    if (status.ok()) {
      const std::string* found = options.find(key);
      CHECK(found && (*found == value || syntax::equals(value, "true") || syntax::equals(value, "false")));
    } else {
      CHECK(!status.text().empty() && status.text().find('\n') == std::string::npos);
      CHECK(model::valid_text(status.text()));
    }
  }
  for (const OptionInfo& o : option_table()) {
    const std::string value = options.get(o.key);
    if (o.type == OptionType::integer)
      CHECK(std::to_string(options.get_int(o.key)) == value || options.get_int(o.key) == std::atoll(value.c_str()));
    if (o.type == OptionType::boolean) CHECK(options.get_bool(o.key) == (value == "1"));
    if (value.empty() && o.type != OptionType::text) continue;  // absent
    Options again;
    CHECK(again.set(o.key, value).ok());
  }
  for (const std::string& key : options.unknown_keys()) CHECK(options.find(key));
  return 0;
}
