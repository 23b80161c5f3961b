#include "device/runtime/peer_memory.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "device/runtime/launch.h"
#include "device/runtime/peer_info.h"
#include "device/runtime/signature.h"

namespace ringdp::gpu {
namespace {

// Where only neighbours on a ring reach each other.
bool has_ring(plan::Collective what) { return plan::can_plan(plan::DeviceAlgorithm::kRankRing, what); }

// As another clause of a description; or nothing.
std::string behind(const std::string& clause) { return clause.empty() ? "" : "; " + clause; }

// Keeps what peers may still access until the process ends, reachable for leak checkers.
struct Kept {
  std::unique_ptr<Arena> arena;
  std::unique_ptr<OwnPage> page;
  std::unique_ptr<SymmetricBuffers> buffers;
  std::unique_ptr<MappedPages> mapped;
};

void keep(Kept one) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<Kept>;
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(one));
}

bool all_by_fd(const std::vector<PeerInfo>& infos) {
  return std::all_of(infos.begin(), infos.end(), [](const PeerInfo& info) { return info.memory.needs_fd != 0; });
}

plan::DeviceTopology topology_of(const ArenaLayout& layout, int world, int executor, Reach reach) {
  plan::DeviceTopology topology;
  topology.world = world;
  topology.full_mesh = reach == Reach::kAll;
  topology.can_push = executor == RD_GPU_SPIN;
  topology.stage_bytes = layout.stage_bytes;
  topology.pushed_bytes = layout.pushed_bytes;
  return topology;
}

}  // namespace

PeerMemory::PeerMemory(const Functions& functions, int device, const BootstrapContext& context)
    : functions_(functions),
      device_(device),
      rank_(context.rank),
      world_(context.world),
      most_blocks_(context.most_blocks),
      layout_(ArenaLayout::of(context.window_bytes, context.world)) {}

PeerMemory::~PeerMemory() {
  if (!stays_) teardown();
  if (!arena_ || (!stays_ && is_unmapped_by_peers())) return;
  keep({std::move(arena_), std::move(page_), std::move(buffers_), std::move(mapped_pages_)});
}

std::string PeerMemory::description() const {
  if (!why_not_.empty()) return "collectives run on the host: " + why_not_;
  return placement_.why +
         (reach_ == Reach::kAll ? "; all ranks reach each other" : "; ring neighbours reach each other") +
         behind(links_.description) + behind(plan::text_of_limits(topology_)) +
         (world_ == 1 || outlives_ranks_ ? "" : ", by legacy IPC: a rank that is killed may break the others' devices");
}

std::string PeerMemory::why_not(const plan::Problem& problem) const {
  if (!why_not_.empty()) return why_not_;
  if (plan::is_reduction(problem.what)) {
    int reduces = 0;
    require(functions_, functions_.reduces(static_cast<int>(problem.dtype), static_cast<int>(problem.op), &reduces));
    if (!reduces) return std::string("no kernel for ") + name_of(problem.op) + " on " + name_of(problem.dtype);
  }
  if (reach_ == Reach::kAll || has_ring(problem.what)) return "";
  return std::string(plan::name_of(problem.what)) + " needs every pair of devices to reach each other";
}

plan::DeviceChoice PeerMemory::choose(const plan::Problem& problem) const {
  return plan::select_device_plan(topology_, problem.what, problem.count * size_of(problem.dtype));
}

StageOf PeerMemory::stage_of(const plan::Problem& whole) const {
  return [this, algorithm = choose(whole).algorithm](const plan::Problem& piece) {
    return plans_.plan_for(algorithm, piece)->stage_bytes;
  };
}

Pieces PeerMemory::cut(const plan::Problem& problem) const {
  return gpu::cut(stage_of(problem), problem, {layout_.window, layout_.stage_bytes});
}

std::optional<Pieces> PeerMemory::cut_in_buffer(const plan::Problem& problem) const {
  return gpu::cut_in_buffer(stage_of(problem), problem, layout_.stage_bytes);
}

bool PeerMemory::runs_on_own_tensors(const plan::Problem& piece, const plan::DeviceChoice& choice) const {
  return plan::is_on_own_tensors(choice.algorithm, piece.what, piece.world);
}

