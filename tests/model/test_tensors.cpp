// SPDX-License-Identifier: Apache-2.0
// Where the bytes of tensors lie: raw data, typed fields, data files beside the model; and what is refused.
#include <filesystem>
#include <fstream>
#include <random>

#include "proto.h"

using namespace hotset::model;
using namespace proto;
using hotset::Code;
using hotset::DType;
namespace fs = std::filesystem;

namespace {

Message around(const Message& t) { return model(graph({{"x"}, {"y"}, {node("Op", {"x", "w"}, {"y"})}, {t}})); }
const Constant& w(const Model& m) { return *m.graph.constant(m.graph.nodes[0].inputs[1]); }

void test_typed_fields() {
  const auto check = [](const Message& t, const std::string& bytes) {
    const auto m = read(around(t));
    CHECK(w(*m).file == -1 && w(*m).tensor.bytes() == bytes.size() && std::memcmp(w(*m).tensor.data, bytes.data(), bytes.size()) == 0);
  };
  const auto raw = [](auto... v) { return (Message().raw(v).bytes + ...); };
  const auto packed = [](auto... v) { return (Message().varint(static_cast<uint64_t>(v)).bytes + ...); };
  check(tensor("w", 1, {2}).add(4, raw(1.0f, -2.0f)), raw(1.0f, -2.0f));
  check(tensor("w", 1, {2}).fixed(4, 1.0f).fixed(4, 2.0f), raw(1.0f, 2.0f));                 // not packed
  check(tensor("w", 1, {3}).fixed(4, 1.0f).add(4, raw(2.0f, 3.0f)), raw(1.0f, 2.0f, 3.0f));  // both
  check(tensor("w", 14, {1}).add(4, raw(1.0f, 2.0f)), raw(1.0f, 2.0f));                      // complex64
  check(tensor("w", 15, {1}).add(10, raw(1.0, 2.0)), raw(1.0, 2.0));                         // complex128
  check(tensor("w", 11, {1, 2}).add(10, raw(1.0, 2.0)), raw(1.0, 2.0));
  check(tensor("w", 6, {2}).add(5, packed(int64_t{-1}, 70000)), raw(int32_t{-1}, int32_t{70000}));
  check(tensor("w", 7, {2}).add(7, packed(int64_t{-5}, 1)), raw(int64_t{-5}, int64_t{1}));
  check(tensor("w", 7, {2}).number(7, -5).number(7, 1), raw(int64_t{-5}, int64_t{1}));
  check(tensor("w", 13, {1}).add(11, packed(~0ull)), raw(int64_t{-1}));
  check(tensor("w", 12, {1}).add(11, packed(0xfffffffeu)), raw(uint32_t{0xfffffffe}));
  check(tensor("w", 10, {2}).add(5, packed(0x3c00, 0xfc00)), raw(uint16_t{0x3c00}, uint16_t{0xfc00}));  // float16
  check(tensor("w", 16, {1}).add(5, packed(0x3f80)), raw(uint16_t{0x3f80}));
  for (const int type : {2, 3, 9, 17, 18, 19, 20, 24})
    check(tensor("w", type, {3}).add(5, packed(1, 0, int64_t{-1})), std::string("\x01\x00\xff", 3));
  for (const int type : {21, 22, 23}) check(tensor("w", type, {3}).add(5, packed(0x21, 0x03)), "\x21\x03");  // two a byte
  check(tensor("w", 1, {}).fixed(4, 1.0f), raw(1.0f));
  check(tensor("w", 1, {0, 5}), "");
  CHECK(w(*read(around(tensor("w", 1, {0, 5})))).tensor.data && w(*read(around(tensor("w", 1, {0}).add(9, "")))).tensor.data);
}

void test_refusals() {
  EXPECT_FAILURE(try_read(around(tensor("w", 1, {3}).add(9, std::string(8, 0)))), invalid_model,
                 "tensor 'w': float[3] needs 12 bytes, the file holds 8");
  EXPECT_FAILURE(try_read(around(tensor("w", 1, {2}).add(9, std::string(9, 0)))), invalid_model,
                 "tensor 'w': float[2] needs 8 bytes, the file holds 9");
  EXPECT_FAILURE(try_read(around(tensor("w", 22, {3}).add(9, "a"))), invalid_model, "int4[3] needs 2 bytes, the file holds 1");
  EXPECT_FAILURE(try_read(around(tensor("w", 1, {2}).fixed(4, 1.0f))), invalid_model, "float[2] needs 2 entries, the file holds 1");
  EXPECT_FAILURE(try_read(around(tensor("w", 1, {2}))), invalid_model, "float[2] needs 2 entries, the file holds 0");
  EXPECT_FAILURE(try_read(around(tensor("w", 1, {1}).number(7, 1))), invalid_model,
                 "stores its elements in field 7 of TensorProto, expected 4");
  EXPECT_FAILURE(try_read(around(tensor("w", 1, {1}).add(4, "abc"))), invalid_model, "tensor 'w': malformed tensor message");
  EXPECT_FAILURE(try_read(around(tensor("w", 7, {1}).add(7, "\xff"))), invalid_model, "tensor 'w': malformed tensor message");
  EXPECT_FAILURE(try_read(around(tensor("w", 0, {1}))), invalid_model, "element type 0 is not defined by ONNX");
  EXPECT_FAILURE(try_read(around(tensor("w", 25, {1}).add(9, "a"))), unsupported, "tensor 'w': element type number 25 is not supported");
  EXPECT_FAILURE(try_read(around(tensor("w", 1, {2, -1}))), invalid_model, "dimensions [2,-1]: -1 is negative");
  EXPECT_FAILURE(try_read(around(tensor("w", 1, {int64_t{1} << 40, int64_t{1} << 40}))), invalid_model, "overflow");
  EXPECT_FAILURE(try_read(around(tensor("w", 1, {int64_t{1} << 50}))), invalid_model, "entries, the file holds 0");  // nothing is allocated
  EXPECT_FAILURE(try_read(around(tensor("w", 1, {1, 1, 1, 1, 1, 1, 1, 1, 1}).fixed(4, 1.0f))), unsupported, "rank 9, supported: up to 8");
  EXPECT_FAILURE(try_read(around(tensor("w", 8, {2}).add(6, "a"))), invalid_model, "need 2 strings, the file holds 1");
  EXPECT_FAILURE(try_read(around(external(tensor("w", 1, {1}), "w.bin"))), invalid_argument, "a model given as bytes has no folder");
}

void write(const fs::path& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  CHECK(file.good());
}

hotset::Result<std::unique_ptr<Model>> try_file(const fs::path& folder, const Message& m, bool map = true) {
  write(folder / "m.onnx", m.bytes);
  ReadOptions options;
  options.map_weights = map;
  return read_model((folder / "m.onnx").string(), options);
}

void test_files(const fs::path& folder) {
  std::string data(1000, 0);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7);
  write(folder / "a.data", data);
  fs::create_directories(folder / "sub");
  write(folder / "sub" / "b.data", data + data);

