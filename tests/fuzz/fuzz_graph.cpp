// SPDX-License-Identifier: Apache-2.0
// Runs graphs made of bytes: whatever they say, a session refuses them with one line of text or runs them, twice alike.
//
// The first byte chooses: 'm', the rest is a model file; otherwise the rest describes one node (see Reader) whose attributes and
// inputs may be anything. tests/fuzz/make_corpus.py writes a valid call of every operator in this form.
#include <new>
#include <set>

#if !defined(_WIN32)
#include <sys/resource.h>
#endif

#include "../model/proto.h"
#include "ops/op.h"
#include "replay.h"
#include "session/session.h"

using namespace hotset;
using proto::Message;

namespace hotset::ops {
extern const OpList* const kOpLists[];
extern const size_t kOpListCount;
}  // namespace hotset::ops

namespace {

// A machine with little memory: requests above this fail.
constexpr size_t kMaxAllocation = size_t{32} << 20;
constexpr int64_t kMaxElements = 1 << 14;  // of an input

void* allocate(size_t bytes, size_t alignment) {
  void* p = nullptr;
  if (bytes <= kMaxAllocation) {
    alignment = std::max(alignment, sizeof(void*));
    p = std::aligned_alloc(alignment, (bytes + alignment - 1) & ~(alignment - 1));
  }
  if (!p) throw std::bad_alloc();
  return p;
}

__attribute__((noinline)) void release(void* p) { std::free(p); }  // inlined, gcc takes the pair for a mistake

}  // namespace

