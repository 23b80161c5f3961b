// A 64-bit checksum of memory, the same on every instruction set.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ringdp::kernels {

// Never 0. Two memories of `size` bytes that differ within one aligned word of 8 bytes never have the same; others do
// with a chance of about 2^-64. Needs no alignment. Thread-safe.
uint64_t checksum(const void* bytes, size_t size);

// Of several checksums in order.
uint64_t combine(uint64_t so_far, uint64_t next);

}  // namespace ringdp::kernels
