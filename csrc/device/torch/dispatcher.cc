#include "device/torch/dispatcher.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "backend/errors.h"
#include "backend/gil.h"
#include "backend/process.h"
#include "base/log.h"
#include "base/settings.h"
#include "device/torch/device_work.h"
#include "device/torch/queued_call.h"
#include "device/torch/watchdog.h"
#include "transport/unix_socket.h"

namespace ringdp::backend {
namespace {

constexpr std::chrono::seconds kDisposal{1};  // for what finished calls have held of symmetric buffers to be gone

// In these types the bytes of poisoned memory (device/kernel/poison.h) are not NaN.
bool is_number_of_ones(DType dtype) { return dtype == DType::kF8E4M3FNUZ || dtype == DType::kF8E5M2FNUZ; }

// PREMUL_SUM is a sum of tensors that are multiplied before.
ReduceOp sum_of(ReduceOp op) { return op == ReduceOp::kPremulSum ? ReduceOp::kSum : op; }

std::string too_many(int ranks) {
  return std::to_string(ranks) + " ranks, and at most " + std::to_string(plan::kMaxDeviceRanks) +
         " share memory of devices";
}

struct Holder {
  std::shared_ptr<gpu::DeviceMemory> memory;
  c10::Device device;

  ~Holder() {
    if (memory.use_count() > 1) return;  // the group frees it
    const ReleaseGil release;
    const QuietDeviceGuard here(device);
    try {
      c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
    } catch (const std::exception& error) {  // at process exit, or the device is broken, which is reported elsewhere
      log_line(LogLevel::kDebug, "ringdp", std::string("the device of a tensor no longer works: ") + error.what());
    }
    memory.reset();
  }
};

// A flat tensor of zeros. Freeing it, on any thread, releases the memory; the last release waits for the device,
// because nothing else orders it after the work of streams that still use the memory.
at::Tensor tensor_in(std::shared_ptr<gpu::DeviceMemory> memory, int64_t elements, at::ScalarType dtype,
                     c10::Device device) {
  char* const data = memory->data();
  auto* const holder = new Holder{std::move(memory), device};
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  return at::from_blob(
      data, {elements}, [holder](void*) { delete holder; }, options, device);
}

}  // namespace

std::unique_ptr<DeviceCollectives> DeviceCollectives::make(std::shared_ptr<comm::Group> group) {
  return std::make_unique<DeviceDispatcher>(std::move(group));
}

DeviceDispatcher::~DeviceDispatcher() {
  if (queue_) Watchdog::instance().teardown(std::move(queue_));
}

// Depends only on what all ranks know.
std::string DeviceDispatcher::why_no_shared_memory() const {
  if (group_->world() > plan::kMaxDeviceRanks) return too_many(group_->world());
  return group_->world() > 1 ? group_->why_no_shared_heaps() : "";
}

// For a group of several hosts; only what this rank knows.
std::string DeviceDispatcher::why_no_sharing_on_host() const {
  const int members = group_->ranks_on_host();
  if (members > plan::kMaxDeviceRanks) return too_many(members);
  return members == 1 || group_->has_heap() ? "" : "heap_bytes is 0, or there was no address space for a heap";
}

void DeviceDispatcher::bootstrap(c10::Device device, std::chrono::milliseconds timeout) {
  if (const PoolPtr pool = pools_.of(device)) bootstrap(pool, timeout);
}

void DeviceDispatcher::bootstrap(const PoolPtr& pool, std::chrono::milliseconds timeout) {
  const ReleaseGil release;  // peers that are threads may need it to get here
  const std::lock_guard lock(mutex_);
  if (device_) return;
  if (group_->settings().window_bytes == 0) {
    why_not_ = "window_bytes is 0";
  } else if (group_->settings().order == Order::kTree) {
    why_not_ = "kernels sum in rank order, and order=tree was asked for";
  } else {
    const c10::DeviceGuard current(pool->device());
    auto streams = std::make_unique<const QueueStreams>(*pool);
    auto ranks = bootstrap_peers(*pool, timeout);
    if (why_not_.empty()) {
      queue_ = std::make_shared<DeviceQueue>(pool, group_, std::move(ranks), std::move(streams));
    }
  }
  device_ = pool->device();
}

// By shared memory, else by NCCL.
std::unique_ptr<gpu::DeviceRanks> DeviceDispatcher::bootstrap_peers(StreamPool& pool,
                                                                    std::chrono::milliseconds timeout) {
  const gpu::Functions& functions = pool.core().functions();
  const int device = pool.device().index();
  const std::string apart = why_no_shared_memory();
  std::unique_ptr<gpu::DeviceRanks> ranks;
  if (apart.empty()) {
    ranks = gpu::PeerMemory::bootstrap(functions, device, context(timeout, comm::Place::kMeeting));
  } else if (group_->settings().asks_for_tls()) {
    why_not_ = apart + "; TLS is on, and NCCL's connections would not be encrypted";
    return nullptr;
  } else {
    ranks = gpu::NcclRanks::bootstrap(functions, device, context_of_nccl(pool, timeout));
  }
  why_not_ = ranks->why_not();
  if (!why_not_.empty() && !apart.empty()) why_not_ = apart + "; " + why_not_;
  return ranks;
}

DeviceCallPtr DeviceDispatcher::stage(c10::Device device) {
  const PoolPtr pool = pools_.of(device);
  if (!pool) return nullptr;
  if (pool->is_capturing()) {
    pool->refuse_capture("this call goes through host memory, which no graph can replay; call it outside the capture");
  }
  return std::make_shared<PreparedCall>(pool);
}

DeviceCallPtr DeviceDispatcher::try_run(c10::Device device, comm::OpDesc& desc, std::chrono::milliseconds timeout,
                                        const at::Tensor& alike) {
  const PoolPtr pool = pools_.of(device);
  const bool averages = desc.op == ReduceOp::kAvg;
  if (!pool || (averages && is_whole(desc.dtype))) return nullptr;  // no kernel averages integers
  CollectiveRequest request;
  request.captured = pool->is_capturing();
  const QueuePtr queue = request.captured ? queue_in_capture(*pool, desc) : queue_for(pool, desc, timeout);
  if (!queue) return nullptr;
  request.problem = problem_of(desc);
  request.divisor = desc.divisor != 0 ? desc.divisor : averages ? group_->world() : 0;
  request.timeout = timeout;
  if (alike.defined()) request.buffer = queue->buffer_of(alike, request.problem);
  desc.place = comm::Place::kDevices;
  desc.buffer = request.buffer.number;
  desc.buffer_at = request.buffer.at;
  return std::make_shared<PreparedCall>(queue, [queue, request](DeviceTensors tensors) {
    return std::make_unique<QueuedCollective>(queue, request, std::move(tensors));
  });
}

DeviceCallPtr DeviceDispatcher::try_step(const at::Tensor& gradients, double divisor, const ShardStep& step,
                                         std::chrono::milliseconds timeout, std::string* why_not) {
  const QueuePtr queue = queue_for_step(gradients.device(), timeout, why_not);
  if (!queue) return nullptr;
  const auto make = [=, rank = group_->rank(), world = group_->world()](const DeviceTensors&) {
    return std::make_unique<QueuedStep>(queue, gradients, divisor, step, rank, world, timeout);
  };
  return std::make_shared<PreparedCall>(queue, make);
}

std::string DeviceDispatcher::why_no_step(c10::Device device, std::chrono::milliseconds timeout) {
  std::string why_not;
  queue_for_step(device, timeout, &why_not);
  return why_not;
}

DeviceDispatcher::QueuePtr DeviceDispatcher::queue_for(const PoolPtr& pool, const comm::OpDesc& desc,
                                                       std::chrono::milliseconds timeout) {
  if (is_number_of_ones(desc.dtype)) return nullptr;
  bootstrap(pool, timeout);
  const ReleaseGil release;  // a rank that shares memory holds the lock
  const std::lock_guard lock(mutex_);
  return why_staged(pool->device(), desc).empty() ? queue_ : nullptr;
}

DeviceDispatcher::QueuePtr DeviceDispatcher::queue_for_step(c10::Device device, std::chrono::milliseconds timeout,
                                                            std::string* why_not) {
  const PoolPtr pool = pools_.of(device);
  if (!pool) {
    *why_not = "tensors on " + device.str() + " are not of a device that ringdp serves";
    return nullptr;
  }
  if (pool->is_capturing()) {
    pool->refuse_capture(
        "the host counts a step and its settings, which no graph can replay; step outside the capture");
  }
  bootstrap(pool, timeout);
  const ReleaseGil release;
  const std::lock_guard lock(mutex_);
  const gpu::PeerMemory* const sharing = queue_ ? queue_->ranks().sharing() : nullptr;
  *why_not = !queue_ ? why_not_ : sharing ? sharing->why_no_step() : why_no_shared_memory();
  if (device != *device_) *why_not = device.str() + " is not this rank's first device, " + device_->str();
  return why_not->empty() ? queue_ : nullptr;
}

// Under mutex_.
std::string DeviceDispatcher::why_staged(c10::Device device, const comm::OpDesc& desc) const {
  if (!queue_) return why_not_;
  if (device != *device_) return "its tensors are not on " + device_->str();
  if (is_number_of_ones(desc.dtype)) return std::string("a failure would leave a number in ") + name_of(desc.dtype);
  return queue_->ranks().why_not(problem_of(desc));
}

DeviceDispatcher::QueuePtr DeviceDispatcher::queue_in_capture(const StreamPool& pool, const comm::OpDesc& desc) const {
  const ReleaseGil release;  // a rank in bootstrap() holds the lock, and may need it
  const std::lock_guard lock(mutex_);
  const std::string why_not = why_not_in_graph(pool.device(), desc);
  if (!why_not.empty()) pool.refuse_capture(why_not);
  return queue_;
}

// Under mutex_.
std::string DeviceDispatcher::why_not_in_graph(c10::Device device, const comm::OpDesc& desc) const {
  if (!device_) {
    return "the first call on a device is collective and allocates memory; make one before "
           "the capture";
  }
  const std::string outside = "; call it outside the capture";
  if (desc.what == plan::Collective::kBarrier) {
    return "the host waits for a barrier, which no graph can replay" + outside;
  }
  const std::string staged = why_staged(device, desc);
  if (!staged.empty()) return "this call goes through host memory, which no graph can replay: " + staged + outside;
  const gpu::PeerMemory* const sharing = queue_->ranks().sharing();
  if (sharing == nullptr) return "ranks send to each other by NCCL, which ringdp does not capture" + outside;
  if (sharing->on_streams()) {
    return "ranks share a device, whose streams wait for what the host counts (STREAM), which no graph can replay" +
           outside;
  }
  return "";
}

at::Tensor DeviceDispatcher::share(c10::Device device, int64_t elements, at::ScalarType dtype,
                                   std::chrono::milliseconds timeout) {
  const PoolPtr pool = pools_.of(device);
  if (!pool) return {};
  bootstrap(pool, timeout);
  const ReleaseGil release;
  wait_for_disposal(Deadline::after(kDisposal));
  const std::lock_guard lock(mutex_);
  if (buffers() == nullptr || device != *device_) return {};
  const c10::DeviceGuard current(device);
  const int64_t bytes = checked_mul(elements, static_cast<int64_t>(c10::elementSize(dtype)));
  auto memory = buffers()->make(bytes, context(timeout, comm::Place::kSharing));
  return memory ? tensor_in(std::move(memory), elements, dtype, device) : at::Tensor();
}

void DeviceDispatcher::reclaim(std::chrono::milliseconds timeout) {
  const ReleaseGil release;
  wait_for_disposal(Deadline::after(kDisposal));
  const std::lock_guard lock(mutex_);
  if (buffers() == nullptr) return;
  const c10::DeviceGuard current(*device_);
  buffers()->reclaim(context(timeout, comm::Place::kSharing));
}

bool DeviceDispatcher::shares(const at::Tensor& tensor) const {
  const ReleaseGil release;  // a rank that shares memory holds the lock, and may need it
  const std::lock_guard lock(mutex_);
  if (buffers() == nullptr || tensor.device() != *device_) return false;
  return buffers()->find(tensor.const_data_ptr(), static_cast<int64_t>(tensor.nbytes())).has_value();
}

plan::Problem DeviceDispatcher::problem_of(const comm::OpDesc& desc) const {
  plan::Problem problem;
  problem.what = desc.what;
  problem.dtype = plan::is_reduction(desc.what) ? desc.dtype : DType::kU8;
  problem.op = plan::is_reduction(desc.what) ? sum_of(desc.op) : ReduceOp::kSum;
  problem.rank = group_->rank();
  problem.world = group_->world();
  problem.root = desc.root;
  const int64_t count = desc.counts.empty() ? desc.count : *std::max_element(desc.counts.begin(), desc.counts.end());
  problem.count = plan::is_reduction(desc.what) ? count : checked_mul(count, size_of(desc.dtype));
  return problem;
}

gpu::NcclBootstrapContext DeviceDispatcher::context_of_nccl(StreamPool& pool, std::chrono::milliseconds timeout) const {
  const Settings& settings = group_->settings();
  const Deadline deadline = Deadline::after(timeout);
  gpu::NcclBootstrapContext context;
  context.rank = group_->rank();
  context.world = group_->world();
  context.window_bytes = settings.window_bytes;
  context.most_blocks = static_cast<int>(settings.blocks);
  context.link_settings = link_settings();
  context.library = read_env("RINGDP_NCCL").value_or("");
  context.stream = pool.native(pool.inputs());
  context.deadline = deadline;
  context.all_gather = [this, deadline](const std::string& own) {
    return all_gather(own, comm::Place::kMeeting, deadline);
  };
  context.with_device = [device = pool.device()](const std::function<void()>& run) {
    const c10::DeviceGuard current(device);
    run();
  };
  context.still_there = [this] {
    if (const auto error = group_->error()) throw *error;
  };
  context.on_host = [this, deadline](gpu::HostAllGather& gather) { return context_on_host(gather, deadline); };
  context.why_not_on_host = why_no_sharing_on_host();
  return context;
}

// With hosts where the CPU uses the hierarchy, too: at any size, or above direct_bytes (collective/select.h).
plan::LinkSettings DeviceDispatcher::link_settings() const {
  const Settings& settings = group_->settings();
  const WireType wire = group_->choice(plan::Collective::kAllReduce, 0).wire;  // in force
  plan::LinkSettings link_settings = {settings.algorithm, settings.order, wire, {}, -1};
  const size_t hosts = group_->hosts().size();
  if (hosts < 2 || hosts == static_cast<size_t>(group_->world())) return link_settings;
  for (const int64_t bytes : {int64_t{0}, settings.thresholds.direct_bytes + 1}) {
    const collective::Choice choice = group_->choice(plan::Collective::kAllReduce, bytes);
    if (choice.algorithm != AlgorithmChoice::kHierarchy) continue;
    link_settings.hosts = group_->hosts();
    link_settings.hierarchy_beyond = bytes - 1;
    break;
  }
  return link_settings;
}

gpu::BootstrapContext DeviceDispatcher::context(std::chrono::milliseconds timeout, comm::Place place) const {
  const Deadline deadline = Deadline::after(timeout);
  gpu::BootstrapContext context = context_of(0, group_->world(), deadline);
  context.all_gather = [this, place, deadline](const std::string& own) { return all_gather(own, place, deadline); };
  return context;
}

gpu::BootstrapContext DeviceDispatcher::context_on_host(gpu::HostAllGather& gather, Deadline deadline) const {
  gpu::BootstrapContext context = context_of(gather.first(), gather.members(), deadline);
  context.all_gather = [&gather](const std::string& own) { return gather.gather(own); };
  return context;
}

// The context of `world` ranks of one host, from rank `first` on.
gpu::BootstrapContext DeviceDispatcher::context_of(int first, int world, Deadline deadline) const {
  gpu::BootstrapContext context;
  context.rank = group_->rank() - first;
  context.world = world;
  context.window_bytes = group_->settings().window_bytes;
  context.most_blocks = static_cast<int>(group_->settings().blocks);
  if (context.world == 1) {
    context.pass_fds = [](const auto&, int) { return std::vector<UniqueFd>(1); };
    return context;
  }
  const auto sockets = std::make_shared<transport::FdExchange>();
  context.socket = sockets->name();
  context.pass_fds = [this, sockets, first, deadline](const std::vector<std::string>& names, int own) {
    const auto admit = [this, first](int socket, int rank) { return group_->is_peer_process(socket, first + rank); };
    const auto still_there = [this] {
      if (const auto error = group_->error()) throw *error;
    };
    return sockets->run(group_->rank() - first, names, own, admit, deadline, still_there);
  };
  context.heap = group_->heap();
  context.heaps = group_->heaps();
  context.heap_bytes = group_->heap_bytes();
  context.mappings = group_->mappings();
  context.wait_for_device = [device = device_] {
    if (device) c10::impl::VirtualGuardImpl(device->type()).synchronizeDevice(device->index());
  };
  return context;
}

std::vector<std::string> DeviceDispatcher::all_gather(const std::string& own, comm::Place place,
                                                      Deadline deadline) const {
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
std::string DeviceDispatcher::describe_sharing() const {
  if (buffers() == nullptr) return "";
  const std::string why_not = buffers()->why_not();
  if (buffers()->count() == 0 && why_not.empty()) return "";
  return "; " + std::to_string(buffers()->bytes()) + " bytes of each device, in " + std::to_string(buffers()->count()) +
         " symmetric buffers, are shared and not copied" +
         (why_not.empty() ? "" : " (another could not be allocated: " + why_not + ")");
}

std::string DeviceDispatcher::describe() const {
  const ReleaseGil release;
  const std::lock_guard lock(mutex_);
  if (!device_) return "";
  const std::string where = "tensors on " + device_->str() + ": ";
  const std::string caveat = caveat_of_queues().empty() ? "" : "; " + caveat_of_queues();
  if (!queue_) return where + "collectives run on the host, through pinned memory: " + why_not_ + caveat;
  return where + queue_->ranks().description() + describe_sharing() +
         "; all_to_all of lists or with sizes, messages, and calls without a kernel go through pinned memory" + caveat;
}

}  // namespace ringdp::backend
