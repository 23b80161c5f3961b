#include "comm/heap_fence.h"

#include "base/dtype.h"
#include "plan/one_pass.h"
#include "transport/arena.h"
#include "transport/process_fds.h"

namespace ringdp::comm {
namespace {

// How long a peer has to stop after a failure.
constexpr std::chrono::milliseconds kGrace{250};

}  // namespace

void HeapFence::begin() {
  in_heaps_ = false;
  if (mesh_.arena) first_barrier_ = mesh_.arena->arrived(mesh_.arena->index()) + 1;
}

void HeapFence::expose(const plan::Problem& problem, const Placement& own) {
  if (!plan::reached_by_others(problem, mesh_.rank).outputs) return;
  exposed_ = Exposure{own.output, plan::output_elements(problem) * size_of(problem.dtype), first_barrier_};
}

void HeapFence::decide(bool in_heaps) {
  in_heaps_ = in_heaps;
  if (!in_heaps) exposed_.reset();
}

void HeapFence::end() {
  exposed_.reset();
  grace_.reset();
  first_barrier_ = 0;
}

void HeapFence::retire() const {
  transport::Arena* const arena = mesh_.arena.get();
  if (arena == nullptr || arena->retired(arena->index()) != 0) return;
  const uint64_t running = first_barrier_;
  arena->retire(running != 0 ? running : arena->arrived(arena->index()) + 1);
}

bool HeapFence::may_be_overwritten() const {
  if (!in_heaps_) return false;
  for (int member = 0; member < mesh_.world; ++member) {
    const uint64_t retired = mesh_.arena->retired(member);
    if (retired != 0 && retired <= first_barrier_) return true;
  }
  return false;
}

bool HeapFence::has_stopped(const Peer& peer) const {
  const transport::Arena& arena = *mesh_.arena;
  return peer.rank == mesh_.rank || arena.retired(peer.rank) != 0 ||
         arena.arrived(peer.rank) >= exposed_->last_barrier || (peer.pidfd && transport::has_ended(*peer.pidfd));
}

// Where a tensor is exposed, one arena holds all ranks.
std::vector<int> HeapFence::writers() {
  std::vector<int> ranks;
  if (!exposed_) return ranks;
  for (const Peer& peer : mesh_.peers) {
    if (!has_stopped(peer)) ranks.push_back(peer.rank);
  }
  if (!ranks.empty() && !grace_) grace_ = Deadline::after(kGrace);
  return ranks;
}

void HeapFence::cut_off() const { mesh_.arena->fence(exposed_->offset, exposed_->bytes); }

}  // namespace ringdp::comm
