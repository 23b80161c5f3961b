// How a group that fails keeps this rank's tensors from peers that are still in a pass over them, and those peers from
// what is in its tensors since.
//
// A peer is quiet once it has ended the pass, says that it touches nothing any more, or is dead. One that is not quiet
// after a moment (stopped, or starved) is shut out: its pass goes on in memory that nobody looks at.
#include "base/log.h"
#include "comm/group.h"
#include "plan/one_pass.h"
#include "transport/pidfd.h"

namespace ringdp::comm {

// Before the own note is posted: from then on peers may write.
void Group::expose(const plan::Problem& problem, const Placement& own) {
  if (!plan::reached_by_others(problem, config_.rank).outputs) return;
  exposed_ = Exposure{own.output, problem.count * size_of(problem.dtype), first_barrier_, {}};
}

// Once: later words would be those of an op that did not run.
void Group::retire() const {
  transport::Arena* const arena = fabric_.arena;
  if (arena == nullptr || arena->retired(arena->index()) != 0) return;
  const uint64_t running = first_barrier_;
  arena->retire(running != 0 ? running : arena->arrived(arena->index()) + 1);
}

// Looked at after the last barrier of a pass. The error of whoever gave up is on its way, or this op's deadline ends it.
bool Group::is_tainted() const {
  if (!in_heaps_) return false;
  for (int member = 0; member < config_.world; ++member) {
    const uint64_t given_up = mesh_.arena->retired(member);
    if (given_up != 0 && given_up <= first_barrier_) return true;
  }
  return false;
}

bool Group::is_quiet(const Peer& peer) const {
  const transport::Arena& arena = *mesh_.arena;
  return peer.rank == config_.rank || arena.retired(peer.rank) != 0 || arena.arrived(peer.rank) >= exposed_->end ||
         (peer.pidfd && transport::has_ended(*peer.pidfd));
}

// False while there is hope that the last peer becomes quiet. One arena holds all ranks when a tensor is exposed.
bool Group::shut_out_the_late() {
  if (!exposed_) return true;
  std::string late;
  for (const Peer& peer : mesh_.peers) {
    if (!is_quiet(peer)) late += (late.empty() ? "" : ", ") + name_of_peer(peer.rank);
  }
  if (!late.empty()) {
    if (!exposed_->patience) exposed_->patience = Deadline::after(kGrace);
    if (!exposed_->patience->passed()) return false;
    log_line(LogLevel::kWarning, "rank " + std::to_string(config_.rank) + "/" + std::to_string(config_.world),
             late + " may still be writing into a shared tensor: its memory is private from now on");
    try {
      mesh_.arena->fence(exposed_->offset, exposed_->bytes);
    } catch (const Error& error) {
      const std::lock_guard lock(mutex_);
      error_ = Error(error_->kind(), std::string(error_->what()) + " Do not use its tensor: " + late +
                                         " may still write into it (" + error.what() + ")", error_->culprit());
    }
  }
  exposed_.reset();
  return true;
}

}  // namespace ringdp::comm
