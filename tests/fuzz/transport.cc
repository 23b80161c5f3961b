// What comes through a transport: the first bytes on a socket, checked TCP streams, byte rings in shared memory.
#include <memory>

#include "base/crc32c.h"
#include "target.h"
#include "transport/hello.h"
#include "transport/shm/shm_link.h"
#include "transport/tcp/record.h"

namespace ringdp::fuzz {

// The first bytes on every socket (csrc/transport/hello.h).
namespace {

using transport::Hello;
using transport::HelloFrame;

Hello any_hello(Input& input) {
  Hello hello;
  hello.purpose = static_cast<transport::Purpose>(input.up_to(5));
  hello.stream = input.number<uint32_t>();
  hello.group = input.number<uint64_t>();
  hello.generation = input.number<uint64_t>();
  hello.from = input.number<int32_t>();
  hello.to = input.number<int32_t>();
  hello.world = input.number<int32_t>();
  for (std::byte& byte : hello.token) byte = input.number<std::byte>();
  return hello;
}

bool is_possible(const Hello& hello) {
  const auto is_rank = [&](int rank) { return rank >= 0 && rank < hello.world; };
  const int purpose = static_cast<int>(hello.purpose);
  return purpose >= 1 && purpose <= 3 && is_rank(hello.from) && is_rank(hello.to) && hello.from != hello.to;
}

}  // namespace

FUZZ_TARGET(hello) {
  Input fields = input;
  const std::string raw = input.rest();
  if (const auto hello = transport::decode(reinterpret_cast<const std::byte*>(raw.data()), raw.size())) {
    const HelloFrame frame = transport::encode(*hello);
    require(std::memcmp(frame.data(), raw.data(), frame.size()) == 0, "a hello is what encode() writes");
  }
  const Hello hello = any_hello(fields);
  HelloFrame frame = transport::encode(hello);
  const auto copy = transport::decode(frame.data(), frame.size());
  require(copy.has_value() == is_possible(hello), "a hello of two ranks of its world is read, another is not");
  require(!copy || transport::matches(*copy, hello), "a hello survives the wire");
  require(!copy || transport::matches(transport::reply_to(transport::reply_to(hello)), hello), "a reply's reply");
  frame[fields.number<uint8_t>() % frame.size()] ^= static_cast<std::byte>(1 << fields.up_to(7));
  require(!transport::decode(frame.data(), frame.size()), "one changed bit is seen");
}

// A checked TCP stream (csrc/transport/tcp/record.h).
namespace {

using transport::kRecordHeader;
using transport::RecordHeader;
using transport::RecordReader;
using transport::RecordWriter;

// The payload of a stream, as far as it is whole; `damaged` when a record is not.
std::string read(const std::string& stream, size_t piece, bool* damaged) {
  RecordReader reader;
  std::string payload;
  *damaged = false;
  for (size_t at = 0; at < stream.size();) {
    if (reader.left() == 0) {
      RecordHeader header;
      if (stream.size() - at < header.size()) break;
      std::memcpy(header.data(), stream.data() + at, header.size());
      at += header.size();
      if (!reader.open(header)) {
        *damaged = true;
        break;
      }
      require(reader.left() > 0 && reader.left() <= transport::kLargestRecord, "a record is no longer than any may be");
    }
    const size_t count = std::min({piece, reader.left(), stream.size() - at});
    payload.append(stream, at, count);
    const bool whole = count == 0 || reader.take(stream.data() + at, count);
    at += count;
    if (!whole) {
      *damaged = true;
      break;
    }
  }
  return payload;
}

// The stream of a payload that is offered in pieces.
std::string written(const std::string& payload, size_t piece) {
  RecordWriter writer;
  std::string stream;
  for (size_t at = 0; at < payload.size();) {
    const size_t count = writer.offer(payload.data() + at, std::min(piece, payload.size() - at));
    stream.append(reinterpret_cast<const char*>(writer.header()), writer.header_left());
    stream.append(payload, at, count);
    at += writer.sent(writer.header_left() + count);
  }
  return stream;
}

}  // namespace

FUZZ_TARGET(record) {
  const size_t piece = 1 + input.number<uint8_t>(), flipped = input.number<uint16_t>();
  const std::string text = input.rest();
  bool damaged = false;
  read(text, piece, &damaged);

  // One record, with a header that is as it should be.
  if (text.size() > kRecordHeader) {
    std::string record = text;
    const uint32_t length = static_cast<uint32_t>(text.size() - kRecordHeader);
    const uint64_t first[] = {0, length, crc32c(0, text.data() + kRecordHeader, length)};
    const uint32_t header[] = {length, static_cast<uint32_t>(first[2]), crc32c(0, first, sizeof first)};
    std::memcpy(record.data(), header, sizeof header);
    require(read(record, piece, &damaged) == text.substr(kRecordHeader) && !damaged, "a record is read");
  }

  std::string stream = written(text, piece);
  require(read(stream, 7, &damaged) == text && !damaged, "what is written is read");
  if (stream.empty()) return;
  stream[flipped % stream.size()] ^= static_cast<char>(1 << flipped % 8);
  read(stream, piece, &damaged);
  require(damaged, "one changed bit is seen");
}

// A byte ring in shared memory whose other side writes what it likes into the indices (csrc/transport/shm/shm_link.h).
FUZZ_TARGET(stream) {
  constexpr size_t kCapacity = 64;
  struct Memory {
    transport::StreamHeader header{};
    std::byte ring[kCapacity] = {};
  };
  const auto memory = std::make_unique<Memory>();  // just as large: one byte beyond is seen
  auto* const at = reinterpret_cast<std::byte*>(memory.get());
  transport::StreamWriter writer(at, kCapacity);
  transport::StreamReader reader(at, kCapacity);
  refuses({ErrorKind::kInternal}, [&] {
    while (input.left() > 0) {
      const int what = input.up_to(5);
      std::string bytes(static_cast<size_t>(input.up_to(100)), 'x');
      if (what == 0) memory->header.head.store(input.number<uint64_t>());
      if (what == 1) memory->header.tail.store(input.number<uint64_t>());
      const size_t moved = what % 2 ? writer.push(bytes.data(), bytes.size()) : reader.pop(bytes.data(), bytes.size());
      require(moved <= std::min(bytes.size(), kCapacity), "no more moves than fits");
    }
  });
}

}  // namespace ringdp::fuzz
