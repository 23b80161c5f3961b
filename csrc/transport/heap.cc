#include "transport/heap.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/bytes.h"

namespace ringdp::transport {
namespace {

constexpr int64_t kPageBytes = 4096;

}  // namespace

Heap::Heap(std::shared_ptr<const void> keep, std::byte* base, int64_t bytes)
    : keep_(std::move(keep)), base_(base), bytes_(bytes), owner_pid_(::getpid()), free_{{0, bytes}} {}

std::byte* Heap::take(int64_t bytes) {
  if (::getpid() != owner_pid_) {
    throw Error(ErrorKind::kInvalidArgument,
                "this process was forked from a rank and does not have its shared memory: use ordinary tensors here");
  }
  const std::lock_guard lock(mutex_);
  if (closed_) {
    throw Error(ErrorKind::kInvalidArgument,
                "the shared memory of this tensor is gone with its process group: make a new tensor");
  }
  if (bytes > bytes_) refuse(bytes);
  const int64_t margin = bytes >= kPageBytes ? kPageBytes : 0;  // on both sides; never touched, so it costs no memory
  const int64_t size = align_up(std::max<int64_t>(bytes, 1), kAlignment) + 2 * margin;
  const auto found =
      std::find_if(free_.begin(), free_.end(), [size](const auto& range) { return range.second >= size; });
  if (found == free_.end()) refuse(bytes);
  const auto [offset, available] = *found;
  free_.erase(found);
  if (available > size) free_.emplace(offset + size, available - size);
  taken_.emplace(offset + margin, Range{offset, size});
  taken_bytes_ += size;
  return base_ + offset + margin;
}

void Heap::release(const std::byte* block) {
  if (::getpid() != owner_pid_) return;  // another thread of the parent may have held the lock when it forked
  const std::lock_guard lock(mutex_);
  const auto found = taken_.find(block - base_);
  if (found == taken_.end()) throw Error(ErrorKind::kInternal, "a block that was not taken was released");
  auto [offset, size] = found->second;
  taken_.erase(found);
  taken_bytes_ -= size;
  const auto next = free_.lower_bound(offset);
  if (next != free_.begin()) {
    if (const auto before = std::prev(next); before->first + before->second == offset) {
      offset = before->first;
      size += before->second;
      free_.erase(before);
    }
  }
  if (next != free_.end() && next->first == offset + size) {
    size += next->second;
    free_.erase(next);
  }
  free_.emplace(offset, size);
  if (peers_are_done_ && taken_.empty()) return_pages();
}

void Heap::close(bool peers_are_done) {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  peers_are_done_ = peers_are_done && ::getpid() == owner_pid_;
  if (peers_are_done_ && taken_.empty()) return_pages();
}

void Heap::offer() {
  if (::getpid() != owner_pid_) return;
  const std::lock_guard lock(mutex_);
  closed_ = true;
  is_offered_ = may_be_adopted_;
}

bool Heap::adopt() {
  if (::getpid() != owner_pid_) return false;
  const std::lock_guard lock(mutex_);
  if (!is_offered_) return false;
  closed_ = peers_are_done_ = is_offered_ = false;
  return true;
}

void Heap::forbid_adoption() {
  const std::lock_guard lock(mutex_);
  may_be_adopted_ = is_offered_ = false;
}

// A failure costs only memory: the pages are then returned with the last mapping.
void Heap::return_pages() {
  if (keeps_pages_) return;
  const auto first = align_up(reinterpret_cast<intptr_t>(base_), kPageBytes);
  const auto end = reinterpret_cast<intptr_t>(base_ + bytes_) / kPageBytes * kPageBytes;
  if (end > first) ::madvise(reinterpret_cast<void*>(first), static_cast<size_t>(end - first), MADV_REMOVE);
}

void Heap::keep_pages() {
  const std::lock_guard lock(mutex_);
  keeps_pages_ = true;
}

int64_t Heap::taken_bytes() const {
  if (::getpid() != owner_pid_) return 0;
  const std::lock_guard lock(mutex_);
  return taken_bytes_;
}

void Heap::refuse(int64_t bytes) const {
  throw Error(ErrorKind::kInvalidArgument,
              "no " + std::to_string(bytes) + " bytes in one piece are free in this rank's shared memory of " +
                  std::to_string(bytes_) + " bytes, of which " + std::to_string(taken_bytes_) +
                  " are in use: free tensors, or set heap_bytes higher on all ranks");
}

}  // namespace ringdp::transport
