// SPDX-License-Identifier: Apache-2.0
// C++20 host: greedy generation with caches bound once and updated in place; handles in unique_ptr, statuses as exceptions.
//
// usage: generate_cpp20 MODEL.onnx HEAD_SIZE WINDOW N_TOKENS ID...    prints N_TOKENS token ids
#include <hotset/hotset.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace {

template <auto Free>
struct Deleter {
  void operator()(auto* handle) const { Free(handle); }
};
using Options = std::unique_ptr<hotset_options, Deleter<hotset_options_free>>;
using Session = std::unique_ptr<hotset_session, Deleter<hotset_session_free>>;
using Binding = std::unique_ptr<hotset_binding, Deleter<hotset_binding_free>>;
using Sampler = std::unique_ptr<hotset_sampler, Deleter<hotset_sampler_free>>;

void check(hotset_status status) {
  if (status != HOTSET_OK) throw std::runtime_error(hotset_last_error());
}

// make<Session>(hotset_session_create, path, options): the `**out` argument comes first everywhere.
template <class Handle, class... Args>
Handle make(hotset_status (*create)(typename Handle::pointer*, Args...), std::type_identity_t<Args>... args) {
  typename Handle::pointer out = nullptr;
  check(create(&out, args...));
  return Handle(out);
}

hotset_tensor view(int32_t dtype, std::span<const int64_t> shape, void* data) {
  hotset_tensor t{};
  t.struct_size = sizeof t;
  t.dtype = dtype;
  t.device = HOTSET_CPU;
  t.rank = static_cast<int64_t>(shape.size());
  std::ranges::copy(shape, t.shape);
  t.data = data;
  t.bytes = hotset_tensor_bytes(dtype, t.shape, t.rank);
  return t;
}

class Decoder {
 public:
  Decoder(const char* path, int64_t head_size, int64_t window, int64_t max_length) : ones_(max_length, 1) {
    const auto options = make<Options>(hotset_options_create);
    check(hotset_options_set(options.get(), "intra_op_num_threads", "2"));
    session_ = make<Session>(hotset_session_create, path, options.get());
    binding_ = make<Binding>(hotset_binding_create, session_.get());
    for (size_t i = 0; i < hotset_session_input_count(session_.get()); ++i) bind_cache(i, head_size, window, max_length);
    check(hotset_binding_set_output(binding_.get(), "logits", nullptr));  // the binding allocates
  }

  // Logits after ids[from...]; the caches hold the ids before.
  hotset_tensor run(std::span<int64_t> ids, size_t from) {
    const int64_t length = static_cast<int64_t>(ids.size()), past = static_cast<int64_t>(from);
    const auto input = view(HOTSET_INT64, std::array{int64_t{1}, length - past}, ids.data() + from);
    const auto mask = view(HOTSET_INT64, std::array{int64_t{1}, length}, ones_.data());
    check(hotset_binding_set_input(binding_.get(), "input_ids", &input));
    check(hotset_binding_set_input(binding_.get(), "attention_mask", &mask));
    check(hotset_binding_run(binding_.get(), nullptr));
    hotset_tensor logits{};
    logits.struct_size = sizeof logits;
    check(hotset_binding_output(binding_.get(), "logits", &logits));
    return logits;
  }

 private:
  // One buffer is past and present of a layer's keys or values.
  void bind_cache(size_t input, int64_t head_size, int64_t window, int64_t max_length) {
    hotset_value_info info{};
    info.struct_size = sizeof info;
    check(hotset_session_input(session_.get(), input, &info));
    constexpr std::string_view past = "past_key_values.";
    const std::string_view name = info.name;
    if (!name.starts_with(past)) return;
    if (info.rank != 4) throw std::runtime_error("cache '" + std::string(name) + "' is not one this program knows");
    const bool sliding = info.dim_names[2] && std::string_view(info.dim_names[2]).find("sliding") != std::string_view::npos;
    const std::array shape{int64_t{1}, info.shape[1], sliding ? window : max_length, info.shape[3] > 0 ? info.shape[3] : head_size};
    auto& buffer = caches_.emplace_back(hotset_tensor_bytes(info.dtype, shape.data(), 4));
    const auto cache = view(info.dtype, shape, buffer.data());
    check(hotset_binding_set_input(binding_.get(), info.name, &cache));
    check(hotset_binding_set_output(binding_.get(), ("present." + std::string(name.substr(past.size()))).c_str(), &cache));
  }

  Session session_;
  std::vector<std::vector<std::byte>> caches_;
  std::vector<int64_t> ones_;
  Binding binding_;  // freed before what it points to
};

int generate(std::span<char*> arguments) {
  const int64_t head_size = std::stoll(arguments[2]), window = std::stoll(arguments[3]), n_new = std::stoll(arguments[4]);
  std::vector<int64_t> ids;
  for (char* id : arguments.subspan(5)) ids.push_back(std::stoll(id));

  Decoder decoder(arguments[1], head_size, window, static_cast<int64_t>(ids.size()) + n_new);
  hotset_sampler_config greedy{};
  greedy.struct_size = sizeof greedy;
  const auto sampler = make<Sampler>(hotset_sampler_create, &greedy);

  size_t done = 0;  // tokens in the caches
  for (int64_t i = 0; i < n_new; ++i) {
    const hotset_tensor logits = decoder.run(ids, done);
    done = ids.size();
    check(hotset_sampler_next(sampler.get(), &logits, &ids.emplace_back()));
    std::cout << ids.back() << '\n';
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6 || hotset_api_version() != HOTSET_API_VERSION) {
    std::cerr << "usage: " << argv[0] << " MODEL.onnx HEAD_SIZE WINDOW N_TOKENS ID...\n";
    return 2;
  }
  try {
    return generate({argv, static_cast<size_t>(argc)});
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
