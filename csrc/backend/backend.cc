#include "backend/backend.h"

#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

#include <algorithm>
#include <cstring>
#include <functional>

#include "backend/compat.h"
#include "backend/errors.h"
#include "backend/gil.h"
#include "backend/process.h"
#include "backend/store_adapter.h"
#include "backend/tensors.h"
#include "transport/store.h"

namespace ringdp::backend {
namespace {

// From this number of calls on, a coalescing bracket drops those that are done: there is nothing left to wait for.
constexpr size_t kLongBatch = 1024;

// What a rank needs before it can connect to the others; when it fails, they are told not to wait for this rank.
comm::Runtime& ready(transport::Store& store, const GroupOptions& options, comm::GroupConfig& config) {
  try {
    config.settings = options.settings();
    return runtime();
  } catch (const std::exception& error) {
    comm::decline(store, config.rank, config.world, first_line(error));
    throw;
  }
}

int64_t elements(const std::vector<at::Tensor>& tensors) {
  int64_t n = 0;
  for (const at::Tensor& tensor : tensors) n += tensor.numel();
  return n;
}

// torch.profiler's record_param_comms event: which collective, on which group, how many elements. Cheap when no
// profiler is on. `title` is "ringdp:all_reduce"; the event carries the part after the colon. Called before the call is
// submitted: a collective's event has the number it is about to get, a message's that of the last collective before it.
void record_param_comms(const char* title, bool is_message, c10d::Backend& backend,
                        const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs) {
  if (!at::hasCallbacks()) return;
  const auto number = static_cast<int64_t>(backend.getSequenceNumberForGroup()) + !is_message;
  const auto sequence = std::make_tuple(number, is_message);
  const auto group = std::make_tuple(backend.getGroupUid(), backend.getGroupDesc());
  const char* const name = std::strchr(title, ':') + 1;
  const auto dtype = inputs.empty() ? at::kByte : inputs[0].scalar_type();
  const std::vector<int64_t> no_splits;
  auto from = inputs, to = outputs;
  RECORD_PARAM_COMMS_DATA(sequence, group, from, to, backend.getRank(), std::string(name), elements(inputs),
                          elements(outputs), dtype, no_splits, no_splits, -1, -1, backend.getSize());
}

}  // namespace

Backend::Backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const std::string& name,
                 c10::intrusive_ptr<GroupOptions> options)
    : c10d::Backend(rank, size), options_(std::move(options)) {
  guarded([&] {
    const Deadline deadline = Deadline::after(options_->timeout);
    transport::BoundedStore bounded(std::make_shared<StoreAdapter>(std::move(store)), deadline,
                                    runs_signal_handlers() ? run_signal_handlers : std::function<void()>());
    const auto& ranks = options_->global_ranks_in_group;
    comm::GroupConfig config{name, rank, size, {}, std::vector<int>(ranks.begin(), ranks.end())};
    comm::Runtime& threads = ready(bounded, *options_, config);
    group_ = comm::Group::create(threads, bounded, config, deadline);
  });
  backend::remember(group_);
  devices_ = DeviceCollectives::make(group_);
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
  devices_.reset();
}

Backend::Ends Backend::ends_of(c10d::OpType type, const char* title, const Tensors& inputs, Work::Result result,
                               const CallMemory& memory, std::optional<int> source) {
  Ends ends;
  if (memory.is_on_device()) {
    auto started = memory.start({getRank(), type, title, inputs, std::move(result), completion()}, source);
    ends.ready = std::move(started.ready);
    ends.work = std::move(started.work);
  } else {
    ends.work =
        c10::make_intrusive<Work>(getRank(), type, title, inputs, std::move(result), memory.on_host(), completion());
    ends.ending.epilogue = memory.epilogue();
  }
  ends.work->follow(ends.ending);
  return ends;
}

Backend::WorkPtr Backend::run(Call call) {
  return guarded([&] {
    record_param_comms(call.title, /*is_message=*/false, *this, call.inputs, call.result.tensors);
    comm::Request request;
    request.desc = std::move(call.desc);
    request.buffers = std::move(call.buffers);
    request.deadline = Deadline::after(timeout_of(call.timeout));
    request.digests = std::move(call.digests);
    const bool asynchronous = call.asynchronous || call.memory.is_on_device();
    request.asynchronous = asynchronous;
    const auto order = call.memory.order();
    Ends ends = ends_of(call.type, call.title, call.inputs, std::move(call.result), call.memory);
    request.ready = std::move(ends.ready);
    request.ending = std::move(ends.ending);
    const auto op = group_->submit(std::move(request));
    if (asynchronous) ends.work->end_event();
    ends.work->attach(group_, op, op->desc().seq);
    return remember(ends.work);
  });
}

