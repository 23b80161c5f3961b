#include "device/runtime/segments.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/error.h"
#include "device/plan/plan.h"
#include "device/runtime/peer_info.h"
#include "device/runtime/placement.h"

namespace ringdp::gpu {
namespace {

void check_equal(const std::vector<PeerInfo>& infos, int rank) {
  const auto own = static_cast<size_t>(rank);
  for (size_t other = 0; other < infos.size(); ++other) {
    if (infos[other].bytes == infos[own].bytes) continue;
    throw Error(ErrorKind::kMismatch,
                "rank " + std::to_string(rank) + " makes a segment of " + std::to_string(infos[own].bytes) +
                    " bytes, rank " + std::to_string(other) + " one of " + std::to_string(infos[other].bytes) +
                    ": tensors that devices share must be equally large on all ranks",
                static_cast<int>(other));
  }
}

}  // namespace

DeviceMemory::DeviceMemory(const Functions& functions, int device, int64_t bytes, int sharing) : functions_(functions) {
  void* memory = nullptr;
  require(functions, functions.alloc(device, static_cast<size_t>(bytes), sharing, &memory));
  data_ = static_cast<char*>(memory);
}

DeviceMemory::~DeviceMemory() { functions_.free(data_); }

rd_gpu_handle DeviceMemory::handle(UniqueFd* fd) const {
  rd_gpu_handle handle{};
  int descriptor = -1;
  require(functions_, functions_.export_memory(data_, &handle, &descriptor));
  fd->reset(descriptor);
  return handle;
}

Segments::Segments(const Functions& functions, int device, int rank, int sharing, std::string why_never)
    : functions_(functions), device_(device), rank_(rank), sharing_(sharing), why_never_(std::move(why_never)) {}

std::shared_ptr<DeviceMemory> Segments::make(int64_t bytes, const BootstrapContext& context) {
  reclaim(context);
  Place place;
  {
    const std::lock_guard lock(mutex_);
    place =
        segments_.insert(segments_.end(), {++made_, bytes, nullptr, {}});  // also if a peer dies below, who may map it
  }
  UniqueFd fd;
  const std::vector<PeerInfo> infos = peer_infos_from(context.all_gather(to_bytes(offer(*place, context, &fd))));
  std::string why = gpu::why_not(infos);
  if (!why.empty()) return refuse(place, why);
  check_equal(infos, rank_);
  const std::string failure = map(*place, infos, context.pass_fds(sockets_of(infos), fd.get()));
  const MappingReports reports = reports_from(context.all_gather(to_bytes(report_on(place->memory, failure))));
  if (reach_of(reports.reached) == Reach::kAll) return place->own;
  unmap(*place);
  context.all_gather(std::string(1, '\0'));  // importers close before exporters free
  return refuse(place, reports.first_failure);
}

PeerInfo Segments::offer(Segment& segment, const BootstrapContext& context, UniqueFd* fd) const {
  try {
    if (!why_never_.empty()) throw Error(ErrorKind::kInternal, why_never_);
    PeerInfo info = peer_info_of(functions_, device_);
    const int64_t whole = align_up(std::max<int64_t>(segment.bytes, 1), plan::kDevicePackBytes);
    auto own = std::make_shared<DeviceMemory>(functions_, device_, whole, sharing_);
    info.bytes = segment.bytes;
    info.memory = own->handle(fd);
    put(info.socket, context.socket);
    const std::lock_guard lock(mutex_);
    segment.own = std::move(own);
    return info;
  } catch (const Error& error) {
    return peer_info_without(error.what());
  }
}

// "" or why some of it is missing.
std::string Segments::map(Segment& segment, const std::vector<PeerInfo>& infos,
                          const std::vector<UniqueFd>& fds) const {
  std::string failure;
  segment.memory.assign(infos.size(), nullptr);
  for (size_t rank = 0; rank < infos.size(); ++rank) {
    if (static_cast<int>(rank) == rank_) {
      segment.memory[rank] = segment.own->data();
      continue;
    }
    try {
      void* memory = nullptr;
      require(functions_, functions_.import_memory(device_, &infos[rank].memory, fds[rank].get(), &memory));
      segment.memory[rank] = static_cast<char*>(memory);
    } catch (const Error& error) {
      if (failure.empty()) failure = "memory of rank " + std::to_string(rank) + ": " + error.what();
    }
  }
  return failure;
}

void Segments::unmap(Segment& segment) const {
  for (size_t rank = 0; rank < segment.memory.size(); ++rank) {
    if (segment.memory[rank] == nullptr || static_cast<int>(rank) == rank_) continue;
    functions_.unimport_memory(segment.memory[rank]);
    segment.memory[rank] = nullptr;
  }
}

// Nobody has it mapped.
std::shared_ptr<DeviceMemory> Segments::refuse(Place place, const std::string& why) {
  const std::lock_guard lock(mutex_);
  segments_.erase(place);
  why_not_ = why;
  return nullptr;
}

void Segments::reclaim(const BootstrapContext& context) {
  const std::vector<Place> ended = unused(context);
  if (ended.empty()) return;
  context.wait_for_device();
  {
    const std::lock_guard lock(mutex_);
    for (const Place place : ended) unmap(*place);
  }
  context.all_gather(std::string(1, '\0'));  // importers close before exporters free
  const std::lock_guard lock(mutex_);
  for (const Place place : ended) segments_.erase(place);
}

// On all ranks. Whoever holds memory may unmapped it at any time, and nobody takes it up again.
std::vector<Segments::Place> Segments::unused(const BootstrapContext& context) {
  std::vector<Place> places;
  std::string held;
  {
    const std::lock_guard lock(mutex_);
    for (Place place = segments_.begin(); place != segments_.end(); ++place) {
      places.push_back(place);
      held += place->own.use_count() > 1 ? '1' : '0';
    }
  }
  if (places.empty()) return {};
  const std::vector<std::string> all = context.all_gather(held);
  std::vector<Place> ended;
  for (size_t i = 0; i < places.size(); ++i) {
    const auto lets_go = [&](const std::string& rank) { return rank[i] == '0'; };
    if (std::all_of(all.begin(), all.end(), lets_go)) ended.push_back(places[i]);
  }
  return ended;
}

std::optional<SegmentRef> Segments::find(const void* memory, int64_t bytes) const {
  const std::lock_guard lock(mutex_);
  for (const Segment& segment : segments_) {
    if (!segment.own) continue;
    const int64_t at = static_cast<const char*>(memory) - segment.own->data();
    if (at < 0 || at + bytes > segment.bytes) continue;
    const bool ends_at_pack = bytes % plan::kDevicePackBytes == 0 || at + bytes == segment.bytes;
    if (at % plan::kDevicePackBytes != 0 || !ends_at_pack) return std::nullopt;
    return SegmentRef{segment.number, at};
  }
  return std::nullopt;
}

bool Segments::holds(const void* memory) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(segments_.begin(), segments_.end(), [memory](const Segment& segment) {
    if (!segment.own) return false;
    const int64_t at = static_cast<const char*>(memory) - segment.own->data();
    return at >= 0 && at < segment.bytes;
  });
}

std::vector<char*> Segments::addresses(int64_t number) const {
  const std::lock_guard lock(mutex_);
  return numbered(number).memory;
}

std::shared_ptr<DeviceMemory> Segments::memory(int64_t number) const {
  const std::lock_guard lock(mutex_);
  return numbered(number).own;
}

// Under mutex_.
const Segments::Segment& Segments::numbered(int64_t number) const {
  for (const Segment& segment : segments_) {
    if (segment.number == number) return segment;
  }
  throw Error(ErrorKind::kInternal, "segment " + std::to_string(number) + " is not there");
}

int64_t Segments::bytes() const {
  const std::lock_guard lock(mutex_);
  int64_t sum = 0;
  for (const Segment& segment : segments_) sum += segment.bytes;
  return sum;
}

size_t Segments::count() const {
  const std::lock_guard lock(mutex_);
  return segments_.size();
}

std::string Segments::why_not() const {
  const std::lock_guard lock(mutex_);
  return why_not_;
}

void Segments::unmap() {
  const std::lock_guard lock(mutex_);
  for (Segment& segment : segments_) unmap(segment);
}

}  // namespace ringdp::gpu
