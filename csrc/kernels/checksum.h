// 64-bit checksums of memory, the same on every instruction set.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ringdp::kernels {

// Never 0. Two buffers of `size` bytes that differ within one aligned word of 8 bytes never have equal checksums;
// others do with a probability of about 2^-64. Needs no alignment. Thread-safe.
uint64_t checksum(const void* bytes, size_t size);

// Combines checksums into one, which depends on their order: so_far = combine(so_far, next).
uint64_t combine(uint64_t so_far, uint64_t next);

// A checksum of `count` elements that ignores their order: that of a whole is the sum, modulo 2^64, of those of its
// parts. Two buffers that differ in one word (an element, or 4 bytes of a larger one) never have equal checksums.
// `element_bytes`: 1, 2 or a multiple of 4.
uint64_t unordered_checksum(const void* elements, int64_t count, int64_t element_bytes);

}  // namespace ringdp::kernels
