// CRC-32C (Castagnoli, reflected polynomial 0x82f63b78; RFC 3720, appendix B.4), by the processor's instructions where
// it has them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ringdp {

// The checksum of bytes that follow others whose checksum is `before` (0: there are none). It detects any change within
// 32 neighbouring bits, and misses others with a probability of 2^-32. Needs no alignment; thread-safe.
uint32_t crc32c(uint32_t before, const void* bytes, size_t size);

// All implementations that this machine can run, the one in use first.
struct Crc32cMethod {
  const char* name;  // "avx512", "sse4.2", "armv8" or "table"
  uint32_t (*sum)(uint32_t before, const void* bytes, size_t size);
};
const std::vector<Crc32cMethod>& crc32c_methods();

}  // namespace ringdp
