#include "transport/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "transport/shm/control_block.h"
#include "transport/shm/shm_link.h"

namespace ringdp::transport {
namespace {

constexpr int kMaxMembers = 4096;
constexpr int64_t kMaxPartBytes = int64_t{1} << 40;  // times the number of streams it still fits into an int64_t
constexpr int64_t kPageBytes = 4096;
constexpr int64_t kSlotAlignment = 64;

[[noreturn]] void refuse(const std::string& what, int64_t value, const std::string& accepted) {
  throw Error(ErrorKind::kInvalidArgument,
              "shared memory with " + what + " = " + std::to_string(value) + ": must be " + accepted);
}

void check_heap(int64_t bytes) {
  if (bytes < 0 || bytes > kMaxPartBytes || bytes % kPageBytes) {
    refuse("heap_bytes", bytes, "a multiple of 4096, 0..1 TiB");
  }
}

void check(const SegmentLayout& layout) {
  if (layout.members < 1 || layout.members > kMaxMembers) refuse("members", layout.members, "1..4096");
  if (layout.slot_bytes < kSlotAlignment || layout.slot_bytes > kMaxPartBytes || layout.slot_bytes % kSlotAlignment) {
    refuse("slot_bytes", layout.slot_bytes, "a multiple of 64, 64 B..1 TiB");
  }
  const int64_t n = layout.stream_bytes;
  if (n < 1 || n > kMaxPartBytes || (n & (n - 1)) != 0) refuse("link_bytes", n, "a power of two, 1 B..1 TiB");
  check_heap(layout.heap_bytes);
}

// One stream with its header, padded so that the next header is aligned.
int64_t stream_stride(const SegmentLayout& layout) {
  return kStreamHeaderBytes + align_up(layout.stream_bytes, kLinePairBytes);
}

int64_t first_stream(const SegmentLayout& layout) { return align_up(layout.slot_offset(2), kLinePairBytes); }

std::byte* map_shared(int fd, size_t size) {
  void* at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (at == MAP_FAILED) throw_errno("cannot map " + std::to_string(size) + " bytes of shared memory");
  return static_cast<std::byte*>(at);
}

void keep_from_children(std::byte* at, size_t size) {
  if (::madvise(at, size, MADV_DONTFORK) != 0) throw_errno("cannot keep shared memory from forked children");
}

// A core dump would walk through all that was reserved, of every rank.
Segment without_core_dumps(Segment heap) {
  if (::madvise(heap.data(), heap.size(), MADV_DONTDUMP) != 0) {
    throw_errno("cannot keep shared memory out of core dumps");
  }
  return heap;
}

void check_received(int fd, size_t size) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) throw_errno("cannot inspect a peer's memory");
  if (static_cast<uint64_t>(status.st_size) != size) {
    throw Error(ErrorKind::kInternal, "a peer's memory has " + std::to_string(status.st_size) + " bytes, expected " +
                                          std::to_string(size) + ": give all ranks the same slot_bytes and link_bytes");
  }
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    throw Error(ErrorKind::kInternal,
                "a peer's memory is not sealed against shrinking (a truncated mapping kills its readers); "
                "run the same ringdp version on all ranks");
  }
}

constexpr int64_t kSmallestHeap = 64 << 20;
// All heaps of a group take at most this part of what is free, so that there is room for other groups.
constexpr int64_t kShare = 8;

bool can_reserve(int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  void* at = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return false;
  ::munmap(at, size);
  return true;
}

// A larger memfd would not be refused but kill the process with SIGXFSZ.
bool may_have_size(int64_t bytes) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 &&
         (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur / kShare > static_cast<rlim_t>(bytes));
}

bool fits(int64_t heap, int ranks) {
  int64_t needed = 0;
  return !__builtin_mul_overflow(heap, kShare * ranks, &needed) && may_have_size(heap) && can_reserve(needed);
}

}  // namespace

int64_t SegmentLayout::slot_offset(int parity) const { return kControlBytes + parity * slot_bytes; }

int64_t SegmentLayout::stream_offset(int to_member, Traffic traffic) const {
  return first_stream(*this) + (static_cast<int>(traffic) * members + to_member) * stream_stride(*this);
}

int64_t SegmentLayout::total_bytes() const {
  return align_up(first_stream(*this) + kTrafficCount * members * stream_stride(*this), kPageBytes);
}

Segment Segment::create(const SegmentLayout& layout) {
  check(layout);
  return create("ringdp-segment", layout.total_bytes());
}

Segment Segment::create_heap(int64_t bytes) {
  check_heap(bytes);
  Segment heap = without_core_dumps(create("ringdp-heap", bytes));
  heap.shield_ = ForkShield({heap.fd()});
  return heap;
}

Segment Segment::create(const char* name, int64_t size) {
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) throw_errno("cannot make shared memory (memfd_create)");
  if (::ftruncate(fd.get(), size) != 0) throw_errno("cannot size a segment to " + std::to_string(size) + " bytes");
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw_errno("cannot seal a segment's size");
  }
  Segment segment = map_whole(fd.get(), size);
  segment.fd_ = std::move(fd);
  return segment;
}

Segment Segment::map(UniqueFd fd, const SegmentLayout& layout) {
  check(layout);
  return map(std::move(fd), layout.total_bytes());
}

Segment Segment::map_heap(UniqueFd fd, int64_t bytes) {
  check_heap(bytes);
  return without_core_dumps(map(std::move(fd), bytes));
}

Segment Segment::map(UniqueFd fd, int64_t bytes) {
  check_received(fd.get(), static_cast<size_t>(bytes));
  return map_whole(fd.get(), bytes);
}

Segment Segment::map_whole(int fd, int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  Segment segment(map_shared(fd, size), size);
  keep_from_children(segment.data_, size);
  return segment;
}

void Segment::make_private(int64_t offset, int64_t bytes) const {
  const int64_t first = offset / kPageBytes * kPageBytes, end = align_up(offset + bytes, kPageBytes);
  const auto size = static_cast<size_t>(end - first);
  void* const fresh = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (fresh == MAP_FAILED) throw_errno("no address space for " + std::to_string(size) + " private bytes");
  auto* const pages = static_cast<std::byte*>(fresh);
  std::memcpy(pages, data_ + first, static_cast<size_t>(offset - first));
  std::memcpy(pages + (offset + bytes - first), data_ + offset + bytes, static_cast<size_t>(end - offset - bytes));
  if (::mremap(fresh, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, data_ + first) == MAP_FAILED) {
    ::munmap(fresh, size);
    throw_errno("cannot put private memory in place of a shared tensor");
  }
  keep_from_children(data_ + first, size);
}

Segment::Segment(std::byte* data, size_t size) : data_(data), size_(size), owner_pid_(::getpid()) {}

Segment::Segment(Segment&& other) noexcept
    : fd_(std::move(other.fd_)),
      shield_(std::move(other.shield_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      owner_pid_(other.owner_pid_) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(shield_, other.shield_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(owner_pid_, other.owner_pid_);
  return *this;
}

Segment::~Segment() {
  if (data_ != nullptr && owner_pid_ == ::getpid()) ::munmap(data_, size_);
}

int64_t reservable_heap(int64_t wanted, int ranks) {
  const int64_t enough = wanted < kSmallestHeap ? wanted : kSmallestHeap;
  int64_t heap = wanted;
  while (heap >= enough && heap > 0 && !fits(heap, ranks)) heap /= 2;
  return heap < enough ? 0 : heap / kPageBytes * kPageBytes;
}

}  // namespace ringdp::transport