void* operator new(size_t n) { return allocate(std::max<size_t>(n, 1), 16); }
void* operator new[](size_t n) { return allocate(std::max<size_t>(n, 1), 16); }
void* operator new(size_t n, std::align_val_t a) { return allocate(std::max<size_t>(n, 1), static_cast<size_t>(a)); }
void* operator new[](size_t n, std::align_val_t a) { return allocate(std::max<size_t>(n, 1), static_cast<size_t>(a)); }
void operator delete(void* p) noexcept { release(p); }
void operator delete[](void* p) noexcept { release(p); }
void operator delete(void* p, size_t) noexcept { release(p); }
void operator delete[](void* p, size_t) noexcept { release(p); }
void operator delete(void* p, std::align_val_t) noexcept { release(p); }
void operator delete[](void* p, std::align_val_t) noexcept { release(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { release(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { release(p); }

extern "C" const char* __asan_default_options() {
  return "alloc_dealloc_mismatch=0:allocator_may_return_null=1:max_allocation_size_mb=32:detect_leaks=1";
}

namespace {

constexpr int64_t kHostile[] = {
    INT64_MIN,        INT64_MIN + 1,    INT64_MAX,           INT64_MAX - 1, INT32_MIN, INT32_MAX, int64_t{1} << 32,
    int64_t{1} << 53, int64_t{1} << 62, -(int64_t{1} << 40), 1000,          65536,     1 << 20,   -1000};
const float kHostileFloats[] = {0.0f,
                                -0.0f,
                                std::numeric_limits<float>::quiet_NaN(),
                                std::numeric_limits<float>::infinity(),
                                -std::numeric_limits<float>::infinity(),
                                3e38f,
                                -1.0f,
                                1e-45f};

// A node, byte by byte. Reading past the end gives zeros.
//
//   text: length, bytes
//   number: 0..223 is that minus 16; 224..247 one of kHostile; from 248 on eight bytes follow
//   node: text "domain::Type" | opset | flags (1: as the file has it, no fusion; 2: exact activations) | outputs, mask of unnamed ones
//         | count, attributes: name, kind % 6, value | count, inputs
//   kind: 0 number, 1 float (0..7 of kHostileFloats, else four bytes follow), 2 text, 3 list of numbers, 4 tensor, 5 list of floats
//   input: flags (1: absent, 2: constant, 4: shape declared) tensor
//   tensor: type, rank, dimensions (0..239 as they are, above: huge if the tensor stays empty), fill (0 zeros, 1 ones, 2 counting up,
//           3: length and bytes, repeated, 4: all bits set, 5: alternating)
struct Reader {
  const uint8_t* at;
  const uint8_t* end;

  uint8_t byte() { return at < end ? *at++ : 0; }
  std::string text() {
    const size_t wanted = byte(), n = std::min(wanted, static_cast<size_t>(end - at));
    std::string s(reinterpret_cast<const char*>(at), n);
    at += n;
    return s;
  }
  template <class T>
  T raw() {
    uint8_t b[sizeof(T)];
    for (uint8_t& x : b) x = byte();
    T value;
    std::memcpy(&value, b, sizeof value);
    return value;
  }
  int64_t number() {
    const uint8_t b = byte();
    if (b < 224) return b - 16;
    return b < 248 ? kHostile[(b - 224) % std::size(kHostile)] : raw<int64_t>();
  }
  float real() {
    const uint8_t b = byte();
    return b < std::size(kHostileFloats) ? kHostileFloats[b] : raw<float>();
  }
};

struct Content {
  int dtype = 1;
  std::vector<int64_t> dims;
  std::string bytes;
};

template <class T>
void put(std::string& to, T v) {
  to.append(reinterpret_cast<const char*>(&v), sizeof v);
}

// Element i of a pattern in a type, numbers small enough to be indices and sizes.
void put_number(std::string& to, DType type, int64_t v) {
  switch (type) {
    case DType::f32:
      return put(to, static_cast<float>(v));
    case DType::f64:
      return put(to, static_cast<double>(v));
    case DType::f16:
      return put(to, f32_to_f16(static_cast<float>(v)));
    case DType::bf16:
      return put(to, f32_to_bf16(static_cast<float>(v)));
    case DType::boolean:
      return put(to, static_cast<uint8_t>(v & 1));
    default: {
      const int bytes = dtype_bits(type) / 8;
      to.append(reinterpret_cast<const char*>(&v), static_cast<size_t>(std::clamp(bytes, 1, 8)));
      if (bytes == 16) put(to, int64_t{0});
    }
  }
}

void fill(Content* c, int how, Reader* r) {
  int64_t n = 0;
  size_t bytes = 0;
  const DType type = static_cast<DType>(c->dtype);
  std::string pattern;
  if (how == 3) {
    for (int left = r->byte(); left > 0; --left) pattern += static_cast<char>(r->byte());
  }
  if (!checked_size(c->dims, &n) || !dense_bytes(type, n, &bytes)) return;
  c->bytes.reserve(bytes + 16);
  if (pattern.empty()) pattern.assign(1, static_cast<char>(0xff));
  for (int64_t i = 0; c->bytes.size() < bytes; ++i) {
    if (how == 3)
      c->bytes += pattern;
    else if (how == 4)
      c->bytes += static_cast<char>(0xff);
    else
      put_number(c->bytes, type, how == 0 ? 0 : how == 1 ? 1 : how == 2 ? i : i & 1);
  }
  c->bytes.resize(bytes);
}

Content read_content(Reader* r) {
  Content c;
  c.dtype = r->byte() % 25;
  int64_t n = 1;
  bool empty = false;
  for (int rank = r->byte() % 10; rank > 0; --rank) {
    const uint8_t b = r->byte();
    int64_t d = b;
    if (b >= 240) d = empty ? int64_t{1} << (b - 240) * 4 : 1;
    empty |= d == 0;
    if (!empty && n * d > kMaxElements) d = 1;
    n *= empty ? 1 : d;
    c.dims.push_back(d);
  }
  fill(&c, r->byte() % 6, r);
  return c;
}

Message tensor_message(const std::string& name, const Content& c) { return proto::tensor(name, c.dtype, c.dims).add(9, c.bytes); }

Message attribute_message(Reader* r) {
  Message m;
  m.add(1, r->text());
  switch (r->byte() % 6) {
    case 0:
      return m.number(3, r->number()).number(20, 2);
    case 1:
      return m.fixed(2, r->real()).number(20, 1);
    case 2:
      return m.add(4, r->text()).number(20, 3);
    case 3:
      for (int n = r->byte() % 80; n > 0; --n) m.number(8, r->number());
      return m.number(20, 7);
    case 4:
      return m.add(5, tensor_message("", read_content(r))).number(20, 4);
    default:
      for (int n = r->byte() % 80; n > 0; --n) m.fixed(7, r->real());
      return m.number(20, 6);
  }
}

const ops::OpEntry& choose_operator(const std::string& name) {
  std::vector<const ops::OpEntry*> all;
  for (size_t l = 0; l < ops::kOpListCount; ++l) {
    for (const ops::OpEntry& e : std::span(ops::kOpLists[l]->entries, ops::kOpLists[l]->count)) {
      if (std::string(e.domain) + "::" + std::string(e.op_type) == name) return e;
      all.push_back(&e);
    }
  }
  uint32_t hash = 0;
  for (const char c : name) hash = hash * 31 + static_cast<uint8_t>(c);
  return *all[hash % all.size()];
}

struct Case {
  std::string model;
  bool fuse = true, exact = false;
  std::map<std::string, Content> feeds;
  uint8_t size = 1;  // of symbolic dimensions of a model file's inputs
};

Case read_node(Reader r) {
  Case c;
  const ops::OpEntry& op = choose_operator(r.text());
  const int opset = 1 + r.byte() % 28, flags = r.byte();
  c.fuse = !(flags & 1);
  c.exact = flags & 2;
  const int n_outputs = 1 + r.byte() % 8, unnamed = r.byte();
  std::vector<Message> attributes;
  for (int n = r.byte() % 32; n > 0; --n) attributes.push_back(attribute_message(&r));
  Message graph, node;
  proto::Names inputs, outputs, named;
  for (int i = 0, n = r.byte() % 24; i < n; ++i) {
    const int how = r.byte();
    Content content = read_content(&r);
    const std::string name = how & 1 ? "" : "x" + std::to_string(i);
    inputs.push_back(name);
    if (how & 1) continue;
    if (how & 2) {
      graph.add(5, tensor_message(name, content));
    } else {
      Message type;
      type.number(1, content.dtype);
      if (how & 4) {
        Message shape;
        for (const int64_t d : content.dims) shape.add(1, Message().number(1, d));
        type.add(2, shape);
      }
      graph.add(11, Message().add(1, name).add(2, Message().add(1, type)));
      c.feeds[name] = std::move(content);
    }
  }
  for (int o = 0; o < n_outputs; ++o) {
    outputs.push_back(unnamed >> o & 1 ? "" : "y" + std::to_string(o));
    if (!outputs.back().empty()) named.push_back(outputs.back());
  }
  node = proto::with(proto::node(op.op_type, inputs, outputs, op.domain, "node"), attributes);
  graph.add(1, node).add(2, "g");
  for (const std::string& o : named) graph.add(12, Message().add(1, o));
  Message model;
  model.number(1, 10)
      .add(7, graph)
      .add(8, proto::opset("", opset))
      .add(8, proto::opset("com.microsoft", 1))
      .add(8, proto::opset("hotset", 1));
  c.model = model.bytes;
  return c;
}

void check_text(const Status& status) {
  const std::string& text = status.text();
  if (!text.empty() && model::valid_text(text) && text.find('\n') == std::string::npos && status.code() != Code::internal) return;
  std::printf("not a message: %s\n", text.c_str());
  CHECK(false);
}

// The outputs' bytes, or nothing when the run failed. With `buffers` results go there, over bytes that hold `before`.
bool run(Session& session, const Case& c, std::vector<std::string>* results, int before) {
  auto acquired = session.acquire();
  if (!acquired.ok()) return check_text(acquired.take_status()), false;
  std::unique_ptr<RunState> state = std::move(acquired.value());
  const model::Graph& graph = session.graph();
  std::vector<std::unique_ptr<char[]>> memory;
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const model::Value& v = graph.values[static_cast<size_t>(graph.inputs[i])];
    Content content;
    if (const auto fed = c.feeds.find(v.name); fed != c.feeds.end()) {
      content = fed->second;
    } else {
      content.dtype = static_cast<int>(v.dtype);
      int64_t n = 1;
      for (const model::Dim& d : v.shape) content.dims.push_back(d.value >= 0 ? d.value : c.size);
      if (content.dims.size() > static_cast<size_t>(kMaxRank) || !checked_size(content.dims, &n) || n > kMaxElements) return false;
      fill(&content, 0, nullptr);
    }
    size_t bytes = 0;
    if (content.dims.size() > static_cast<size_t>(kMaxRank)) return false;
    Tensor t{nullptr, static_cast<DType>(content.dtype), Shape(std::span<const int64_t>(content.dims))};
    int64_t n = 0;
    if (!checked_size(content.dims, &n) || !dense_bytes(t.dtype, n, &bytes)) return false;  // what the C functions refuse
    memory.emplace_back(new char[std::max<size_t>(bytes, 1)]);
    if (bytes) std::memcpy(memory.back().get(), content.bytes.data(), bytes);
    t.data = memory.back().get();
    state->inputs[i] = t;
    state->has_input[i] = 1;
  }
  for (size_t o = 0; o < state->outputs.size(); ++o) {
    OutputSlot& slot = state->outputs[o];
    slot.requested = true;
    if (results->empty()) continue;
    const std::string& size_of = (*results)[o];
    memory.emplace_back(new char[std::max<size_t>(size_of.size(), 1)]);
    std::memset(memory.back().get(), before, size_of.size());
    slot.data = memory.back().get();
    slot.bytes = size_of.size();
  }
  const Status status = session.run(*state, nullptr);
  if (!status.ok()) {
    check_text(status);
  } else {
    results->clear();
    std::vector<std::unique_ptr<void, decltype(&std::free)>> owned;
    owned.reserve(state->outputs.size());
    for (OutputSlot& slot : state->outputs)
      if (!slot.data) owned.emplace_back(slot.owned, &std::free);
    for (OutputSlot& slot : state->outputs) results->emplace_back(static_cast<const char*>(slot.result.data), slot.result.bytes());
  }
  session.release(std::move(state));
  return status.ok();
}

void run_case(const Case& c) {
  Options options;
  CHECK(options.set("intra_op_num_threads", "1").ok() && options.set("hotset.fuse", c.fuse ? "1" : "0").ok());
  CHECK(options.set("hotset.cpu_activation", c.exact ? "float" : "auto").ok());
  if (!fuzz::folder.empty()) CHECK(options.set("session.model_external_initializers_file_folder_path", fuzz::folder).ok());
  auto created = Session::create_from_memory(c.model.data(), c.model.size(), options, {});
  if (!created.ok()) return check_text(created.take_status());
  std::vector<std::string> first;
  if (!run(*created.value(), c, &first, 0)) return;
  // The same again into the caller's buffers: every byte is written, whatever was there.
  std::vector<std::string> second = first, third = first;
  CHECK(run(*created.value(), c, &second, 0x55) && run(*created.value(), c, &third, 0xaa));
  CHECK(first == second && second == third);
}

using Bytes = std::string;
Bytes text(std::string_view s) { return Bytes(1, static_cast<char>(s.size())) + Bytes(s); }

}  // namespace

std::vector<std::string> fuzz::seeds() {
  const auto node = [](std::string_view op, const Bytes& attributes, const Bytes& inputs) {
    return Bytes("n") + text(op) + Bytes("\x14\0\0\0", 4) + attributes + inputs;
  };
  const Bytes none(1, '\0'), x("\0\1\2\3\4\2", 6);  // float [3,4], counting up
  return {node("::Add", none, Bytes("\2") + x + x), node("::Softmax", Bytes("\1") + text("axis") + Bytes("\0\x0f", 2), Bytes("\1") + x),
          node("com.microsoft::QuickGelu", none, Bytes("\1") + x)};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n) {
#if !defined(_WIN32) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(HOTSET_LIBFUZZER)
  static const bool limited = [] {
    const rlimit limit{rlim_t{4} << 30, rlim_t{4} << 30};
    return setrlimit(RLIMIT_AS, &limit) == 0;
  }();
  (void)limited;
#endif
  if (n == 0) return 0;
  try {
    if (data[0] == 'm') {
      Case c;
      c.size = n > 1 ? data[1] % 8 : 1;
      if (n > 2) c.model.assign(reinterpret_cast<const char*>(data) + 2, n - 2);
      run_case(c);
    } else {
      run_case(read_node(Reader{data + 1, data + n}));
    }
  } catch (const std::bad_alloc&) {  // the C functions turn it into a status
  }
  return 0;
}
