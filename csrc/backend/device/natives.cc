#include "backend/device/natives.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>

#include "backend/device/overseer.h"
#include "backend/errors.h"
#include "backend/gil.h"
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
std::string Natives::why_never() const {
  if (group_->settings().window_bytes == 0) return "window_bytes is 0";
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
  why_not_ = why_never();
  if (why_not_.empty()) {
    const c10::DeviceGuard current(device);
    auto neighbourhood = gpu::Neighbourhood::meet(lane->core().functions(), device.index(), surroundings(timeout));
    why_not_ = neighbourhood->why_not();
    if (why_not_.empty()) lane_ = std::make_shared<NativeLane>(std::move(lane), group_, std::move(neighbourhood));
  }
  device_ = device;
}

std::shared_ptr<NativeLane> Natives::lane_for(c10::Device device, std::shared_ptr<Lane> lane, const comm::OpDesc& desc,
                                              std::chrono::milliseconds timeout) {
  if (is_number_of_ones(desc.dtype)) return nullptr;
  meet(device, std::move(lane), timeout);
  const std::lock_guard lock(mutex_);
  return why_staged(device, desc).empty() ? lane_ : nullptr;
}

// Under mutex_.
std::string Natives::why_staged(c10::Device device, const comm::OpDesc& desc) const {
  if (!lane_) return why_not_;
  if (device != *device_) return "its tensors are not on " + device_->str();
  if (is_number_of_ones(desc.dtype)) return std::string("a failure would leave a number in ") + name_of(desc.dtype);
  return lane_->neighbourhood().why_not(problem_of(desc, group_->rank(), group_->world()));
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
  if (lane_->neighbourhood().on_streams()) {
    return "ranks share a device, whose streams wait for what the host counts (STREAM), which no graph can replay" +
           outside;
  }
  return "";
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

gpu::Surroundings Natives::surroundings(std::chrono::milliseconds timeout) const {
  const Deadline deadline = Deadline::after(timeout);
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
         "; through pinned memory go all_to_all of lists or with sizes, messages, and what has no kernel";
}

}  // namespace ringdp::backend
