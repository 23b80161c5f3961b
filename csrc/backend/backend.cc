#include "backend/backend.h"

#include <algorithm>

#include "backend/batch.h"
#include "backend/compat.h"
#include "backend/device/device_work.h"
#include "backend/device/natives.h"
#include "backend/device/served.h"
#include "backend/errors.h"
#include "backend/gil.h"
#include "backend/last_words.h"
#include "backend/process.h"
#include "backend/profile.h"
#include "backend/store_adapter.h"
#include "backend/tensors.h"
#include "transport/bounded_store.h"

namespace ringdp::backend {
namespace {

// Calls in one coalescing bracket from which on those that are over are let go: there is nothing to wait for.
constexpr size_t kLongBatch = 1024;

// What a rank needs before it can meet the others; without it they are told not to wait.
comm::Runtime& ready(transport::Store& store, const GroupOptions& options, comm::GroupConfig& config) {
  try {
    config.settings = options.settings();
    return runtime();
  } catch (const std::exception& error) {
    comm::decline(store, config.rank, config.world, first_line(error));
    throw;
  }
}

}  // namespace

Backend::Backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const std::string& name,
                 c10::intrusive_ptr<GroupOptions> options)
    : c10d::Backend(rank, size), options_(std::move(options)) {
  guarded([&] {
    const Deadline deadline = Deadline::after(options_->timeout);
    transport::BoundedStore bounded(std::make_shared<StoreAdapter>(std::move(store)), deadline);
    const auto& ranks = options_->global_ranks_in_group;
    comm::GroupConfig config{name, rank, size, {}, std::vector<int>(ranks.begin(), ranks.end())};
    comm::Runtime& threads = ready(bounded, *options_, config);
    group_ = comm::Group::create(threads, bounded, config, deadline);
  });
  backend::remember(group_);
  natives_ = std::make_unique<Natives>(group_);
  init();
}

void Backend::decline(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const std::string& why) {
  constexpr auto kPatience = std::chrono::seconds(5);  // with the store
  transport::BoundedStore bounded(std::make_shared<StoreAdapter>(std::move(store)), Deadline::after(kPatience));
  comm::decline(bounded, rank, size, why);
}

Backend::~Backend() {
  const ReleaseGil release;  // a finishing collective may drop a tensor, which needs it
  group_->leave();
  natives_.reset();
  lanes_.reset();
}

Backend::Ends Backend::ends_of(c10d::OpType type, const char* title, const Tensors& inputs, Work::Result result,
                               const CallMemory& memory, std::optional<int> source) {
  Ends ends;
  if (memory.is_on_device()) {
    const auto work = c10::make_intrusive<DeviceWork>(getRank(), type, title, inputs, std::move(result), memory,
                                                      memory.start(source), completion());
    ends.ready = work->ready();
    ends.work = work;
  } else {
    ends.work = c10::make_intrusive<Work>(getRank(), type, title, inputs, std::move(result), memory.on_host(),
                                          completion());
    ends.ending.epilogue = memory.epilogue();
  }
  ends.work->follow(ends.ending);
  return ends;
}

Backend::WorkPtr Backend::run(Call call) {
  return guarded([&] {
    record_param_comms(call.title, Kind::kCollective, *this, call.inputs, call.result.tensors);
    comm::Request request;
    request.desc = std::move(call.desc);
    request.buffers = std::move(call.buffers);
    request.deadline = Deadline::after(timeout_of(call.timeout));
    request.digests = std::move(call.digests);
    request.asynchronous = call.asynchronous || call.memory.is_on_device();
    const auto order = call.memory.order();
    Ends ends = ends_of(call.type, call.title, call.inputs, std::move(call.result), call.memory);
    request.ready = std::move(ends.ready);
    request.ending = std::move(ends.ending);
    const auto op = group_->submit(std::move(request));
    ends.work->attach(group_, op, op->desc().seq);
    return remember(ends.work);
  });
}

std::chrono::milliseconds Backend::timeout_of(std::chrono::milliseconds asked) const {
  return asked == c10d::kUnsetTimeout ? options_->timeout : asked;
}

void Backend::place(Call& call, c10::Device device) {
  const std::shared_ptr<Lane> lane = device.is_cpu() ? nullptr : lanes_->of(device);
  // No kernel has the mean of whole numbers: through the host.
  if (!lane || (call.desc.op == ReduceOp::kAvg && is_whole(call.desc.dtype))) return;
  guarded([&] {
    const bool captured = lane->is_capturing();
    const auto native = captured ? natives_->lane_in_capture(device, *lane, call.desc)
                                 : natives_->lane_for(device, lane, call.desc, timeout_of(call.timeout));
    if (!native) return;
    const bool averages = call.desc.op == ReduceOp::kAvg;
    const double divisor = call.desc.divisor != 0 ? call.desc.divisor : averages ? getSize() : 0;
    NativeQuestion question{Natives::problem_of(call.desc, getRank(), getSize()), divisor, timeout_of(call.timeout)};
    question.captured = captured;
    if (call.alike.defined()) question.segment = native->segment_of(call.alike, question.problem);
    call.memory.stay_on(native, question);
    call.desc.place = comm::Place::kDevices;
    call.desc.segment = question.segment.number;
    call.desc.segment_at = question.segment.at;
  });
}

