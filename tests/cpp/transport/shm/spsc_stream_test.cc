#include "transport/shm/spsc_stream.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "long_tests.h"

namespace ringdp::transport {
namespace {

// A stream in private memory of exactly its size, so that address sanitizers see any access outside it.
class Memory {
 public:
  explicit Memory(size_t capacity)
      : bytes_(kStreamHeaderBytes + capacity, static_cast<std::align_val_t>(kLinePairBytes)) {}
  std::byte* at() { return bytes_.at; }
  StreamHeader& header() { return *reinterpret_cast<StreamHeader*>(bytes_.at); }

 private:
  struct Aligned {
    Aligned(size_t size, std::align_val_t alignment)
        : at(static_cast<std::byte*>(::operator new(size, alignment))), alignment(alignment) {
      std::memset(at, 0, size);
    }
    ~Aligned() { ::operator delete(at, alignment); }
    Aligned(const Aligned&) = delete;
    std::byte* at;
    std::align_val_t alignment;
  };
  Aligned bytes_;
};

TEST(SpscStream, KeepsOrderAcrossEveryWrapPosition) {
  constexpr size_t kCapacity = 16;
  for (size_t size = 1; size <= kCapacity; ++size) {
    Memory memory(kCapacity);
    StreamWriter writer(memory.at(), kCapacity);
    StreamReader reader(memory.at(), kCapacity);
    std::vector<uint8_t> out(size), in(size);
    for (uint8_t round = 0; round < 40; ++round) {
      std::iota(out.begin(), out.end(), static_cast<uint8_t>(round * size));
      ASSERT_EQ(writer.push(out.data(), size), size);
      ASSERT_EQ(reader.pop(in.data(), size), size);
      ASSERT_EQ(in, out) << "size " << size << ", round " << int{round};
    }
  }
}

TEST(SpscStream, TakesWhatFitsAndGivesWhatIsThere) {
  constexpr size_t kCapacity = 8;
  Memory memory(kCapacity);
  StreamWriter writer(memory.at(), kCapacity);
  StreamReader reader(memory.at(), kCapacity);
  const char out[] = "abcdefghijkl";
  char in[16] = {};
  EXPECT_EQ(reader.pop(in, 1), 0u);
  EXPECT_EQ(writer.push(out, 12), kCapacity);
  EXPECT_EQ(writer.push(out, 1), 0u);
  EXPECT_EQ(reader.pop(in, 3), 3u);
  EXPECT_EQ(writer.push(out + kCapacity, 4), 3u);
  EXPECT_EQ(reader.pop(in + 3, 13), kCapacity);
  EXPECT_STREQ(in, "abcdefghijk");
}

TEST(SpscStream, AReaderRefusesATailThatClaimsMoreThanTheCapacity) {
  constexpr size_t kCapacity = 64;
  for (const uint64_t tail : {uint64_t{65}, uint64_t{1} << 40, UINT64_MAX}) {
    Memory memory(kCapacity);
    StreamReader reader(memory.at(), kCapacity);
    memory.header().tail = tail;
    char in[128] = {};
    try {
      reader.pop(in, sizeof in);
      FAIL() << "accepted tail " << tail;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInternal);
      EXPECT_NE(std::string(error.what()).find(std::to_string(tail)), std::string::npos) << error.what();
    }
    EXPECT_EQ(memory.header().head, 0u);
  }
}

TEST(SpscStream, AWriterRefusesAHeadBeyondItsTailOrBehindItsRing) {
  constexpr size_t kCapacity = 64;
  const std::vector<char> out(kCapacity);
  for (const uint64_t head : {uint64_t{kCapacity + 1}, UINT64_MAX}) {
    Memory memory(kCapacity);
    StreamWriter writer(memory.at(), kCapacity);
    ASSERT_EQ(writer.push(out.data(), kCapacity), kCapacity);
    memory.header().head = head;
    EXPECT_THROW(writer.push(out.data(), 1), Error) << head;
    EXPECT_EQ(memory.header().tail, kCapacity);
  }
}

TEST(SpscStream, TwoThreadsSeeOneSequence) {
  constexpr size_t kCapacity = 256;
  const uint32_t kTotal = long_tests() ? 200'000 : 20'000;
  Memory memory(kCapacity);
  std::thread sender([&] {
    StreamWriter writer(memory.at(), kCapacity);
    for (uint32_t value = 0; value < kTotal; ++value) {
      for (size_t done = 0; done < sizeof value;) {
        const size_t n = writer.push(reinterpret_cast<const char*>(&value) + done, sizeof value - done);
        if (n == 0) std::this_thread::yield();
        done += n;
      }
    }
  });
  StreamReader reader(memory.at(), kCapacity);
  uint32_t wrong = 0;
  for (uint32_t expected = 0; expected < kTotal; ++expected) {
    uint32_t value = 0;
    for (size_t done = 0; done < sizeof value;) {
      const size_t n = reader.pop(reinterpret_cast<char*>(&value) + done, sizeof value - done);
      if (n == 0) std::this_thread::yield();
      done += n;
    }
    wrong += value != expected;
  }
  sender.join();
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace ringdp::transport
