// The start of every segment: arrivals, headers and flags of one member, initially zero.
//
// Every field has one writer, the segment's owner, except `generation` in member 0's block, which the member that
// completes a barrier raises. All counters only grow. The fields of the sleep protocol (publish, then read `asleep`;
// set `asleep`, then look again) are accessed with seq_cst and without fences, so that thread sanitizers understand
// them.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "transport/arena.h"
#include "transport/doorbell.h"

namespace ringdp::transport {

// Two 64-byte lines: x86 prefetches them in pairs, and some ARM cores have 128-byte lines.
constexpr size_t kLinePairBytes = 128;

struct ControlBlock {
  alignas(kLinePairBytes) std::atomic<uint64_t> arrivals;     // barriers the owner has arrived at
  std::atomic<int32_t> core_after;                            // 1 + the core its driver was on
  alignas(kLinePairBytes) std::atomic<uint32_t> asleep;       // 1: the owner sleeps or is about to; ring its doorbell
  alignas(kLinePairBytes) std::atomic<uint64_t> last_header;  // highest header the owner has posted
  // Not 0: the owner touches no peer's tensors, and does not pass this barrier.
  alignas(kLinePairBytes) std::atomic<uint64_t> retired;
  alignas(kLinePairBytes) Header headers[2];                 // header seq lies at seq % 2
  alignas(kLinePairBytes) std::atomic<uint64_t> generation;  // member 0 only: barriers that have passed
};

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free,
              "atomics shared between processes must be address-free");
static_assert(std::is_trivially_destructible<ControlBlock>::value, "blocks vanish with their mapping");

// One page, so that the slots after it are page-aligned.
constexpr int64_t kControlBytes = 4096;
static_assert(sizeof(ControlBlock) <= kControlBytes, "the control block must fit its page");

// Called after a seq_cst store: wakes the owner of `block` if it may have missed that store.
inline void ring_if_asleep(const ControlBlock& block, const Doorbell& bell) {
  if (block.asleep.load(std::memory_order_seq_cst) != 0) bell.ring();
}

}  // namespace ringdp::transport