void Backend::eagerConnectSingleDevice(at::Device device) {
  const std::shared_ptr<Lane> lane = device.is_cpu() ? nullptr : lanes_->of(device);
  if (lane) guarded([&] { natives_->meet(device, lane, options_->timeout); });
}

std::string Backend::description() const {
  const std::string devices = natives_->description();
  return group_->description() + (devices.empty() ? "" : "\n" + devices);
}

void Backend::check_rank(int64_t rank, const char* what, const char* call) const {
  if (rank >= 0 && rank < getSize()) return;
  refuse(std::string(call) + ": " + what + " " + std::to_string(rank) + " is no rank of this group of " +
         std::to_string(getSize()));
}

const Backend::Tensors& Backend::one_per_rank(const Lists& lists, const char* call, const char* which) const {
  if (lists.size() == 1 && lists[0].size() == static_cast<size_t>(getSize())) return lists[0];
  refuse(std::string(call) + ": wants one list of " + std::to_string(getSize()) + " " + which +
         " tensors (one per rank), got " + std::to_string(lists.empty() ? 0 : lists[0].size()));
}

Backend::WorkPtr Backend::barrier(const c10d::BarrierOptions& opts) {
  comm::OpDesc desc;
  desc.what = plan::Collective::kBarrier;
  Call call{c10d::OpType::BARRIER, "ringdp:barrier", desc, {}, {}, flat_result({}), memory(), opts.timeout,
            opts.asyncOp};
  if (opts.device && core_of(opts.device->type()) != nullptr) {
    place(call, *opts.device);
    call.memory.belong_to(*opts.device);
  }
  return run(std::move(call));
}

void Backend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  c10d::BarrierOptions own = opts;
  own.asyncOp = false;
  const bool failed_before = group_->error().has_value();
  try {
    barrier(own)->wait();
  } catch (const c10::DistBackendError& error) {
    if (failed_before) throw;
    std::vector<int> absent = group_->absent();
    const std::string self = "Rank " + std::to_string(getRank());
    // The words that users of torch's own know.
    if (absent.empty()) {
      throw_torch(Error(ErrorKind::kAborted, self + " successfully reached monitoredBarrier, but others did not: " +
                                                 error.what_without_backtrace()));
    }
    if (!wait_all_ranks) absent.resize(1);
    const auto timeout = opts.timeout == c10d::kUnsetTimeout ? options_->timeout : opts.timeout;
    std::string ranks;
    for (const int rank : absent) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
    throw_torch(Error(ErrorKind::kTimeout,
                      self + " timed out in monitoredBarrier after " + std::to_string(timeout.count()) + " ms: " +
                          (absent.size() > 1 ? "Ranks " : "Rank ") + ranks + " failed to pass monitoredBarrier. " +
                          error.what_without_backtrace()));
  }
}

void Backend::startCoalescing() {
  std::vector<WorkPtr> left_over;  // of a bracket that an exception left open; ends without the lock
  const std::lock_guard lock(batch_mutex_);
  coalescing_ = true;
  batch_.swap(left_over);
}

Backend::WorkPtr Backend::endCoalescing() {
  const std::lock_guard lock(batch_mutex_);
  coalescing_ = false;
  return c10::make_intrusive<BatchWork>(getRank(), std::move(batch_));
}

Backend::WorkPtr Backend::remember(WorkPtr work) {
  const std::lock_guard lock(batch_mutex_);
  if (!coalescing_) return work;
  // An exception may have left the bracket open for good: torch does not close it then.
  if (batch_.size() >= kLongBatch) {
    const auto is_over = [](const WorkPtr& old) { return old->isCompleted() && old->isSuccess(); };
    batch_.erase(std::remove_if(batch_.begin(), batch_.end(), is_over), batch_.end());
  }
  batch_.push_back(work);
  return work;
}

c10::intrusive_ptr<c10d::Backend> Backend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                 const std::vector<int>& ranks,
                                                 const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  for (const int rank : ranks) check_rank(rank, "member", "split");
  const auto own = c10::dynamic_intrusive_pointer_cast<GroupOptions>(opts);
  if (!own) refuse("split: the options must be ringdp.Options");
  const auto mine = std::find(ranks.begin(), ranks.end(), getRank());
  if (mine == ranks.end()) return nullptr;
  return c10::make_intrusive<Backend>(store, static_cast<int>(mine - ranks.begin()), static_cast<int>(ranks.size()),
                                      own->group_name, own->copy());
}

c10d::ErrorType Backend::getError() {
  const auto error = group_->error();
  if (!error) return c10d::ErrorType::SUCCESS;
  if (error->kind() == ErrorKind::kTimeout) return c10d::ErrorType::TIMEOUT;
  return error->kind() == ErrorKind::kPeerLost ? c10d::ErrorType::REMOTE_ERROR : c10d::ErrorType::COMM_ERROR;
}

void Backend::abort() {
  group_->fail(Error(ErrorKind::kAborted, "rank " + std::to_string(getRank()) + " aborted the process group"));
}

void Backend::shutdown() { group_->leave(last_words()); }

}  // namespace ringdp::backend
