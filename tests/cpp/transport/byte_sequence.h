// Test support: the bytes that each end of a link sends, of which a reader knows what comes at which position.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace ringdp::transport {

// They come again after a prime number of bytes: no period that a power-of-two ring could hide. Read from a table, because
// arithmetic for every byte takes longer than its way through a link.
class ByteSequence {
 public:
  explicit ByteSequence(int end) : bytes_(kPeriod) {
    uint64_t state = static_cast<uint64_t>(end) * 0xD1B54A32D192ED03u;
    for (std::byte& byte : bytes_) byte = static_cast<std::byte>((state += 0x9E3779B97F4A7C15u) >> 56);
  }

  void write(uint64_t position, std::byte* to, size_t size) const {
    for_each_run(position, size, [&](size_t done, const std::byte* bytes, size_t n) {
      std::memcpy(to + done, bytes, n);
      return true;
    });
  }
  bool equals(uint64_t position, const std::byte* found, size_t size) const {
    bool equal = true;
    for_each_run(position, size, [&](size_t done, const std::byte* bytes, size_t n) {
      return equal = equal && std::memcmp(found + done, bytes, n) == 0;
    });
    return equal;
  }

  static const ByteSequence& of(int end) {
    static const ByteSequence sequences[] = {ByteSequence(0), ByteSequence(1)};
    return sequences[end];
  }

 private:
  static constexpr size_t kPeriod = 131'071;

  template <class Visit>
  void for_each_run(uint64_t position, size_t size, Visit visit) const {
    for (size_t done = 0; done < size;) {
      const size_t at = (position + done) % kPeriod, n = std::min(size - done, kPeriod - at);
      visit(done, bytes_.data() + at, n);
      done += n;
    }
  }

  std::vector<std::byte> bytes_;
};

}  // namespace ringdp::transport
