#include "transport/shm/shm_arena.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/threads.h"
#include "transport/shm/control_block.h"
#include "transport/shm/shm_link.h"

namespace ringdp::transport {
namespace {

using Members = std::vector<LocalMember>;

class MappedArena final : public ShmArena {
 public:
  MappedArena(int index, const SegmentLayout& layout, std::shared_ptr<const Members> members, OwnHeap heap)
      : index_(index),
        layout_(layout),
        members_(std::move(members)),
        linked_(kTrafficCount * layout.members, false),
        heap_(std::move(heap)) {}

  int index() const override { return index_; }
  int size() const override { return layout_.members; }
  std::byte* slot(int member, int parity) const override {
    return (*members_)[member].segment.data() + layout_.slot_offset(parity);
  }
  int64_t slot_bytes() const override { return layout_.slot_bytes; }
  std::byte* heap_at(int member) const override { return (*members_)[member].heap->data(); }
  int64_t heap_bytes() const override { return layout_.heap_bytes; }
  const std::shared_ptr<Heap>& heap() const override { return heap_.heap(); }
  void give_heap_back() override { heap_.give_back(); }
  std::shared_ptr<const void> mappings() const override { return members_; }

  void post_header(uint64_t seq, const Header& header) override;
  // seq_cst, as passed(): it may be the last look before sleeping.
  uint64_t last_header(int member) const override { return block(member).last_header.load(std::memory_order_seq_cst); }
  const Header& header(int member, uint64_t seq) const override { return block(member).headers[seq % 2]; }

  void wake() const override;
  void arrive() override;
  bool passed(uint64_t barrier) const override {
    // seq_cst: the last look before sleeping must not be ordered before the asleep flag.
    return block(0).generation.load(std::memory_order_seq_cst) >= barrier;
  }
  uint64_t arrived(int member) const override { return block(member).arrivals.load(std::memory_order_acquire); }
  int core(int member) const override { return block(member).core_after.load(std::memory_order_relaxed) - 1; }
  void publish_core() override { block(index_).core_after.store(current_core() + 1, std::memory_order_relaxed); }
  void retire(uint64_t barrier) override {
    block(index_).retired.store(barrier, std::memory_order_seq_cst);
    wake();
  }
  uint64_t retired(int member) const override { return block(member).retired.load(std::memory_order_seq_cst); }
  void fence(int64_t offset, int64_t bytes) override {
    heap_.heap()->forbid_adoption();
    heap_.memory()->make_private(offset, bytes);
  }
  void set_asleep(bool asleep) override { block(index_).asleep.store(asleep, std::memory_order_seq_cst); }

  std::unique_ptr<Link> link_to(int member, Traffic traffic) override;

 private:
  ControlBlock& block(int member) const { return *reinterpret_cast<ControlBlock*>((*members_)[member].segment.data()); }
  bool all_arrived() const;
  bool raise_generation();

  const int index_;
  const SegmentLayout layout_;
  const std::shared_ptr<const Members> members_;
  std::vector<bool> linked_;  // by traffic, then member: link_to was called
  OwnHeap heap_;
  uint64_t arrived_ = 0;
  uint64_t posted_ = 0;
};

void MappedArena::post_header(uint64_t seq, const Header& header) {
  if (seq <= posted_) {
    throw Error(ErrorKind::kInternal,
                "header " + std::to_string(seq) + " posted after header " + std::to_string(posted_));
  }
  posted_ = seq;
  block(index_).headers[seq % 2] = header;
  block(index_).last_header.store(seq, std::memory_order_seq_cst);
}

// Each member counts its own arrivals, so an early arrival at the next barrier never counts as a late one at this.
void MappedArena::arrive() {
  publish_core();
  block(index_).arrivals.store(++arrived_, std::memory_order_seq_cst);
  if (all_arrived() && raise_generation()) wake();
}

// In the total order of the seq_cst stores the last arrival comes after all others, so at least that member sees all.
bool MappedArena::all_arrived() const {
  for (int member = 0; member < size(); ++member) {
    if (block(member).arrivals.load(std::memory_order_seq_cst) < arrived_) return false;
  }
  return true;
}

// False when another member has already marked this barrier, or a later one, as passed.
bool MappedArena::raise_generation() {
  std::atomic<uint64_t>& generation = block(0).generation;
  uint64_t passed = generation.load(std::memory_order_relaxed);
  while (passed < arrived_) {
    if (generation.compare_exchange_weak(passed, arrived_, std::memory_order_seq_cst)) return true;
  }
  return false;
}

void MappedArena::wake() const {
  for (int member = 0; member < size(); ++member) {
    if (member != index_) ring_if_asleep(block(member), (*members_)[member].doorbell);
  }
}

std::unique_ptr<Link> MappedArena::link_to(int member, Traffic traffic) {
  const int stream = static_cast<int>(traffic) * size() + member;
  if (member < 0 || member >= size() || member == index_ || linked_[stream]) {
    throw Error(ErrorKind::kInvalidArgument, "member " + std::to_string(index_) + " of " + std::to_string(size()) +
                                                 " asked for a link to " + std::to_string(member) +
                                                 ": one link per other member and kind of traffic");
  }
  linked_[stream] = true;
  const auto capacity = static_cast<size_t>(layout_.stream_bytes);
  const LocalMember& peer = (*members_)[member];
  StreamWriter out((*members_)[index_].segment.data() + layout_.stream_offset(member, traffic), capacity);
  StreamReader in(peer.segment.data() + layout_.stream_offset(index_, traffic), capacity);
  return std::make_unique<ShmLink>(out, in, block(member), peer.doorbell, members_);
}

void check(int index, const SegmentLayout& layout, const Members& members, const OwnHeap& heap) {
  if (index < 0 || index >= layout.members || members.size() != static_cast<size_t>(layout.members)) {
    throw Error(ErrorKind::kInvalidArgument, "an arena of " + std::to_string(layout.members) + " members got " +
                                                 std::to_string(members.size()) + " segments and own index " +
                                                 std::to_string(index));
  }
  for (size_t member = 0; member < members.size(); ++member) {
    if (members[member].segment.size() == static_cast<size_t>(layout.total_bytes())) continue;
    throw Error(ErrorKind::kInvalidArgument, "the segment of member " + std::to_string(member) + " has " +
                                                 std::to_string(members[member].segment.size()) + " bytes, expected " +
                                                 std::to_string(layout.total_bytes()));
  }
  const bool has_heaps = layout.heap_bytes > 0;
  const auto fits = [&](const Segment* memory) {
    return has_heaps == (memory != nullptr) && (!has_heaps || memory->size() == static_cast<size_t>(layout.heap_bytes));
  };
  const bool all_fit = std::all_of(members.begin(), members.end(), [&](const auto& m) { return fits(m.heap.get()); });
  if (!all_fit || !fits(heap.memory().get())) {
    throw Error(ErrorKind::kInvalidArgument,
                "an arena got heaps that do not have " + std::to_string(layout.heap_bytes) + " bytes");
  }
}

}  // namespace

std::unique_ptr<ShmArena> ShmArena::create(int index, const SegmentLayout& layout, std::vector<LocalMember> members,
                                           OwnHeap heap) {
  return create(index, layout, std::make_shared<const Members>(std::move(members)), std::move(heap));
}

std::unique_ptr<ShmArena> ShmArena::create(int index, const SegmentLayout& layout,
                                           std::shared_ptr<const std::vector<LocalMember>> members, OwnHeap heap) {
  check(index, layout, *members, heap);
  return std::make_unique<MappedArena>(index, layout, std::move(members), std::move(heap));
}

}  // namespace ringdp::transport