Backend::WorkPtr Backend::run_in_place(Call call, const at::Tensor& memory) {
  call.buffers.inputs = {memory.data_ptr()};
  call.buffers.outputs = {memory.data_ptr()};
  return run(std::move(call));
}

std::chrono::milliseconds Backend::timeout_of(std::chrono::milliseconds asked) const {
  return asked == c10d::kUnsetTimeout ? options_->timeout : asked;
}

void Backend::place(Call& call, c10::Device device) {
  guarded([&] {
    DeviceCallPtr on_device = devices_->try_run(device, call.desc, timeout_of(call.timeout), call.same_place);
    if (on_device) call.memory.stay_on(std::move(on_device));
  });
}

void Backend::eagerConnectSingleDevice(at::Device device) {
  guarded([&] { devices_->bootstrap(device, options_->timeout); });
}

std::string Backend::description() const {
  const std::string devices = devices_->describe();
  return group_->description() + (devices.empty() ? "" : "\n" + devices);
}

void Backend::check_rank(int64_t rank, const char* what, const char* call) const {
  if (rank >= 0 && rank < getSize()) return;
  refuse(std::string(call) + ": invalid " + what + " " + std::to_string(rank) + " (expected a rank from 0 to " +
         std::to_string(getSize() - 1) + ")");
}

bool Backend::set_root(comm::OpDesc& desc, int64_t root, const char* call) const {
  check_rank(root, "root", call);
  desc.root = static_cast<int32_t>(root);
  return getRank() == root;
}

const Backend::Tensors& Backend::one_per_rank(const Lists& lists, const char* call, const char* which) const {
  if (lists.size() == 1 && lists[0].size() == static_cast<size_t>(getSize())) return lists[0];
  refuse(std::string(call) + ": expected one list of " + std::to_string(getSize()) + " " + which +
         " tensors (one per rank), got " + std::to_string(lists.empty() ? 0 : lists[0].size()));
}

Backend::WorkPtr Backend::barrier(const c10d::BarrierOptions& opts) {
  Call call = make_call(c10d::OpType::BARRIER, "ringdp:barrier", Collective::kBarrier, {}, flat_result({}), opts);
  if (opts.device && is_served(opts.device->type())) {
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
    // The wording of torch's own, which users know.
    if (absent.empty()) {
      throw_torch(Error(ErrorKind::kAborted, self + " successfully reached monitoredBarrier, but others did not: " +
                                                 error.what_without_backtrace()));
    }
    if (!wait_all_ranks) absent.resize(1);
    const auto timeout = opts.timeout == c10d::kUnsetTimeout ? options_->timeout : opts.timeout;
    std::string ranks;
    for (const int rank : absent) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
    throw_torch(Error(ErrorKind::kTimeout, self + " timed out in monitoredBarrier after " +
                                               std::to_string(timeout.count()) +
                                               " ms: " + (absent.size() > 1 ? "Ranks " : "Rank ") + ranks +
                                               " failed to pass monitoredBarrier. " + error.what_without_backtrace()));
  }
}

// Point-to-point messages run independently of the group's collectives and are matched by rank and tag.

Backend::WorkPtr Backend::send(Tensors& tensors, int destination, int tag) {
  return message(c10d::OpType::SEND, "ringdp:send", tensors, destination, tag);
}

Backend::WorkPtr Backend::recv(Tensors& tensors, int source, int tag) {
  if (source < 0) refuse("recv: invalid source " + std::to_string(source) + " (for any rank use recv_anysource)");
  return message(c10d::OpType::RECV, "ringdp:recv", tensors, source, tag);
}

Backend::WorkPtr Backend::recvAnysource(Tensors& tensors, int tag) {
  return message(c10d::OpType::RECVANYSOURCE, "ringdp:recvAnySource", tensors, comm::kAnySource, tag);
}

Backend::WorkPtr Backend::message(c10d::OpType type, const char* title, const Tensors& tensors, int peer, int tag) {
  const bool sends = type == c10d::OpType::SEND;
  const char* const name = sends ? "send" : "recv";
  const at::Tensor tensor = single(tensors, name);
  comm::MessageRequest request;
  request.peer = peer;
  request.tag = tag;
  request.dtype = checked_dtype(tensor, name);
  request.count = tensor.numel();
  CallMemory memory(*devices_);
  request.memory = (sends ? memory.read(tensor) : memory.write(tensor, name)).data_ptr();
  return guarded([&] {
    record_param_comms(title, /*is_message=*/true, *this, sends ? tensors : Tensors{}, sends ? Tensors{} : tensors);
    request.deadline = Deadline::after(options_->timeout);
    const auto source = sends ? std::nullopt : std::optional<int>(peer);
    Ends ends = ends_of(type, title, tensors, flat_result(tensors), memory, source);
    request.ready = std::move(ends.ready);
    request.ending = std::move(ends.ending);
    const auto sent = sends ? group_->send(std::move(request)) : group_->recv(std::move(request));
    ends.work->end_event();
    ends.work->attach(group_, sent, 0);
    return remember(ends.work);
  });
}

