#include "gpu/neighbourhood.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "gpu/stream_flags.h"

namespace ringdp::gpu {
namespace {

// Where only neighbours on a ring reach each other.
bool has_ring(plan::Collective what) { return plan::can_plan(plan::DeviceAlgorithm::kRankRing, what); }

// What somebody may still look at stays to the process's end, where a leak checker sees it.
struct Kept {
  std::unique_ptr<Arena> arena;
  std::unique_ptr<OwnPage> page;
  std::unique_ptr<Segments> segments;
  std::unique_ptr<MappedPages> mapped;
};

void keep(Kept one) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<Kept>;
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(one));
}

}  // namespace

Neighbourhood::Neighbourhood(const Functions& functions, int device, const Surroundings& surroundings)
    : functions_(functions),
      device_(device),
      rank_(surroundings.rank),
      world_(surroundings.world),
      layout_(ArenaLayout::of(surroundings.window_bytes, surroundings.world)) {}

Neighbourhood::~Neighbourhood() {
  if (!stays_) part();
  if (!arena_ || (!stays_ && is_alone())) return;
  keep({std::move(arena_), std::move(page_), std::move(segments_), std::move(mapped_pages_)});
}

std::string Neighbourhood::description() const {
  if (!why_not_.empty()) return "collectives run on the host: " + why_not_;
  return placement_.why + (reach_ == Reach::kAll ? "; everybody reaches everybody" : "; ring neighbours reach each other");
}

std::string Neighbourhood::why_not(const plan::DeviceProblem& problem) const {
  if (!why_not_.empty()) return why_not_;
  if (plan::is_sum(problem.what)) {
    int reduces = 0;
    require(functions_, functions_.reduces(static_cast<int>(problem.dtype), static_cast<int>(problem.op), &reduces));
    if (!reduces) return std::string("no kernel for ") + name_of(problem.op) + " on " + name_of(problem.dtype);
  }
  if (reach_ == Reach::kAll || has_ring(problem.what)) return "";
  return std::string(plan::name_of(problem.what)) + " needs every pair of devices to reach each other";
}

plan::DeviceChoice Neighbourhood::choose(const plan::DeviceProblem& problem) const {
  return plan::select_device_plan(topology_, problem.what, problem.count * size_of(problem.dtype));
}

Pieces Neighbourhood::cut(const plan::DeviceProblem& problem) const {
  return gpu::cut(choose(problem).algorithm, problem, {layout_.window, layout_.stage_bytes});
}

std::optional<Pieces> Neighbourhood::cut_in_segment(const plan::DeviceProblem& problem) const {
  return gpu::cut_in_segment(choose(problem).algorithm, problem, layout_.stage_bytes);
}

std::string Neighbourhood::why_no_step() const {
  if (!why_not_.empty()) return why_not_;
  return reach_ == Reach::kAll ? "" : "it needs every pair of devices to reach each other";
}

std::string Neighbourhood::why_no_common_end() const { return world_ == 1 || pages_serve_ ? "" : why_no_pages_; }

Pieces Neighbourhood::cut_step(int64_t count) const { return gpu::cut_step(world_, count, layout_.window); }

