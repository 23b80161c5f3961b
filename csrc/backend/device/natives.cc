#include "backend/device/natives.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "backend/device/overseer.h"
#include "backend/device/shared_tensor.h"
#include "backend/errors.h"
#include "backend/gil.h"
#include "base/env.h"
#include "transport/fd_exchange.h"

namespace ringdp::backend {
namespace {

// Of these all bits one, which is what a failure leaves behind (gpu/device/poison.h), is no NaN.
bool is_number_of_ones(DType dtype) { return dtype == DType::kF8E4M3FNUZ || dtype == DType::kF8E5M2FNUZ; }

// A premultiplied tensor is summed.
ReduceOp sum_of(ReduceOp op) { return op == ReduceOp::kPremulSum ? ReduceOp::kSum : op; }

std::string too_many(int ranks) {
  return std::to_string(ranks) + " ranks, and at most " + std::to_string(plan::kMaxDeviceRanks) +
         " share memory of devices";
}

}  // namespace

Natives::~Natives() {
  if (lane_) Overseer::instance().see_off(std::move(lane_));
}

// What all ranks know without meeting.
std::string Natives::why_no_shared_memory() const {
  if (group_->world() > plan::kMaxDeviceRanks) return too_many(group_->world());
  return group_->world() > 1 ? group_->why_no_shared_heaps() : "";
}

// Of a group of several hosts, as far as this rank knows.
std::string Natives::why_no_sharing_on_host() const {
  const int members = group_->ranks_on_host();
  if (members > plan::kMaxDeviceRanks) return too_many(members);
  return members == 1 || group_->has_heap() ? "" : "heap_bytes is 0, or there was no address space for a heap";
}

void Natives::meet(c10::Device device, std::shared_ptr<Lane> lane, std::chrono::milliseconds timeout) {
  const ReleaseGil release;  // peers may need it to come as far
  const std::lock_guard lock(mutex_);
  if (device_) return;
  if (group_->settings().window_bytes == 0) {
    why_not_ = "window_bytes is 0";
  } else {
    const c10::DeviceGuard current(device);
    auto ranks = meet_peers(device, *lane, timeout);
    if (why_not_.empty()) lane_ = std::make_shared<NativeLane>(std::move(lane), group_, std::move(ranks));
  }
  device_ = device;
}

// By shared memory, else by NCCL.
std::unique_ptr<gpu::DeviceRanks> Natives::meet_peers(c10::Device device, const Lane& lane,
                                                      std::chrono::milliseconds timeout) {
  const gpu::Functions& functions = lane.core().functions();
  const std::string apart = why_no_shared_memory();
  std::unique_ptr<gpu::DeviceRanks> ranks;
  if (apart.empty()) {
    ranks = gpu::Neighbourhood::meet(functions, device.index(), surroundings(timeout, comm::Place::kMeeting));
  } else if (group_->settings().asks_for_tls()) {
    why_not_ = apart + "; TLS is asked for, and NCCL would connect in plain";
    return nullptr;
  } else {
    ranks = gpu::NcclRanks::meet(functions, device.index(), surroundings_of_nccl(device, lane, timeout));
  }
  why_not_ = ranks->why_not();
  if (!why_not_.empty() && !apart.empty()) why_not_ = apart + "; " + why_not_;
  return ranks;
}

std::shared_ptr<NativeLane> Natives::lane_for(c10::Device device, std::shared_ptr<Lane> lane, const comm::OpDesc& desc,
                                              std::chrono::milliseconds timeout) {
  if (is_number_of_ones(desc.dtype)) return nullptr;
  meet(device, std::move(lane), timeout);
  const ReleaseGil release;  // who shares memory holds the lock
  const std::lock_guard lock(mutex_);
  return why_staged(device, desc).empty() ? lane_ : nullptr;
}

// Under mutex_.
std::string Natives::why_staged(c10::Device device, const comm::OpDesc& desc) const {
  if (!lane_) return why_not_;
  if (device != *device_) return "its tensors are not on " + device_->str();
  if (is_number_of_ones(desc.dtype)) return std::string("a failure would leave a number in ") + name_of(desc.dtype);
  return lane_->ranks().why_not(problem_of(desc, group_->rank(), group_->world()));
}

std::shared_ptr<NativeLane> Natives::lane_in_capture(c10::Device device, const Lane& lane,
                                                     const comm::OpDesc& desc) const {
  const ReleaseGil release;  // who meets holds the lock, and may need it
  const std::lock_guard lock(mutex_);
  const std::string why_not = why_not_in_graph(device, desc);
  if (!why_not.empty()) lane.refuse_capture(why_not);
  return lane_;
}

// Under mutex_.
std::string Natives::why_not_in_graph(c10::Device device, const comm::OpDesc& desc) const {
  if (!device_) {
    return "the first call on a device makes the ranks of this group meet there, which takes memory; make one before "
           "the capture";
  }
  const std::string outside = "; call it outside the capture";
  if (desc.what == plan::Collective::kBarrier) {
    return "the host waits for a barrier, which no graph can replay" + outside;
  }
  const std::string staged = why_staged(device, desc);
  if (!staged.empty()) return "this call goes through host memory, which no graph can replay: " + staged + outside;
  const gpu::Neighbourhood* const sharing = lane_->ranks().sharing();
  if (sharing == nullptr) return "ranks send to each other by NCCL, which ringdp does not capture" + outside;
  if (sharing->on_streams()) {
    return "ranks share a device, whose streams wait for what the host counts (STREAM), which no graph can replay" +
           outside;
  }
  return "";
}

at::Tensor Natives::share(c10::Device device, std::shared_ptr<Lane> lane, int64_t elements, at::ScalarType dtype,
                          std::chrono::milliseconds timeout) {
  meet(device, std::move(lane), timeout);
  const ReleaseGil release;
  const std::lock_guard lock(mutex_);
  if (segments() == nullptr || device != *device_) return {};
  const c10::DeviceGuard current(device);
  const int64_t bytes = checked_mul(elements, static_cast<int64_t>(c10::elementSize(dtype)));
  auto memory = segments()->make(bytes, surroundings(timeout, comm::Place::kSharing));
  return memory ? tensor_in(std::move(memory), elements, dtype, device) : at::Tensor();
}

void Natives::reclaim(std::chrono::milliseconds timeout) {
  const ReleaseGil release;
  const std::lock_guard lock(mutex_);
  if (segments() == nullptr) return;
  const c10::DeviceGuard current(*device_);
  segments()->reclaim(surroundings(timeout, comm::Place::kSharing));
}

bool Natives::shares(const at::Tensor& tensor) const {
  const ReleaseGil release;  // who shares holds the lock, and may need it
  const std::lock_guard lock(mutex_);
  if (segments() == nullptr || tensor.device() != *device_) return false;
  return segments()->find(tensor.const_data_ptr(), static_cast<int64_t>(tensor.nbytes())).has_value();
}

std::shared_ptr<NativeLane> Natives::lane_for_step(c10::Device device, std::shared_ptr<Lane> lane,
                                                   std::chrono::milliseconds timeout, std::string* why_not) {
  meet(device, std::move(lane), timeout);
  const ReleaseGil release;
  const std::lock_guard lock(mutex_);
  const gpu::Neighbourhood* const sharing = lane_ ? lane_->ranks().sharing() : nullptr;
  *why_not = !lane_ ? why_not_ : sharing ? sharing->why_no_step() : why_no_shared_memory();
  if (device != *device_) *why_not = device.str() + " is not this rank's first device, " + device_->str();
  return why_not->empty() ? lane_ : nullptr;
}

plan::DeviceProblem Natives::problem_of(const comm::OpDesc& desc, int rank, int world) {
  plan::DeviceProblem problem;
  problem.what = desc.what;
  problem.dtype = plan::is_sum(desc.what) ? desc.dtype : DType::kU8;
  problem.op = plan::is_sum(desc.what) ? sum_of(desc.op) : ReduceOp::kSum;
  problem.rank = rank;
  problem.world = world;
  problem.root = desc.root;
  const int64_t count = desc.counts.empty() ? desc.count : *std::max_element(desc.counts.begin(), desc.counts.end());
  problem.count = plan::is_sum(desc.what) ? count : checked_mul(count, size_of(desc.dtype));
  return problem;
}

gpu::NcclSurroundings Natives::surroundings_of_nccl(c10::Device device, const Lane& lane,
                                                    std::chrono::milliseconds timeout) const {
  const Settings& settings = group_->settings();
  const Deadline deadline = Deadline::after(timeout);
  gpu::NcclSurroundings around;
  around.rank = group_->rank();
  around.world = group_->world();
  around.window_bytes = settings.window_bytes;
  around.wish = wish();
  around.library = read_env("RINGDP_NCCL").value_or("");
  around.stream = lane.native(lane.inputs());
  around.deadline = deadline;
  around.tell_all = [this, deadline](const std::string& own) { return tell_all(own, comm::Place::kMeeting, deadline); };
  around.with_device = [device](const std::function<void()>& run) {
    const c10::DeviceGuard current(device);
    run();
  };
  around.still_there = [this] {
    if (const auto error = group_->error()) throw *error;
  };
  around.on_host = [this, deadline](gpu::HostTelling& telling) { return surroundings_on_host(telling, deadline); };
  around.why_not_on_host = why_no_sharing_on_host();
  return around;
}

// With hosts where the CPU goes by hierarchy, too: at once, or beyond direct_bytes (collective/select.h).
plan::LinkWish Natives::wish() const {
  const Settings& settings = group_->settings();
  const WireType wire = group_->choice(plan::Collective::kAllReduce, 0).wire;  // in force
  plan::LinkWish wish = {settings.algorithm, settings.order, wire, {}, -1};
  const size_t hosts = group_->hosts().size();
  if (hosts < 2 || hosts == static_cast<size_t>(group_->world())) return wish;
  for (const int64_t bytes : {int64_t{0}, settings.thresholds.direct_bytes + 1}) {
    const collective::Choice choice = group_->choice(plan::Collective::kAllReduce, bytes);
    if (choice.algorithm != AlgorithmChoice::kHierarchy) continue;
    wish.hosts = group_->hosts();
    wish.hierarchy_beyond = bytes - 1;
    break;
  }
  return wish;
}

gpu::Surroundings Natives::surroundings(std::chrono::milliseconds timeout, comm::Place place) const {
  const Deadline deadline = Deadline::after(timeout);
  gpu::Surroundings around = surroundings_of(0, group_->world(), deadline);
  around.tell_all = [this, place, deadline](const std::string& own) { return tell_all(own, place, deadline); };
  return around;
}

gpu::Surroundings Natives::surroundings_on_host(gpu::HostTelling& telling, Deadline deadline) const {
  gpu::Surroundings around = surroundings_of(telling.first(), telling.members(), deadline);
  around.tell_all = [&telling](const std::string& own) { return telling.tell(own); };
  return around;
}

// Of `world` ranks of one host, from rank `first` on.
gpu::Surroundings Natives::surroundings_of(int first, int world, Deadline deadline) const {
  gpu::Surroundings around;
  around.rank = group_->rank() - first;
  around.world = world;
  around.window_bytes = group_->settings().window_bytes;
  if (around.world == 1) {
    around.pass_fds = [](const auto&, int) { return std::vector<UniqueFd>(1); };
    return around;
  }
  const auto sockets = std::make_shared<transport::FdExchange>();
  around.socket = sockets->name();
  around.pass_fds = [this, sockets, first, deadline](const std::vector<std::string>& names, int own) {
    const auto admit = [this, first](int socket, int rank) { return group_->is_process_of(socket, first + rank); };
    const auto still_there = [this] {
      if (const auto error = group_->error()) throw *error;
    };
    return sockets->run(group_->rank() - first, names, own, admit, deadline, still_there);
  };
  around.heap = group_->heap();
  around.heaps = group_->heaps();
  around.heap_bytes = group_->heap_bytes();
  around.wait_for_device = [device = device_] {
    if (device) c10::impl::VirtualGuardImpl(device->type()).synchronizeDevice(device->index());
  };
  return around;
}

std::vector<std::string> Natives::tell_all(const std::string& own, comm::Place place, Deadline deadline) const {
  const auto world = static_cast<size_t>(group_->world());
  std::vector<std::string> all(world, std::string(own.size(), '\0'));
  comm::Request request;
  request.desc.what = plan::Collective::kAllGather;
  request.desc.place = place;
  request.desc.count = static_cast<int64_t>(own.size());
  request.buffers.inputs = {own.data()};
  for (std::string& one : all) request.buffers.outputs.push_back(one.data());
  request.deadline = deadline;
  request.asynchronous = false;
  const auto op = group_->submit(std::move(request));
  group_->wait(*op, Deadline::never());
  return all;
}

// Under mutex_.
std::string Natives::sharing() const {
  if (segments() == nullptr) return "";
  const std::string why_not = segments()->why_not();
  if (segments()->count() == 0 && why_not.empty()) return "";
  return "; " + std::to_string(segments()->bytes()) + " bytes of each device, in " + std::to_string(segments()->count()) +
         " segments, are shared and not copied" +
         (why_not.empty() ? "" : " (one more could not be made: " + why_not + ")");
}

std::string Natives::description() const {
  const ReleaseGil release;
  const std::lock_guard lock(mutex_);
  if (!device_) return "";
  const std::string where = "tensors on " + device_->str() + ": ";
  if (!lane_) return where + "collectives run on the host, through pinned memory: " + why_not_;
  return where + lane_->ranks().description() + sharing() +
         "; through pinned memory go all_to_all of lists or with sizes, messages, and what has no kernel";
}

}  // namespace ringdp::backend
