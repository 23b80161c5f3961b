// Test support: the arenas of N ranks that are threads of one process.
//
// All of them share one set of mappings, so a thread sanitizer sees one address per shared byte and can judge every
// access. Tests that need a mapping per rank (as between processes) use separately_mapped_arenas.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "transport/shm/shm_arena.h"

namespace ringdp::transport {

inline UniqueFd duplicate(int fd) {
  UniqueFd copy(::dup(fd));
  EXPECT_TRUE(copy);
  return copy;
}

// Rank r's doorbell: a copy of bells[r], or a new one when no bells are given.
inline Doorbell local_bell(const std::vector<Doorbell*>& bells, int rank) {
  return bells.empty() ? Doorbell() : Doorbell(duplicate(bells[rank]->fd()));
}

inline std::vector<std::unique_ptr<ShmArena>> make_local_arenas(const SegmentLayout& layout,
                                                                std::vector<Doorbell*> bells = {}) {
  const int ranks = layout.members;
  auto members = std::make_shared<std::vector<LocalMember>>();
  for (int rank = 0; rank < ranks; ++rank) {
    members->push_back({Segment::create(layout), local_bell(bells, rank)});
  }
  std::vector<std::unique_ptr<ShmArena>> arenas;
  for (int rank = 0; rank < ranks; ++rank) arenas.push_back(ShmArena::create(rank, layout, members));
  return arenas;
}

inline std::vector<std::unique_ptr<ShmArena>> make_local_arenas(int ranks, int64_t slot_bytes, int64_t stream_bytes,
                                                                std::vector<Doorbell*> bells = {}) {
  return make_local_arenas({ranks, slot_bytes, stream_bytes}, std::move(bells));
}

// The same with one mapping of every segment per rank: what processes have.
inline std::vector<std::unique_ptr<ShmArena>> separately_mapped_arenas(const SegmentLayout& layout,
                                                                       std::vector<Doorbell*> bells) {
  std::vector<Segment> originals;
  for (int rank = 0; rank < layout.members; ++rank) originals.push_back(Segment::create(layout));
  std::vector<std::unique_ptr<ShmArena>> arenas;
  for (int rank = 0; rank < layout.members; ++rank) {
    std::vector<LocalMember> members;
    for (int member = 0; member < layout.members; ++member) {
      members.push_back({Segment::map(duplicate(originals[member].fd()), layout), local_bell(bells, member)});
    }
    arenas.push_back(ShmArena::create(rank, layout, std::move(members)));
  }
  return arenas;
}

}  // namespace ringdp::transport