void Backend::startCoalescing() {
  std::vector<WorkPtr> left_over;  // from a bracket that an exception left open; destroyed without the lock
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
  // An exception may have left the bracket open: torch does not close it then.
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

// Memory: c10d's own interface of tensor allocation, which FSDP2 uses too, and Capabilities.

at::Tensor Backend::allocateTensor(long size, at::TensorOptions options) {
  if (!options.device().is_cpu()) {
    refuse("allocate_tensor: shares CPU memory only, not that of " + options.device().str() +
           ", which all ranks would have to make together; DDP's buckets and ZeroOptimizer's parameters are made so");
  }
  if (size < 0) refuse("allocate_tensor: " + std::to_string(size) + " elements; it must be 0 or more");
  return heap_allocator().empty(size, c10::typeMetaToScalarType(options.dtype()));
}

HeapAllocator& Backend::heap_allocator() {
  const auto heap = guarded([&] { return group_->heap(); });
  std::call_once(allocator_made_, [&] { allocator_ = new HeapAllocator(heap); });
  return *allocator_;
}

at::Tensor Backend::heap_view(int rank, int64_t offset, std::optional<int64_t> bytes) {
  guarded([&] { return group_->heap(); });
  const std::vector<std::byte*> heaps = group_->heaps();
  const int64_t most = group_->heap_bytes() - offset, wanted = bytes.value_or(most);
  if (rank < 0 || rank >= static_cast<int>(heaps.size()) || offset < 0 || wanted < 0 || wanted > most) {
    refuse("heap_view: there are no " + std::to_string(wanted) + " bytes at " + std::to_string(offset) +
           " in the heap of rank " + std::to_string(rank) + ": " + std::to_string(heaps.size()) + " heaps of " +
           std::to_string(group_->heap_bytes()) + " bytes are mapped");
  }
  return at::from_blob(
      heaps[rank] + offset, {wanted}, [mappings = group_->mappings()](void*) {}, at::kByte);
}

std::optional<int64_t> Backend::place_in_heap(const at::Tensor& tensor) const {
  if (!maps_all_heaps()) return std::nullopt;
  const auto base = reinterpret_cast<intptr_t>(group_->heaps()[getRank()]);
  const auto offset = reinterpret_cast<intptr_t>(tensor.const_data_ptr()) - base;
  const bool is_inside = offset >= 0 && offset + static_cast<int64_t>(tensor.nbytes()) <= group_->heap_bytes();
  return is_inside ? std::optional<int64_t>(offset) : std::nullopt;
}

int64_t Backend::heap_offset(const at::Tensor& tensor) {
  const auto offset = place_in_heap(tensor);
  if (!offset) refuse("heap_offset: the tensor is not in shared memory of this group");
  keep_heap_pages();
  group_->heap()->forbid_adoption();
  return *offset;
}

void Backend::keep_heap_pages() {
  guarded([&] { group_->heap()->keep_pages(); });
}

int64_t Backend::heap_room() const {
  return group_->has_heap() ? group_->heap_bytes() - group_->heap()->taken_bytes() : 0;
}

std::unique_ptr<SizedScope> Backend::share_tensors_of(std::vector<size_t> sizes) {
  if (getSize() == 1 || !group_->has_heap()) return nullptr;
  return std::make_unique<SizedScope>(heap_allocator(), std::move(sizes));
}

at::Tensor Backend::share_memory(int64_t elements, const at::TensorOptions& options) {
  if (options.device().is_cpu() || getSize() == 1) return {};
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  return guarded([&] { return devices_->share(options.device(), elements, dtype, options_->timeout); });
}

void Backend::reclaim_memory(c10::Device device) {
  if (!device.is_cpu()) guarded([&] { devices_->reclaim(options_->timeout); });
}

bool Backend::shares(const at::Tensor& tensor) const { return devices_->shares(tensor); }

// The index of a CPU device is -1; others belong to devices whose memory is not shared.
bool Backend::supportsTensorAlloc(c10::DeviceIndex device) { return device < 0 && group_->has_heap(); }

}  // namespace ringdp::backend
