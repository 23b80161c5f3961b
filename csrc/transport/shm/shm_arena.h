// The arena of the ranks of one host, and shared-memory links between them, over a segment and a heap per rank.
#pragma once
#include <memory>
#include <vector>

#include "transport/arena.h"
#include "transport/doorbell.h"
#include "transport/link.h"
#include "transport/shm/own_heap.h"
#include "transport/shm/segment.h"

namespace ringdp::transport {

// One local rank's memory, as this process maps it, and the doorbell of its process.
struct LocalMember {
  Segment segment;
  Doorbell doorbell;
  std::shared_ptr<const Segment> heap = nullptr;  // null: there is none
};

// Memory and doorbells stay alive until the arena and every link made from it are gone.
class ShmArena : public Arena {
 public:
  // `heap`: this rank's. Error(kInvalidArgument) when index, layout, members and heap do not fit together.
  static std::unique_ptr<ShmArena> create(int index, const SegmentLayout& layout, std::vector<LocalMember> members,
                                          OwnHeap heap = {});
  // The same over mappings that several ranks of one process share.
  static std::unique_ptr<ShmArena> create(int index, const SegmentLayout& layout,
                                          std::shared_ptr<const std::vector<LocalMember>> members, OwnHeap heap = {});

  // The link to another member: this segment's stream to it, and its segment's stream to this one. At most one per
  // member and kind of traffic; a second call is Error(kInvalidArgument).
  virtual std::unique_ptr<Link> link_to(int member, Traffic traffic) = 0;
  std::unique_ptr<Link> link_to(int member) { return link_to(member, Traffic::kCollectives); }
};

}  // namespace ringdp::transport