  // Two files, one of them twice under two spellings; odd offsets; a length left out, or 0.
  const Message m = model(graph(
      {{"x"},
       {"y"},
       {node("Op", {"x", "a", "b", "c", "d", "r"}, {"y"})},
       {external(tensor("a", 1, {3}), "a.data", "3", "12"), external(tensor("b", 2, {7}), "sub/b.data", "1990"),
        external(tensor("c", 7, {1}), "./a.data", "992", "0"), external(tensor("d", 10, {0}), "a.data", "1000"), floats("r", {1, 2})}}));
  {
    auto result = try_file(folder, m);
    CHECK(result.ok());
    const Model& read = *result.value();
    CHECK(read.files.size() == 3 && read.weights_mapped && read.model_mapped);
    const auto at = [&](int i) -> const Constant& { return *read.graph.constant(read.graph.nodes[0].inputs[static_cast<size_t>(i)]); };
    CHECK(at(1).file == 1 && at(1).offset == 3 && at(1).tensor.data == read.files[1]->data() + 3 &&
          !std::memcmp(at(1).tensor.data, data.data() + 3, 12));
    CHECK(at(2).file == 2 && at(2).offset == 1990 && !std::memcmp(at(2).tensor.data, data.data() + 990, 7));
    CHECK(at(3).file == 1 && at(3).tensor.data == read.files[1]->data() + 992 && at(4).tensor.data);
    CHECK(at(5).file == 0 && at(5).tensor.data == read.files[0]->data() + at(5).offset && read.owned.empty());  // inline data stay in place
    read.files[1]->drop_pages(0, 1000);
    read.files[1]->drop_pages(5000, ~uint64_t{0});
    CHECK(!std::memcmp(at(1).tensor.data, data.data() + 3, 12));
  }
  {
    auto result = try_file(folder, m, false);
    CHECK(result.ok() && !result.value()->weights_mapped && result.value()->graph.constants[0].tensor.data == nullptr);
    CHECK(result.value()->files[1]->bytes() == 1000 && !result.value()->files[1]->data());
    ReadOptions options;
    options.external_folder = folder.string();
    CHECK(read(m, options)->files.size() == 2);
  }

