// A byte ring in shared memory whose other side writes what it likes into the indices (csrc/transport/shm/spsc_stream.h).
#include "transport/shm/spsc_stream.h"

#include <memory>

#include "target.h"

namespace ringdp::fuzz {

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
      require(moved <= std::min(bytes.size(), kCapacity), "no more moves than there is room for");
    }
  });
}

}  // namespace ringdp::fuzz
