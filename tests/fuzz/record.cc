// A checked TCP stream (csrc/transport/tcp/record.h).
#include "transport/tcp/record.h"

#include "base/crc32c.h"
#include "target.h"

namespace ringdp::fuzz {
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

}  // namespace ringdp::fuzz