  const auto fails = [&](Code code, std::string_view text, const Message& t) {
    expect_failure(try_file(folder, around(t)), code, text, __FILE__, __LINE__);
  };
  const Message t = tensor("w", 1, {10});
  fails(Code::not_found, "tensor 'w': data file '" + (folder / "none.data").string() + "': No such file", external(t, "none.data"));
  fails(Code::not_found, "is not a file", external(t, "sub"));
  fails(Code::invalid_model, "needs bytes 970 to 1010 of data file '" + (folder / "a.data").string() + "', which has 1000",
        external(t, "a.data", "970"));
  fails(Code::invalid_model, "which has 1000", external(t, "a.data", "18446744073709551615"));
  fails(Code::invalid_model, "offset '18446744073709551616' is not a number", external(t, "a.data", "18446744073709551616"));
  fails(Code::invalid_model, "offset '-1' is not a number", external(t, "a.data", "-1"));
  fails(Code::invalid_model, "length '40 ' is not a number", external(t, "a.data", "0", "40 "));
  fails(Code::invalid_model, "float[10] needs 40 bytes, its external data have 36", external(t, "a.data", "0", "36"));
  fails(Code::invalid_model, "float[10] needs 40 bytes, its external data have 44", external(t, "a.data", "0", "44"));
  fails(Code::invalid_model, "external data without a location", Message(t).number(14, 1));
  for (const char* location : {"../a.data", "sub/../a.data", "/etc/passwd", "", "sub/.."}) {
    fails(Code::invalid_model, "is not inside the model's folder", external(t, location));
  }
  fails(Code::invalid_model, "is not UTF-8", external(t, "\xff"));
  EXPECT_FAILURE(read_model((folder / "absent.onnx").string(), {}), not_found, "absent.onnx': No such file");
  EXPECT_FAILURE(read_model(folder.string(), {}), not_found, "is not a file");
  write(folder / "empty.onnx", "");
  EXPECT_FAILURE(read_model((folder / "empty.onnx").string(), {}), invalid_model, "empty.onnx': not an ONNX model");
}

// A file with a hole: 4 GiB and more without using the disk.
void test_far_offsets(const fs::path& folder) {
  write(folder / "far.data", "");
  constexpr uint64_t far = (uint64_t{1} << 32) + 4094;
  std::error_code error;
  fs::resize_file(folder / "far.data", far, error);
  if (error) return;
  std::ofstream(folder / "far.data", std::ios::binary | std::ios::app) << "abcd";
  auto result = try_file(folder, around(external(tensor("w", 2, {4}), "far.data", std::to_string(far))));
  CHECK(result.ok() && w(*result.value()).offset == far && !std::memcmp(w(*result.value()).tensor.data, "abcd", 4));
  fs::remove(folder / "far.data");
}

#if !defined(_WIN32)
void test_links(const fs::path& folder) {
  const fs::path outside = folder / "outside", cache = folder / "cache", snapshot = folder / "snapshot";
  for (const fs::path& p : {outside, cache, snapshot}) fs::create_directories(p);
  write(outside / "secret", std::string(40, 's'));
  write(cache / "blob1", std::string(40, 'c'));
  fs::create_symlink(outside / "secret", snapshot / "secret.data");
  fs::create_symlink(outside, snapshot / "folder");
  fs::create_symlink("../cache/blob1", snapshot / "good.data");
  const auto at = [](const char* location) { return around(external(tensor("w", 1, {10}), location)); };
  EXPECT_FAILURE(try_file(snapshot, at("secret.data")), invalid_model, "is a link to");
  EXPECT_FAILURE(try_file(snapshot, at("folder/secret")), invalid_model, "outside the model's folder");
  EXPECT_FAILURE(try_file(snapshot, at("good.data")), invalid_model, "outside the model's folder");
  // A download cache: the model is a link too, and its data lie beside the real file.
  fs::remove(snapshot / "m.onnx");
  write(cache / "blob2", at("good.data").bytes);
  fs::create_symlink("../cache/blob2", snapshot / "m.onnx");
  auto result = read_model((snapshot / "m.onnx").string(), {});
  CHECK(result.ok() && w(*result.value()).tensor.as<char>()[39] == 'c');
}
#endif

}  // namespace

int main() {
  test_typed_fields();
  test_refusals();
  std::error_code error;
  const fs::path folder = fs::temp_directory_path() / ("hotset-test-\xc3\xa4-" + std::to_string(std::random_device()()));
  fs::create_directories(folder);
  test_files(folder);
  test_far_offsets(folder);
#if !defined(_WIN32)
  test_links(folder);
#endif
  fs::remove_all(folder, error);
  return 0;
}
