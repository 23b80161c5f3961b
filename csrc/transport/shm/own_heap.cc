#include "transport/shm/own_heap.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "base/fork_mutex.h"

namespace ringdp::transport {
namespace {

// Equal offsets in the heaps of all members must not fall into one set of a first-level cache (4096 bytes per way).
constexpr int64_t kWayBytes = 4096;
constexpr int64_t kSmallestStagger = 256;

int64_t stagger(int member, int members) {
  return member * std::max(kWayBytes / members / Heap::kAlignment * Heap::kAlignment, kSmallestStagger) % kWayBytes;
}

struct Known {
  std::string group;
  std::weak_ptr<const Segment> memory;
  std::weak_ptr<Heap> heap;
};

// Never destroyed: tensors, and so heaps, may outlive statics.
struct Registry {
  ForkMutex mutex;
  std::vector<Known> heaps;  // of this process
};

Registry& registry() {
  static auto* const known = new Registry;
  return *known;
}

struct Found {
  std::shared_ptr<const Segment> memory;
  std::shared_ptr<Heap> heap;
};

struct Ranked {
  bool has_name;
  int64_t taken;
  Found found;
};

// All of the process. Their last references are not dropped under the lock, as what a heap owns has locks of its own.
std::vector<Ranked> living(const std::string& group) {
  std::vector<Ranked> all;
  const std::lock_guard lock(registry().mutex);
  std::vector<Known>& heaps = registry().heaps;
  heaps.erase(std::remove_if(heaps.begin(), heaps.end(), [](const Known& k) { return k.heap.expired(); }), heaps.end());
  for (const Known& known : heaps) all.push_back({known.group == group, 0, {known.memory.lock(), known.heap.lock()}});
  return all;
}

// Those of this size, the best ones first.
std::vector<Found> candidates(const std::string& group, int64_t bytes) {
  std::vector<Ranked> all = living(group);
  std::vector<Found> found;
  for (Ranked& each : all) each.taken = each.found.heap ? each.found.heap->taken_bytes() : 0;
  std::sort(all.begin(), all.end(), [](const Ranked& a, const Ranked& b) {
    return std::pair(a.has_name, a.taken) > std::pair(b.has_name, b.taken);
  });
  for (Ranked& each : all) {
    const auto& [memory, heap] = each.found;
    if (memory && heap && memory->size() == static_cast<size_t>(bytes)) found.push_back(std::move(each.found));
  }
  return found;
}

void rename(const std::shared_ptr<Heap>& heap, const std::string& group) {
  const std::lock_guard lock(registry().mutex);
  for (Known& known : registry().heaps) {
    if (!known.heap.owner_before(heap) && !heap.owner_before(known.heap)) known.group = group;
  }
}

}  // namespace

OwnHeap OwnHeap::acquire(const std::string& group, int64_t bytes, int member, int members) {
  if (bytes == 0) return OwnHeap();
  for (Found& found : candidates(group, bytes)) {
    if (!found.heap->adopt()) continue;
    rename(found.heap, group);
    return OwnHeap(std::move(found.memory), std::move(found.heap));
  }
  auto memory = std::make_shared<const Segment>(Segment::create_heap(bytes));
  const int64_t first = stagger(member, members);
  auto heap = std::make_shared<Heap>(memory, memory->data() + first, bytes - first);
  const std::lock_guard lock(registry().mutex);
  registry().heaps.push_back({group, memory, heap});
  return OwnHeap(std::move(memory), std::move(heap));
}

void OwnHeap::give_back() {
  if (heap_ && !std::exchange(was_given_back_, true)) heap_->offer();
}

}  // namespace ringdp::transport
