// SPDX-License-Identifier: Apache-2.0
// Reads one TensorProto: where its bytes lie, or its typed fields decoded.
#include "model/tensor_proto.h"

#include <charconv>
#include <cinttypes>
#include <new>

namespace hotset::model {
namespace {
static_assert(std::endian::native == std::endian::little, "raw data is little-endian and used in place");

// Field numbers of the typed data fields.
enum TypedField : uint32_t { kFloats = 4, kInt32s = 5, kStrings = 6, kInt64s = 7, kDoubles = 10, kUint64s = 11 };

TypedField typed_field(DType type) {
  switch (type) {
    case DType::f32:
    case DType::complex64:
      return kFloats;
    case DType::i64:
      return kInt64s;
    case DType::f64:
    case DType::complex128:
      return kDoubles;
    case DType::u32:
    case DType::u64:
      return kUint64s;
    case DType::string:
      return kStrings;
    default:
      return kInt32s;
  }
}

// Bytes of the tensor that one entry of its typed field fills.
size_t entry_bytes(DType type) {
  const int bits = dtype_bits(type);
  return type == DType::complex64 ? 4 : type == DType::complex128 ? 8 : bits < 8 ? 1 : static_cast<size_t>(bits) / 8;
}

template <class T>
bool parse_decimal(std::string_view text, T* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

// "[2,3]" of dims that may be too many for a Shape.
std::string dims_text(const std::vector<int64_t>& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size() && i < 16; ++i) text += (i ? "," : "") + std::to_string(dims[i]);
  return text + (dims.size() > 16 ? ",...]" : "]");
}

alignas(64) uint8_t no_bytes[64];  // what tensors without elements point at: null means "not mapped"
}  // namespace

struct TensorReader::Fields {
  std::vector<int64_t> dims;
  int64_t data_type = 0;
  std::string_view name;
  bool has_raw = false, external = false, has_location = false, segmented = false;
  Bytes raw;
  uint64_t n_strings = 0;
  uint64_t n_typed[12] = {};  // entries by field number
  std::string_view location, offset, length;
};

uint8_t* TensorReader::own(size_t bytes) {
  model_.owned.push_back(std::make_unique<uint8_t[]>(bytes ? bytes : 1));
  owned_bytes_ += bytes;
  model_.owned_bytes += bytes;
  return model_.owned.back().get();
}

Status TensorReader::read_fields(Bytes message, Fields* out) {
  WireReader r(message);
  while (r.next()) {
    switch (r.field()) {
      case 1:
        r.each_integer([&](int64_t d) { out->dims.push_back(d); });
        break;
      case 2:
        out->data_type = r.integer();
        break;
      case 3:
        out->segmented = true;
        break;
      case kFloats:
        r.each_fixed<float>([&](float) { ++out->n_typed[kFloats]; });
        break;
      case kInt32s:
      case kInt64s:
      case kUint64s:
        r.each_integer([&](int64_t) { ++out->n_typed[r.field()]; });
        break;
      case kDoubles:
        r.each_fixed<double>([&](double) { ++out->n_typed[kDoubles]; });
        break;
      case kStrings:
        ++out->n_typed[kStrings];
        break;
      case 8:
        out->name = r.text();
        break;
      case 9:
        out->raw = r.bytes();
        out->has_raw = true;
        break;
      case 13: {
        WireReader entry(r.bytes());
        std::string_view key, value;
        while (entry.next()) {
          if (entry.field() == 1) key = entry.text();
          if (entry.field() == 2) value = entry.text();
        }
        HOTSET_FAIL_IF(!entry.ok(), invalid_model, "malformed external data entry");
        if (key == "location") out->location = value, out->has_location = true;
        if (key == "offset") out->offset = value;
        if (key == "length") out->length = value;
        break;
      }
      case 14:
        out->external = r.integer() == 1;
        break;
      default:
        break;
    }
  }
  HOTSET_FAIL_IF(!r.ok(), invalid_model, "malformed tensor message");
  return {};
}

Status TensorReader::read(Bytes message, std::string_view* name, Constant* out) {
  Fields fields;
  const Status status = read_fields(message, &fields);
  *name = fields.name;
  if (!status.ok()) return Status(status.code(), status.text());

  const DType type = static_cast<DType>(fields.data_type);
  HOTSET_FAIL_IF(fields.data_type <= 0 || fields.data_type > 1000, invalid_model, "element type %" PRId64 " is not defined by ONNX",
                 fields.data_type);
  HOTSET_FAIL_IF(dtype_bits(type) == 0 && type != DType::string, unsupported, "element type number %" PRId64 " is not supported",
                 fields.data_type);
  HOTSET_FAIL_IF(fields.segmented, unsupported, "segmented tensors are not supported");
  for (const int64_t d : fields.dims) {
    HOTSET_FAIL_IF(d < 0, invalid_model, "dimensions %s: %" PRId64 " is negative", dims_text(fields.dims).c_str(), d);
  }
  HOTSET_FAIL_IF(fields.dims.size() > static_cast<size_t>(kMaxRank), unsupported, "rank %zu, supported: up to %d", fields.dims.size(),
                 kMaxRank);
  int64_t n_elements = 0;
  size_t bytes = 0;
  HOTSET_FAIL_IF(!checked_size(fields.dims, &n_elements) || (type != DType::string && !dense_bytes(type, n_elements, &bytes)),
                 invalid_model, "dimensions %s of %s overflow", dims_text(fields.dims).c_str(), dtype_name(type));

  out->tensor.dtype = type;
  out->tensor.shape = Shape(std::span<const int64_t>(fields.dims));
  if (type == DType::string) {
    HOTSET_FAIL_IF(fields.n_typed[kStrings] != static_cast<uint64_t>(n_elements), invalid_model,
                   "dimensions %s need %" PRId64 " strings, the file holds %" PRIu64, dims_text(fields.dims).c_str(), n_elements,
                   fields.n_typed[kStrings]);
    return {};
  }
  if (fields.external) return place_external(fields, bytes, out);
  if (!fields.has_raw) return decode(message, fields, bytes, out);

  HOTSET_FAIL_IF(fields.raw.size() != bytes, invalid_model, "%s%s needs %zu bytes, the file holds %zu", dtype_name(type),
                 dims_text(fields.dims).c_str(), bytes, fields.raw.size());
  out->tensor.data = const_cast<uint8_t*>(bytes ? fields.raw.data() : no_bytes);
  if (bytes && model_.model_mapped) {
    out->file = 0;
    out->offset = static_cast<uint64_t>(fields.raw.data() - model_.files[0]->data());
  }
  return {};
}

Status TensorReader::decode(Bytes message, const Fields& fields, size_t bytes, Constant* out) {
  const DType type = out->tensor.dtype;
  const TypedField wanted = typed_field(type);
  const size_t step = entry_bytes(type);
  for (uint32_t field = 0; field < std::size(fields.n_typed); ++field) {
    HOTSET_FAIL_IF(field != wanted && fields.n_typed[field], invalid_model,
                   "%s%s stores its elements in field %u of TensorProto, expected %u", dtype_name(type), dims_text(fields.dims).c_str(),
                   field, static_cast<uint32_t>(wanted));
  }
  HOTSET_FAIL_IF(fields.n_typed[wanted] != bytes / step, invalid_model, "%s%s needs %zu entries, the file holds %" PRIu64, dtype_name(type),
                 dims_text(fields.dims).c_str(), bytes / step, fields.n_typed[wanted]);
  uint8_t* to = own(bytes);
  out->tensor.data = to;
  WireReader r(message);
  while (r.next()) {
    if (r.field() != wanted) continue;
    const auto put = [&](const auto value) {  // the low bytes: 16-bit floats and smaller types are stored as integers
      std::memcpy(to, &value, step);
      to += step;
    };
    if (wanted == kFloats) {
      r.each_fixed<float>(put);
    } else if (wanted == kDoubles) {
      r.each_fixed<double>(put);
    } else {
      r.each_integer(put);
    }
  }
  return {};
}

Status TensorReader::place_external(const Fields& fields, size_t bytes, Constant* out) {
  HOTSET_FAIL_IF(!fields.has_location, invalid_model, "external data without a location");
  uint64_t offset = 0, length = 0;
  HOTSET_FAIL_IF(!fields.offset.empty() && !parse_decimal(fields.offset, &offset), invalid_model, "external data offset %s is not a number",
                 quote(fields.offset).c_str());
  HOTSET_FAIL_IF(!fields.length.empty() && !parse_decimal(fields.length, &length), invalid_model, "external data length %s is not a number",
                 quote(fields.length).c_str());
  // A length of 0 is how some writers leave it out: the data then reach to the end of the file.
  HOTSET_FAIL_IF(length != 0 && length != bytes, invalid_model, "%s%s needs %zu bytes, its external data have %" PRIu64,
                 dtype_name(out->tensor.dtype), dims_text(fields.dims).c_str(), bytes, length);
  HOTSET_ASSIGN(out->file, external_.open(fields.location));
  const MappedFile& file = *model_.files[static_cast<size_t>(out->file)];
  HOTSET_FAIL_IF(offset > file.bytes() || bytes > file.bytes() - offset, invalid_model,
                 "needs bytes %" PRIu64 " to %" PRIu64 " of data file %s, which has %" PRIu64, offset, offset + bytes,
                 quote(file.path()).c_str(), file.bytes());
  out->offset = offset;
  if (bytes == 0) {
    out->tensor.data = no_bytes;
  } else if (file.data()) {
    out->tensor.data = const_cast<uint8_t*>(file.data() + offset);
  }
  return {};
}

}  // namespace hotset::model