std::string PeerMemory::why_no_step() const {
  if (!why_not_.empty()) return why_not_;
  return reach_ == Reach::kAll ? "" : "it needs every pair of devices to reach each other";
}

std::string PeerMemory::why_no_common_end() const { return world_ == 1 || pages_serve_ ? "" : why_no_pages_; }

Pieces PeerMemory::cut_step(int64_t count) const { return gpu::cut_step(world_, count, layout_.window); }

Addresses PeerMemory::addresses() const {
  Addresses found;
  for (int rank = 0; rank < world_; ++rank) {
    char* const memory = memory_[static_cast<size_t>(rank)];
    if (on_streams() && mapped_pages_) found.flags[rank] = &mapped_pages_->on_device(rank)->flags;
    if (memory == nullptr) continue;
    found.window[rank] = memory;
    found.stage[rank] = memory + layout_.stage;
    found.pushed[rank] = memory + layout_.pushed;
    if (found.flags[rank] == nullptr) found.flags[rank] = reinterpret_cast<Flags*>(memory + layout_.flags);
  }
  found.pushed_bytes = layout_.pushed_bytes;
  found.epoch = reinterpret_cast<Epoch*>(arena_->memory() + layout_.epoch);
  found.abort = abort_on_device(rank_);
  found.expired = arena_->expired_on_device();
  return found;
}

// Peers write results there directly, without a copy that could be poisoned: so an abort of one rank must reach all.
Addresses PeerMemory::addresses_in(const BufferRef& buffer) const {
  Addresses found = addresses();
  const std::vector<char*> memory = buffers_->addresses(buffer.number);
  for (int rank = 0; rank < world_; ++rank) {
    found.window[rank] = memory[static_cast<size_t>(rank)] + buffer.at;
    found.aborts[rank] = abort_on_device(rank);
  }
  return found;
}

Launched PeerMemory::launch(const Piece& piece, const plan::DeviceChoice& choice, void* stream) {
  return launch_at(piece.buffer.number == 0 ? addresses() : addresses_in(piece.buffer), piece, choice, stream);
}

Launched PeerMemory::launch_at(const Addresses& found, const Piece& piece, const plan::DeviceChoice& choice,
                               void* stream) {
  const auto plan = plans_.plan_for(choice.algorithm, piece.problem);
  const int blocks = on_streams() ? placement_.blocks : blocks_of(piece.problem, choice.algorithm, placement_.blocks);
  const LaunchFacts facts = {piece.input_at,  piece.output_at,  piece.divisor,           piece.deadline_ns,
                             blocks,          launches_ + 1,    piece.captured,          piece.input_stride,
                             piece.own_input, piece.own_output, placement_.spans_devices};
  const Work work = work_of(*plan, found, facts);
  require(functions_, functions_.run(&work, sizeof work, static_cast<int>(plan->dtype), static_cast<int>(plan->op),
                                     placement_.executor, stream));
  return {plan, ++launches_};
}

Launched PeerMemory::launch_barrier(uint64_t deadline_ns, void* stream, bool ends_all) {
  Piece nothing;
  nothing.problem.what = plan::Collective::kBarrier;
  nothing.problem.rank = rank_;
  nothing.problem.world = world_;
  nothing.deadline_ns = deadline_ns;
  Addresses found = addresses();
  for (int rank = 0; rank < world_ && ends_all; ++rank) found.aborts[rank] = abort_on_device(rank);
  return launch_at(found, nothing, choose(nothing.problem), stream);
}

void PeerMemory::step(const StepFacts& facts, void* stream) const {
  const AdamWork work = adam_work_of(rank_, world_, addresses(), facts);
  require(functions_, functions_.adam_step(&work, sizeof work, stream));
}

void PeerMemory::mark_turn(uint32_t number, void* stream) const {
  require(functions_, functions_.write(&arena_->signals().turn, number, stream));
}

uint32_t PeerMemory::turn() const { return __atomic_load_n(&arena_->signals().turn, __ATOMIC_ACQUIRE); }