Addresses Neighbourhood::addresses() const {
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

// Peers write there what nobody copies: so all learn it when one gives up.
Addresses Neighbourhood::addresses_in(const SegmentRef& segment) const {
  Addresses found = addresses();
  const std::vector<char*> memory = segments_->addresses(segment.number);
  for (int rank = 0; rank < world_; ++rank) {
    found.window[rank] = memory[static_cast<size_t>(rank)] + segment.at;
    found.aborts[rank] = abort_on_device(rank);
  }
  return found;
}

std::shared_ptr<const Work> Neighbourhood::launch(const Piece& piece, const plan::DeviceChoice& choice, void* stream) {
  return launch_at(piece.segment.number == 0 ? addresses() : addresses_in(piece.segment), piece, choice, stream);
}

std::shared_ptr<const Work> Neighbourhood::launch_at(const Addresses& found, const Piece& piece,
                                                     const plan::DeviceChoice& choice, void* stream) {
  const plan::DevicePlan plan = plan::make_device_plan(choice.algorithm, piece.problem);
  const LaunchFacts facts = {piece.input_at,    piece.output_at, piece.divisor,  piece.deadline_ns,
                             placement_.blocks, launches_ + 1,   piece.captured, piece.input_step};
  auto work = std::make_shared<const Work>(work_of(plan, found, facts));
  require(functions_, functions_.run(work.get(), sizeof(Work), static_cast<int>(plan.dtype), static_cast<int>(plan.op),
                                     placement_.executor, stream));
  ++launches_;
  return work;
}

std::shared_ptr<const Work> Neighbourhood::launch_barrier(uint64_t deadline_ns, void* stream, bool ends_all) {
  Piece nothing;
  nothing.problem.what = plan::Collective::kBarrier;
  nothing.problem.rank = rank_;
  nothing.problem.world = world_;
  nothing.deadline_ns = deadline_ns;
  Addresses found = addresses();
  for (int rank = 0; rank < world_ && ends_all; ++rank) found.aborts[rank] = abort_on_device(rank);
  return launch_at(found, nothing, choose(nothing.problem), stream);
}

void Neighbourhood::step(const StepFacts& facts, void* stream) const {
  const AdamWork work = adam_work_of(rank_, world_, addresses(), facts);
  require(functions_, functions_.adam_step(&work, sizeof work, stream));
}

void Neighbourhood::await_checked(uint32_t number, void* stream) const {
  require(functions_, functions_.await(&arena_->signals().checked, number, stream));
}

void Neighbourhood::poison(void* memory, int64_t bytes, void* stream) const {
  require(functions_, functions_.poison(memory, static_cast<size_t>(bytes), abort_on_device(rank_), stream));
}

void Neighbourhood::checked(uint32_t number) { __atomic_store_n(&arena_->signals().checked, number, __ATOMIC_RELEASE); }

// All ranks' results are void before a stream whose waits were released goes on and tells them that its part is done, and
// before a caller has memory back that peers may still read.
void Neighbourhood::give_up() {
  __atomic_store_n(&arena_->signals().abort, 1u, __ATOMIC_RELEASE);
  for (HostPage* const page : pages_) __atomic_store_n(&page->abort, 1u, __ATOMIC_RELEASE);
  if (on_streams() && page_) release_waits(page_->page().flags);
}

bool Neighbourhood::given_up() const {
  const uint32_t& word = pages_serve_ ? page_->page().abort : arena_->signals().abort;
  return __atomic_load_n(&word, __ATOMIC_ACQUIRE) != 0;
}

uint32_t* Neighbourhood::abort_on_device(int rank) const {
  return pages_serve_ ? &mapped_pages_->on_device(rank)->abort : arena_->abort_on_device();
}

std::optional<Expired> Neighbourhood::expired() const {
  const Expired& record = arena_->signals().expired;
  if (__atomic_load_n(&record.set, __ATOMIC_ACQUIRE) != 2) return std::nullopt;
  return record;
}

std::optional<Expired> Neighbourhood::waits_for(const Work& work) const {
  if (!on_streams() || !page_) return std::nullopt;
  const auto waits = waited_for(work, page_->page().flags);
  if (!waits || !has_posted(work, waits->step)) return std::nullopt;
  return waits;
}

// Whether this rank's stream has come to that step: what it posts before has arrived.
bool Neighbourhood::has_posted(const Work& work, int step) const {
  for (int s = 0; s < step; ++s) {
    const plan::DeviceStep& post = work.step[s];
    if (post.verb != plan::DeviceVerb::kPost) continue;
    const Flag& flag = pages_[static_cast<size_t>(post.peer)]->flags.of[post.slot][0][rank_];
    if (__atomic_load_n(&flag.value, __ATOMIC_ACQUIRE) < work.stream_epoch * kValuesPerEpoch + post.value) return false;
  }
  return true;
}

}  // namespace ringdp::gpu
