#include "transport/tcp/record.h"

#include <algorithm>
#include <cstring>

#include "base/crc32c.h"

namespace ringdp::transport {
namespace {

// Host byte order: all hosts of a group have the same.
struct Wire {
  uint32_t length, sum, header_sum;
};
static_assert(sizeof(Wire) == kRecordHeader);

uint32_t sum_of(const Wire& wire, uint64_t number) {
  const uint64_t what[] = {number, wire.length, wire.sum};
  return crc32c(0, what, sizeof what);
}

}  // namespace

size_t RecordWriter::offer(const void* bytes, size_t size) {
  if (left_ == 0) {
    left_ = std::min(size, kLargestRecord);
    Wire wire{static_cast<uint32_t>(left_), crc32c(0, bytes, left_), 0};
    wire.header_sum = sum_of(wire, number_++);
    std::memcpy(header_.data(), &wire, sizeof wire);
    header_left_ = kRecordHeader;
  }
  return std::min(size, left_);
}

size_t RecordWriter::sent(size_t count) {
  const size_t of_header = std::min(count, header_left_);
  header_left_ -= of_header;
  left_ -= count - of_header;
  return count - of_header;
}

bool RecordReader::open(const RecordHeader& header) {
  Wire wire;
  std::memcpy(&wire, header.data(), sizeof wire);
  if (wire.length == 0 || wire.length > kLargestRecord || wire.header_sum != sum_of(wire, number_)) return false;
  ++number_;
  damage_ = {wire.length, wire.sum, 0};
  left_ = wire.length;
  sum_ = 0;
  return true;
}

bool RecordReader::take(const void* bytes, size_t count) {
  sum_ = crc32c(sum_, bytes, count);
  left_ -= count;
  damage_.got = sum_;
  return left_ > 0 || sum_ == damage_.expected;
}

}  // namespace ringdp::transport