void PeerMemory::await_release(uint32_t number, void* stream) const {
  require(functions_, functions_.await(&arena_->signals().released, number, stream));
}

void PeerMemory::poison(void* memory, int64_t bytes, void* stream) const {
  require(functions_, functions_.poison(memory, static_cast<size_t>(bytes), abort_on_device(rank_), stream));
}

void PeerMemory::deliver(void* to, const void* from, int64_t bytes, void* stream) const {
  require(functions_, functions_.deliver(to, from, static_cast<size_t>(bytes), abort_on_device(rank_), stream));
}

void PeerMemory::release(uint32_t number) { __atomic_store_n(&arena_->signals().released, number, __ATOMIC_RELEASE); }

// Sets the abort words of all ranks before it releases this stream, which then posts to its peers as if it had
// finished, and before the caller gets back memory that peers may still read.
void PeerMemory::abort() {
  __atomic_store_n(&arena_->signals().abort, 1u, __ATOMIC_RELEASE);
  for (HostPage* const page : pages_) __atomic_store_n(&page->abort, 1u, __ATOMIC_RELEASE);
  if (on_streams() && page_) release_waits(page_->page().flags);
}

bool PeerMemory::aborted() const {
  const uint32_t& word = pages_serve_ ? page_->page().abort : arena_->signals().abort;
  return __atomic_load_n(&word, __ATOMIC_ACQUIRE) != 0;
}

uint32_t* PeerMemory::abort_on_device(int rank) const {
  return pages_serve_ ? &mapped_pages_->on_device(rank)->abort : arena_->abort_on_device();
}

std::optional<Expired> PeerMemory::expired() const {
  const Expired& record = arena_->signals().expired;
  if (__atomic_load_n(&record.set, __ATOMIC_ACQUIRE) != 2) return std::nullopt;
  return record;
}

std::optional<Expired> PeerMemory::waits_for(const Launched& launch) const {
  if (!on_streams() || !page_) return std::nullopt;
  const auto waits = waited_for(launch, page_->page().flags);
  if (!waits || !has_posted(launch, waits->step)) return std::nullopt;
  return waits;
}

// Whether this rank's stream has reached that step: its earlier posts have arrived.
bool PeerMemory::has_posted(const Launched& launch, int step) const {
  for (int s = 0; s < step; ++s) {
    const plan::DeviceStep& post = launch.plan->steps[static_cast<size_t>(s)];
    if (post.verb != plan::DeviceVerb::kPost) continue;
    const Flag& flag = pages_[static_cast<size_t>(post.peer)]->flags.of[post.slot][0][rank_];
    if (__atomic_load_n(&flag.value, __ATOMIC_ACQUIRE) < stream_value(launch.epoch, post)) return false;
  }
  return true;
}

// How the ranks of a host share device memory, and how they unmap it.

std::unique_ptr<PeerMemory> PeerMemory::bootstrap(const Functions& functions, int device,
                                                  const BootstrapContext& context) {
  std::unique_ptr<PeerMemory> peer_memory(new PeerMemory(functions, device, context));
  // By descriptor first: such memory lasts as long as somebody maps it, also when the rank that shared it is killed.
  if (peer_memory->try_sharing(RD_GPU_SHARE_FD, context) || peer_memory->late_) return peer_memory;
  const std::string by_descriptor = peer_memory->why_not_;
  if (!peer_memory->try_sharing(RD_GPU_SHARE_AUTO, context) && peer_memory->why_not_ != by_descriptor) {
    peer_memory->why_not_ = by_descriptor + "; and by legacy IPC: " + peer_memory->why_not_;
  }
  return peer_memory;
}

