// CRC-32C (Castagnoli, reflected polynomial 0x82f63b78; RFC 3720, appendix B.4), by the processor's instructions where
// it has them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ringdp {

// Of bytes that follow others whose sum is `before` (0: there are none). Any change within 32 neighbouring bits changes
// it; others go unnoticed with a chance of 2^-32. Needs no alignment; thread-safe.
uint32_t crc32c(uint32_t before, const void* bytes, size_t size);

// All the ways of this machine, the one in use first; each is a crc32c().
struct Crc32cMethod {
  const char* name;  // "avx512", "sse4.2", "armv8" or "table"
  uint32_t (*sum)(uint32_t before, const void* bytes, size_t size);
};
const std::vector<Crc32cMethod>& crc32c_methods();

}  // namespace ringdp
