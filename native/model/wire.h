// SPDX-License-Identifier: Apache-2.0
// Protobuf wire format: walks the fields of one message. Nothing is copied and nothing outside the message is read.
//
//     WireReader r(message);
//     while (r.next()) {
//       if (r.field() == 1) name = r.text();
//     }
//     if (!r.ok()) ...  // malformed, or a field of another wire type than was asked for; r.position() is near
#pragma once
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace hotset::model {

using Bytes = std::span<const uint8_t>;

class WireReader {
 public:
  explicit WireReader(Bytes message) : at_(message.data()), end_(message.data() + message.size()) {}

  // Moves to the next field; false at the end and when the message is malformed.
  bool next() {
    uint64_t tag;
    if (at_ == end_ || !ok_) return false;
    if (!varint(&tag) || tag >> 32 || tag < 8) return stop();
    field_ = static_cast<uint32_t>(tag >> 3);
    type_ = static_cast<uint32_t>(tag & 7);
    switch (type_) {
      case kVarint:
        return varint(&number_) || stop();
      case kFixed64:
        return fixed(8);
      case kFixed32:
        return fixed(4);
      case kBytes: {
        uint64_t n;
        if (!varint(&n) || n > static_cast<uint64_t>(end_ - at_)) return stop();
        bytes_ = Bytes(at_, static_cast<size_t>(n));
        at_ += n;
        return true;
      }
      default:
        return stop();  // groups (3, 4) were never part of ONNX
    }
  }

  bool ok() const { return ok_; }
  const uint8_t* position() const { return at_; }
  uint32_t field() const { return field_; }

  // The value of the current field. Another wire type makes ok() false.
  int64_t integer() { return expect(kVarint) ? static_cast<int64_t>(number_) : 0; }
  float f32() {
    float value = 0;
    if (expect(kFixed32)) std::memcpy(&value, bytes_.data(), sizeof value);
    return value;
  }
  Bytes bytes() { return expect(kBytes) ? bytes_ : Bytes(); }
  std::string_view text() {
    const Bytes b = bytes();
    return {reinterpret_cast<const char*>(b.data()), b.size()};
  }

  // Elements of a repeated scalar field, packed or one by one.
  template <class F>
  void each_integer(F&& f) {
    if (type_ == kVarint) return f(static_cast<int64_t>(number_));
    if (!expect(kBytes)) return;
    WireReader packed(bytes_);
    for (uint64_t v; packed.at_ != packed.end_;) {
      if (!packed.varint(&v)) {
        stop();
        return;
      }
      f(static_cast<int64_t>(v));
    }
  }
  template <class T, class F>
  void each_fixed(F&& f) {
    constexpr uint32_t single = sizeof(T) == 4 ? kFixed32 : kFixed64;
    if (type_ != single && (!expect(kBytes) || bytes_.size() % sizeof(T))) {
      stop();
      return;
    }
    for (size_t i = 0; i < bytes_.size(); i += sizeof(T)) {
      T value;
      std::memcpy(&value, bytes_.data() + i, sizeof value);
      f(value);
    }
  }

 private:
  static constexpr uint32_t kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;

  bool stop() {
    ok_ = false;
    return false;
  }
  bool expect(uint32_t type) {
    if (type_ != type) ok_ = false;
    return ok_;
  }
  bool fixed(size_t n) {
    if (static_cast<size_t>(end_ - at_) < n) return stop();
    bytes_ = Bytes(at_, n);
    at_ += n;
    return true;
  }
  bool varint(uint64_t* out) {
    uint64_t value = 0;
    for (int shift = 0; shift < 70 && at_ != end_; shift += 7) {
      const uint8_t b = *at_++;
      value |= static_cast<uint64_t>(b & 0x7f) << shift;  // the tenth byte gives its lowest bit, as protobuf does
      if (b < 0x80) {
        *out = value;
        return true;
      }
    }
    return false;
  }

  const uint8_t* at_;
  const uint8_t* end_;
  Bytes bytes_;
  uint64_t number_ = 0;
  uint32_t field_ = 0, type_ = 0;
  bool ok_ = true;
};

}  // namespace hotset::model