bool PeerMemory::try_sharing(int sharing, const BootstrapContext& context) {
  why_not_.clear();
  UniqueFd own;
  const PeerInfo info = offer(sharing, context, &own);
  const std::vector<PeerInfo> infos = peer_infos_from(context.all_gather(to_bytes(info)));
  why_not_ = gpu::why_not(infos);
  if (why_not_.empty()) {
    try {
      placement_ = place(infos, most_blocks_);
    } catch (const Error&) {
      drop_own();
      throw;
    }
    why_not_ = placement_.why_not;
  }
  if (!why_not_.empty()) {  // the same on all ranks, none of which has mapped anything
    drop_own();
    return false;
  }
  const std::string failure = map_all(infos, context.pass_fds(sockets_of(infos), own.get()), context);
  settle(reports_from(context.all_gather(to_bytes(report_on(memory_, failure, late_)))), sharing);
  outlives_ranks_ = all_by_fd(infos);
  if (why_not_.empty()) measure_links(context);
  if (why_not_.empty()) return true;
  take_down(context);
  return false;
}

// Between devices alone: where ranks share one, its memory is what is copied. All windows are unused so far, and every
// rank has read the signatures in them.
void PeerMemory::measure_links(const BootstrapContext& context) {
  if (world_ == 1 || reach_ != Reach::kAll || placement_.shares_devices || layout_.window < kLeastProbed) return;
  const char* const next = memory_[static_cast<size_t>((rank_ + 1) % world_)];
  const int64_t bytes = std::min(layout_.window, kMostProbed);
  const LinkSpeed own = speed_of_copies(functions_, device_, arena_->memory(), next, bytes);
  double slowest = std::numeric_limits<double>::max();
  const std::vector<std::string> speeds = context.all_gather(to_bytes(own));
  for (int rank = 0; rank < world_; ++rank) {
    const auto speed = from_bytes<LinkSpeed>(speeds[static_cast<size_t>(rank)]);
    slowest = std::min(slowest, speed.bytes_per_second);
    if (!speed.late || late_) continue;
    late_ = true;
    why_not_ = "rank " + std::to_string(rank) + ": a copy of " + std::to_string(bytes) + " bytes of memory of rank " +
               std::to_string((rank + 1) % world_) + " does not end";
  }
  links_ = links_of(slowest);
  topology_.bytes_per_second = links_.bytes_per_second;
  topology_.barrier_seconds = links_.barrier_seconds;
}

// This rank's info, with memory where it could be allocated.
PeerInfo PeerMemory::offer(int sharing, const BootstrapContext& context, UniqueFd* fd) {
  try {
    PeerInfo info = peer_info_of(functions_, device_);
    load_kernels(functions_);
    arena_ = std::make_unique<Arena>(functions_, device_, layout_, sharing);
    if (world_ == 1) return info;
    const auto own = static_cast<size_t>(rank_);
    page_ = std::make_unique<OwnPage>(context.heap, context.heaps[own], context.mappings);
    info.page = page_->offset();
    info.memory = arena_->handle(fd);
    const Signature own_signature = {info.token, rank_ + 1, rank_ + 1};
    sign(functions_, device_, arena_->memory(), own_signature, &arena_->signals().signature);
    put(info.socket, context.socket);
    return info;
  } catch (const Error& error) {
    drop_own();
    return peer_info_without(error.what());
  }
}

// "", or why some of it could not be mapped.
std::string PeerMemory::map_all(const std::vector<PeerInfo>& infos, std::vector<UniqueFd> fds,
                                const BootstrapContext& context) {
  memory_.assign(static_cast<size_t>(world_), nullptr);
  memory_[static_cast<size_t>(rank_)] = arena_->memory();
  pages_.clear();
  std::string failure;
  for (int rank = 0; rank < world_ && world_ > 1 && !late_; ++rank) {
    const auto at = static_cast<size_t>(rank);
    try {
      pages_.push_back(page_of(rank, infos[at], context));
      if (rank != rank_) map(rank, infos, fds[at].get());
    } catch (const Error& error) {
      late_ = error.kind() == ErrorKind::kTimeout;
      if (failure.empty() || late_) failure = "memory of rank " + std::to_string(rank) + ": " + error.what();
    }
  }
  if (!failure.empty() && pages_.size() < infos.size()) unmap();
  if (world_ == 1 || pages_.size() < infos.size()) return failure;
  map_pages();
  if (pages_serve_ || !on_streams()) return failure;
  unmap();  // a rank that cannot post to all peers uses none of them
  return failure.empty() ? why_no_pages_ : failure;
}

