#include "backend/device/natives.h"

#include <c10/core/DeviceGuard.h>

#include "backend/device/overseer.h"
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

}  // namespace

Natives::~Natives() {
  if (lane_) Overseer::instance().see_off(std::move(lane_));
}

// What all ranks know without meeting.
std::string Natives::why_no_shared_memory() const {
  if (group_->world() > plan::kMaxDeviceRanks) {
    return std::to_string(group_->world()) + " ranks, and at most " + std::to_string(plan::kMaxDeviceRanks) +
           " share memory of devices";
  }
  return group_->world() > 1 ? group_->why_no_shared_heaps() : "";
}

void Natives::meet(c10::Device device, std::shared_ptr<Lane> lane, std::chrono::milliseconds timeout) {
  const ReleaseGil release;  // peers may need it to come as far
  const std::lock_guard lock(mutex_);
  if (device_) return;
  if (group_->settings().window_bytes == 0) {
    why_not_ = "window_bytes is 0";
  } else {
    const c10::DeviceGuard current(device);
    auto ranks = meet_peers(device, *lane, Deadline::after(timeout));
    if (why_not_.empty()) lane_ = std::make_shared<NativeLane>(std::move(lane), group_, std::move(ranks));
  }
  device_ = device;
}

// By shared memory, else by NCCL.
std::unique_ptr<gpu::DeviceRanks> Natives::meet_peers(c10::Device device, const Lane& lane, Deadline deadline) {
  const gpu::Functions& functions = lane.core().functions();
  const std::string apart = why_no_shared_memory();
  std::unique_ptr<gpu::DeviceRanks> ranks;
  if (apart.empty()) {
    ranks = gpu::Neighbourhood::meet(functions, device.index(), surroundings(deadline));
  } else {
    ranks = gpu::NcclRanks::meet(functions, device.index(), surroundings_of_nccl(device, lane, deadline));
  }
  why_not_ = ranks->why_not();
  if (!why_not_.empty() && !apart.empty()) why_not_ = apart + "; " + why_not_;
  return ranks;
}

std::shared_ptr<NativeLane> Natives::lane_for(c10::Device device, std::shared_ptr<Lane> lane, const comm::OpDesc& desc,
                                              std::chrono::milliseconds timeout) {
  if (!desc.counts.empty() || is_number_of_ones(desc.dtype)) return nullptr;
  meet(device, std::move(lane), timeout);
  const std::lock_guard lock(mutex_);
  if (!lane_ || device != *device_) return nullptr;
  const plan::DeviceProblem problem = problem_of(desc, group_->rank(), group_->world());
  return lane_->neighbourhood().why_not(problem).empty() ? lane_ : nullptr;
}

plan::DeviceProblem Natives::problem_of(const comm::OpDesc& desc, int rank, int world) {
  plan::DeviceProblem problem;
  problem.what = desc.what;
  problem.dtype = plan::is_sum(desc.what) ? desc.dtype : DType::kU8;
  problem.op = plan::is_sum(desc.what) ? sum_of(desc.op) : ReduceOp::kSum;
  problem.rank = rank;
  problem.world = world;
  problem.root = desc.root;
  problem.count = plan::is_sum(desc.what) ? desc.count : checked_mul(desc.count, size_of(desc.dtype));
  return problem;
}

gpu::NcclSurroundings Natives::surroundings_of_nccl(c10::Device device, const Lane& lane, Deadline deadline) const {
  const Settings& settings = group_->settings();
  gpu::NcclSurroundings around;
  around.rank = group_->rank();
  around.world = group_->world();
  around.window_bytes = settings.window_bytes;
  around.wish = {settings.algorithm, settings.order, settings.wire};
  around.library = read_env("RINGDP_NCCL").value_or("");
  around.stream = lane.native(lane.inputs());
  around.deadline = deadline;
  around.tell_all = [this, deadline](const std::string& own) { return tell_all(own, deadline); };
  around.with_device = [device](const std::function<void()>& run) {
    const c10::DeviceGuard current(device);
    run();
  };
  around.still_there = [this] {
    if (const auto error = group_->error()) throw *error;
  };
  return around;
}

gpu::Surroundings Natives::surroundings(Deadline deadline) const {
  gpu::Surroundings around;
  around.rank = group_->rank();
  around.world = group_->world();
  around.window_bytes = group_->settings().window_bytes;
  around.tell_all = [this, deadline](const std::string& own) { return tell_all(own, deadline); };
  if (around.world == 1) {
    around.pass_fds = [](const auto&, int) { return std::vector<UniqueFd>(1); };
    return around;
  }
  const auto sockets = std::make_shared<transport::FdExchange>();
  around.socket = sockets->name();
  around.pass_fds = [this, sockets, deadline](const std::vector<std::string>& names, int own) {
    const auto admit = [this](int socket, int rank) { return group_->is_process_of(socket, rank); };
    const auto still_there = [this] {
      if (const auto error = group_->error()) throw *error;
    };
    return sockets->run(group_->rank(), names, own, admit, deadline, still_there);
  };
  around.heap = group_->heap();
  around.heaps = group_->heaps();
  around.heap_bytes = group_->heap_bytes();
  return around;
}

std::vector<std::string> Natives::tell_all(const std::string& own, Deadline deadline) const {
  const auto world = static_cast<size_t>(group_->world());
  std::vector<std::string> all(world, std::string(own.size(), '\0'));
  comm::Request request;
  request.desc.what = plan::Collective::kAllGather;
  request.desc.place = comm::Place::kMeeting;
  request.desc.count = static_cast<int64_t>(own.size());
  request.buffers.inputs = {own.data()};
  for (std::string& one : all) request.buffers.outputs.push_back(one.data());
  request.deadline = deadline;
  request.asynchronous = false;
  const auto op = group_->submit(std::move(request));
  group_->wait(*op, Deadline::never());
  return all;
}

std::string Natives::description() const {
  const std::lock_guard lock(mutex_);
  if (!device_) return "";
  const std::string where = "tensors on " + device_->str() + ": ";
  if (!lane_) return where + "collectives run on the host, through pinned memory: " + why_not_;
  return where + lane_->neighbourhood().description() +
         "; through pinned memory go reduce, gather, scatter, uneven parts, lists of all_to_all, messages, and what has "
         "no kernel";
}

}  // namespace ringdp::backend
