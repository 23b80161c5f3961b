#include "device/runtime/symmetric_buffers.h"

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
                "rank " + std::to_string(rank) + " allocates a symmetric buffer of " +
                    std::to_string(infos[own].bytes) + " bytes, rank " + std::to_string(other) + " one of " +
                    std::to_string(infos[other].bytes) +
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

SymmetricBuffers::SymmetricBuffers(const Functions& functions, int device, int rank, int sharing, std::string why_never)
    : functions_(functions), device_(device), rank_(rank), sharing_(sharing), why_never_(std::move(why_never)) {}

std::shared_ptr<DeviceMemory> SymmetricBuffers::make(int64_t bytes, const BootstrapContext& context) {
  reclaim(context);
  Place place;
  {
    const std::lock_guard lock(mutex_);
    place = buffers_.insert(buffers_.end(),
                            {++made_, bytes, nullptr, {}});  // kept also if a peer that may have mapped it dies below
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

PeerInfo SymmetricBuffers::offer(Buffer& buffer, const BootstrapContext& context, UniqueFd* fd) const {
  try {
    if (!why_never_.empty()) throw Error(ErrorKind::kInternal, why_never_);
    PeerInfo info = peer_info_of(functions_, device_);
    const int64_t whole = align_up(std::max<int64_t>(buffer.bytes, 1), plan::kDevicePackBytes);
    auto own = std::make_shared<DeviceMemory>(functions_, device_, whole, sharing_);
    info.bytes = buffer.bytes;
    info.memory = own->handle(fd);
    put(info.socket, context.socket);
    const std::lock_guard lock(mutex_);
    buffer.own = std::move(own);
    return info;
  } catch (const Error& error) {
    return peer_info_without(error.what());
  }
}

// "", or why some of it could not be mapped.
std::string SymmetricBuffers::map(Buffer& buffer, const std::vector<PeerInfo>& infos,
                                  const std::vector<UniqueFd>& fds) const {
  std::string failure;
  buffer.memory.assign(infos.size(), nullptr);
  for (size_t rank = 0; rank < infos.size(); ++rank) {
    if (static_cast<int>(rank) == rank_) {
      buffer.memory[rank] = buffer.own->data();
      continue;
    }
    try {
      void* memory = nullptr;
      require(functions_, functions_.import_memory(device_, &infos[rank].memory, fds[rank].get(), &memory));
      buffer.memory[rank] = static_cast<char*>(memory);
    } catch (const Error& error) {
      if (failure.empty()) failure = "memory of rank " + std::to_string(rank) + ": " + error.what();
    }
  }
  return failure;
}

void SymmetricBuffers::unmap(Buffer& buffer) const {
  for (size_t rank = 0; rank < buffer.memory.size(); ++rank) {
    if (buffer.memory[rank] == nullptr || static_cast<int>(rank) == rank_) continue;
    functions_.unimport_memory(buffer.memory[rank]);
    buffer.memory[rank] = nullptr;
  }
}

// Precondition: no peer has it mapped.
std::shared_ptr<DeviceMemory> SymmetricBuffers::refuse(Place place, const std::string& why) {
  const std::lock_guard lock(mutex_);
  buffers_.erase(place);
  why_not_ = why;
  return nullptr;
}

void SymmetricBuffers::reclaim(const BootstrapContext& context) {
  const std::vector<Place> ended = unused(context);
  if (ended.empty()) return;
  context.wait_for_device();
  {
    const std::lock_guard lock(mutex_);
    for (const Place place : ended) unmap(*place);
  }
  context.all_gather(std::string(1, '\0'));  // importers close before exporters free
  const std::lock_guard lock(mutex_);
  for (const Place place : ended) buffers_.erase(place);
}

// Those that no rank uses. A rank may drop its memory at any time, and never uses it again.
std::vector<SymmetricBuffers::Place> SymmetricBuffers::unused(const BootstrapContext& context) {
  std::vector<Place> places;
  std::string held;
  {
    const std::lock_guard lock(mutex_);
    for (Place place = buffers_.begin(); place != buffers_.end(); ++place) {
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

std::optional<BufferRef> SymmetricBuffers::find(const void* memory, int64_t bytes) const {
  const std::lock_guard lock(mutex_);
  for (const Buffer& buffer : buffers_) {
    if (!buffer.own) continue;
    const int64_t at = static_cast<const char*>(memory) - buffer.own->data();
    if (at < 0 || at + bytes > buffer.bytes) continue;
    const bool ends_at_pack = bytes % plan::kDevicePackBytes == 0 || at + bytes == buffer.bytes;
    if (at % plan::kDevicePackBytes != 0 || !ends_at_pack) return std::nullopt;
    return BufferRef{buffer.number, at};
  }
  return std::nullopt;
}

bool SymmetricBuffers::holds(const void* memory) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(buffers_.begin(), buffers_.end(), [memory](const Buffer& buffer) {
    if (!buffer.own) return false;
    const int64_t at = static_cast<const char*>(memory) - buffer.own->data();
    return at >= 0 && at < buffer.bytes;
  });
}

std::vector<char*> SymmetricBuffers::addresses(int64_t number) const {
  const std::lock_guard lock(mutex_);
  return numbered(number).memory;
}

std::shared_ptr<DeviceMemory> SymmetricBuffers::memory(int64_t number) const {
  const std::lock_guard lock(mutex_);
  return numbered(number).own;
}

// Under mutex_.
const SymmetricBuffers::Buffer& SymmetricBuffers::numbered(int64_t number) const {
  for (const Buffer& buffer : buffers_) {
    if (buffer.number == number) return buffer;
  }
  throw Error(ErrorKind::kInternal, "symmetric buffer " + std::to_string(number) + " is not there");
}

int64_t SymmetricBuffers::bytes() const {
  const std::lock_guard lock(mutex_);
  int64_t sum = 0;
  for (const Buffer& buffer : buffers_) sum += buffer.bytes;
  return sum;
}

size_t SymmetricBuffers::count() const {
  const std::lock_guard lock(mutex_);
  return buffers_.size();
}

std::string SymmetricBuffers::why_not() const {
  const std::lock_guard lock(mutex_);
  return why_not_;
}

void SymmetricBuffers::unmap() {
  const std::lock_guard lock(mutex_);
  for (Buffer& buffer : buffers_) unmap(buffer);
}

}  // namespace ringdp::gpu
