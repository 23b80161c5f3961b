#include "gpu/neighbourhood.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "gpu/stream_flags.h"

namespace ringdp::gpu {
namespace {

bool has_plan(plan::Collective what) { return plan::can_plan(plan::DeviceAlgorithm::kDirect, what); }

// What somebody may still look at stays to the process's end, where a leak checker sees it.
void keep(std::unique_ptr<Arena> arena, std::unique_ptr<OwnPage> page) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::pair<std::unique_ptr<Arena>, std::unique_ptr<OwnPage>>>;
  const std::lock_guard lock(mutex);
  kept.emplace_back(std::move(arena), std::move(page));
}

}  // namespace

Neighbourhood::Neighbourhood(const Functions& functions, int device, const Surroundings& surroundings)
    : functions_(functions),
      device_(device),
      rank_(surroundings.rank),
      world_(surroundings.world),
      layout_(ArenaLayout::of(surroundings.window_bytes, surroundings.world)) {}

Neighbourhood::~Neighbourhood() {
  part();
  if (!arena_ || is_alone()) return;
  keep(std::move(arena_), std::move(page_));
}

std::string Neighbourhood::description() const {
  if (!why_not_.empty()) return "collectives run on the host: " + why_not_;
  return placement_.why + (reach_ == Reach::kAll ? "; everybody reaches everybody" : "; ring neighbours reach each other");
}

std::string Neighbourhood::why_not(const plan::DeviceProblem& problem) const {
  if (!why_not_.empty()) return why_not_;
  if (!has_plan(problem.what)) return std::string(plan::name_of(problem.what)) + " has no device plan";
  if (plan::is_sum(problem.what)) {
    int reduces = 0;
    require(functions_, functions_.reduces(static_cast<int>(problem.dtype), static_cast<int>(problem.op), &reduces));
    if (reduces) return "";
    return std::string("no kernel for ") + name_of(problem.op) + " on " + name_of(problem.dtype);
  }
  if (reach_ == Reach::kAll) return "";
  return std::string(plan::name_of(problem.what)) + " needs every pair of devices to reach each other";
}

plan::DeviceChoice Neighbourhood::choose(const plan::DeviceProblem& problem) const {
  return plan::select_device_plan(topology_, problem.what, problem.count * size_of(problem.dtype));
}

Pieces Neighbourhood::cut(const plan::DeviceProblem& problem) const {
  return gpu::cut(choose(problem).algorithm, problem, {layout_.window, layout_.stage_bytes});
}

std::string Neighbourhood::why_no_step() const {
  if (!why_not_.empty()) return why_not_;
  return reach_ == Reach::kAll ? "" : "it needs every pair of devices to reach each other";
}

Pieces Neighbourhood::cut_step(int64_t count) const { return gpu::cut_step(world_, count, layout_.window); }

Addresses Neighbourhood::addresses() const {
  Addresses found;
  for (int rank = 0; rank < world_; ++rank) {
    char* const memory = memory_[static_cast<size_t>(rank)];
    if (mapped_pages_) found.flags[rank] = &mapped_pages_->on_device(rank)->flags;
    if (memory == nullptr) continue;
    found.window[rank] = memory;
    found.stage[rank] = memory + layout_.stage;
    found.pushed[rank] = memory + layout_.pushed;
    if (!mapped_pages_) found.flags[rank] = reinterpret_cast<Flags*>(memory + layout_.flags);
  }
  found.pushed_bytes = layout_.pushed_bytes;
  found.epoch = reinterpret_cast<Epoch*>(arena_->memory() + layout_.epoch);
  found.abort = abort_on_device();
  found.expired = arena_->expired_on_device();
  return found;
}

std::shared_ptr<const Work> Neighbourhood::launch(const Piece& piece, const plan::DeviceChoice& choice, void* stream) {
  const plan::DevicePlan plan = plan::make_device_plan(choice.algorithm, piece.problem);
  const LaunchFacts facts = {piece.input_at,    piece.output_at,   piece.divisor,
                             piece.deadline_ns, placement_.blocks, launches_ + 1};
  auto work = std::make_shared<const Work>(work_of(plan, addresses(), facts));
  require(functions_, functions_.run(work.get(), sizeof(Work), static_cast<int>(plan.dtype), static_cast<int>(plan.op),
                                     placement_.executor, stream));
  ++launches_;
  return work;
}

std::shared_ptr<const Work> Neighbourhood::launch_barrier(uint64_t deadline_ns, void* stream) {
  Piece nothing;
  nothing.problem.what = plan::Collective::kBarrier;
  nothing.problem.rank = rank_;
  nothing.problem.world = world_;
  nothing.deadline_ns = deadline_ns;
  return launch(nothing, choose(nothing.problem), stream);
}

void Neighbourhood::step(const StepFacts& facts, void* stream) const {
  const AdamWork work = adam_work_of(rank_, world_, addresses(), facts);
  require(functions_, functions_.adam_step(&work, sizeof work, stream));
}

void Neighbourhood::await_checked(uint32_t number, void* stream) const {
  require(functions_, functions_.await(&arena_->signals().checked, number, stream));
}

void Neighbourhood::poison(void* memory, int64_t bytes, void* stream) const {
  require(functions_, functions_.poison(memory, static_cast<size_t>(bytes), abort_on_device(), stream));
}

void Neighbourhood::checked(uint32_t number) { __atomic_store_n(&arena_->signals().checked, number, __ATOMIC_RELEASE); }

// A kernel that gives up tells nobody that its part is done. A stream goes on and does, whatever it had to wait for: so
// all ranks' results are void before it may.
void Neighbourhood::give_up() {
  if (!has_pages()) return __atomic_store_n(&arena_->signals().abort, 1u, __ATOMIC_RELEASE);
  for (HostPage* const page : pages_) __atomic_store_n(&page->abort, 1u, __ATOMIC_RELEASE);
  release_waits(page_->page().flags);
}

bool Neighbourhood::given_up() const {
  const uint32_t& word = has_pages() ? page_->page().abort : arena_->signals().abort;
  return __atomic_load_n(&word, __ATOMIC_ACQUIRE) != 0;
}

uint32_t* Neighbourhood::abort_on_device() const {
  return has_pages() ? &mapped_pages_->on_device(rank_)->abort : arena_->abort_on_device();
}

std::optional<Expired> Neighbourhood::expired() const {
  const Expired& record = arena_->signals().expired;
  if (__atomic_load_n(&record.set, __ATOMIC_ACQUIRE) != 2) return std::nullopt;
  return record;
}

std::optional<Expired> Neighbourhood::waits_for(const Work& work) const {
  if (!has_pages()) return std::nullopt;
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
