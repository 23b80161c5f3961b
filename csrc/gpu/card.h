// What a rank tells the others of its host of its device: who it is, and how to map its memory there.
//
// Plain bytes of one size, which travel through a collective of the host.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "gpu/library.h"
#include "gpu/told.h"

namespace ringdp::gpu {

struct Card {
  uint32_t build = 0;        // of this struct and of what it leads to; equal where ranks can work together
  int32_t usable = 0;        // 0: why_not says why this rank shares nothing
  int32_t multiprocessors = 0, waits_on_streams = 0;
  uint64_t pid = 0;
  unsigned char uuid[16] = {};
  rd_gpu_handle memory = {};  // the arena, or one segment
  int64_t bytes = 0;          // of the segment, as asked for
  int64_t page = 0;           // of the shared page in this rank's heap, in bytes
  char socket[48] = {};       // where descriptors are handed out, when memory.needs_fd
  char why_not[200] = {};
};

// Without memory yet. Error(kInternal) when the device cannot be described.
Card card_of(const Functions& functions, int device);
// Of a rank that cannot share.
Card card_without(const std::string& why_not);

// Error(kMismatch) names the rank that was built from other sources.
std::vector<Card> cards_from(const std::vector<std::string>& bytes);

// "rank 2: why it shares nothing" of the first such rank; "" when all share.
std::string why_not(const std::vector<Card>& cards);

}  // namespace ringdp::gpu
