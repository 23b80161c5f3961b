// 64-bit checksums of memory, the same on every instruction set.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ringdp::kernels {

// Never 0. Two memories of `size` bytes that differ within one aligned word of 8 bytes never have the same; others do
// with a chance of about 2^-64. Needs no alignment. Thread-safe.
uint64_t checksum(const void* bytes, size_t size);

// One checksum of several, which depends on their order.
uint64_t combine(uint64_t so_far, uint64_t next);

// A checksum of `count` elements that ignores their order: that of a whole is the sum, modulo 2^64, of its parts'. Two
// memories that differ in one word (an element, or 4 bytes of a larger one) never have the same. `element_bytes`: 1, 2
// or a multiple of 4.
uint64_t unordered_checksum(const void* elements, int64_t count, int64_t element_bytes);

}  // namespace ringdp::kernels