void PeerMemory::map_pages() {
  why_no_pages_.clear();
  try {
    mapped_pages_ = std::make_unique<MappedPages>(functions_, pages_);
    pages_serve_ = true;
  } catch (const Error& error) {
    why_no_pages_ = error.what();
  }
}

// Infos come from other processes, so pages outside the heap are rejected.
HostPage* PeerMemory::page_of(int rank, const PeerInfo& info, const BootstrapContext& context) {
  if (info.page < 0 || info.page % alignof(Flags) != 0 || info.page > context.heap_bytes - OwnPage::bytes()) {
    throw Error(ErrorKind::kInternal, "its shared page at " + std::to_string(info.page) + " is not in its heap");
  }
  return reinterpret_cast<HostPage*>(context.heaps[static_cast<size_t>(rank)] + info.page);
}

void PeerMemory::map(int rank, const std::vector<PeerInfo>& infos, int fd) {
  const PeerInfo& info = infos[static_cast<size_t>(rank)];
  void* memory = nullptr;
  require(functions_, functions_.import_memory(device_, &info.memory, fd, &memory));
  const int own = rank_ + 1, owner = rank + 1;
  try {
    check_signatures(functions_, device_, static_cast<char*>(memory), {info.token, owner, owner},
                     {infos[static_cast<size_t>(rank_)].token, owner, own}, &arena_->signals().signature);
  } catch (const Error&) {
    functions_.unimport_memory(memory);  // which stays mapped where a copy does not end
    throw;
  }
  memory_[static_cast<size_t>(rank)] = static_cast<char*>(memory);
}

void PeerMemory::settle(const MappingReports& reports, int sharing) {
  late_ = reports.late;
  reach_ = late_ ? Reach::kTooFew : reach_of(reports.reached);
  topology_ = topology_of(layout_, world_, placement_.executor, reach_);
  if (reach_ == Reach::kTooFew) {
    why_not_ = reports.first_failure.empty() ? "devices do not reach each other" : reports.first_failure;
  }
  if (reach_ != Reach::kAll || world_ == 1) return;
  buffers_ = std::make_unique<SymmetricBuffers>(functions_, device_, rank_, sharing, why_no_pages_);
}

void PeerMemory::take_down(const BootstrapContext& context) {
  buffers_.reset();
  if (!late_) mapped_pages_.reset();
  unmap();
  context.all_gather(std::string(1, '\0'));  // importers close before exporters free
  if (late_) keep({std::move(arena_), std::move(page_), nullptr, std::move(mapped_pages_)});
  drop_own();
}

// From here on peers may reuse their pages, so this rank no longer touches them.
void PeerMemory::drop_own() {
  pages_serve_ = false;
  pages_.clear();
  arena_.reset();
  page_.reset();
}

void PeerMemory::unmap() {
  for (size_t rank = 0; rank < memory_.size(); ++rank) {
    if (memory_[rank] == nullptr || static_cast<int>(rank) == rank_) continue;
    functions_.unimport_memory(memory_[rank]);
    memory_[rank] = nullptr;
  }
}

// At most once: a page may be reused as soon as all ranks have told its owner.
void PeerMemory::teardown() {
  if (std::exchange(is_torn_down_, true)) return;
  mapped_pages_.reset();
  if (buffers_) buffers_->unmap();
  unmap();
  for (HostPage* const page : pages_) __atomic_store_n(&page->unmapped[rank_], 1u, __ATOMIC_RELEASE);
}

// Frees only this rank's resources: peers may still be running.
void PeerMemory::stay() {
  __atomic_store_n(&arena_->signals().abort, 1u, __ATOMIC_RELEASE);
  if (page_) __atomic_store_n(&page_->page().abort, 1u, __ATOMIC_RELEASE);
  stays_ = true;
}

bool PeerMemory::is_unmapped_by_peers() const {
  if (!page_) return true;
  for (int rank = 0; rank < world_; ++rank) {
    if (__atomic_load_n(&page_->page().unmapped[rank], __ATOMIC_ACQUIRE) == 0) return false;
  }
  return true;
}

}  // namespace ringdp::gpu
