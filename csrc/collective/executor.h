// Runs one plan on links and arena, a little at a time: advance() does what it can and never blocks.
//
// Every collective opens with an exchange of notes (fingerprints) between all ranks; nothing a peer sent is used and
// nothing completes before that peer's note has been checked. Owned and called by the driver thread of its group.
#pragma once
#include <poll.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "plan/plan.h"
#include "trace/counters.h"
#include "transport/arena.h"
#include "transport/link.h"

namespace ringdp::collective {

// User memory of one collective; see plan.h for which buffer is which. Must stay valid until done().
struct Buffers {
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
};

// What plans run on. Arena member index = group rank for arena plans.
struct Fabric {
  std::vector<transport::Link*> links;  // by group rank; the own entry is null
  transport::Arena* arena = nullptr;
};

// Memory and positions that outlive one collective: one per group.
struct Workspace {
  std::vector<std::byte> scratch;  // grows to the largest plan's need
  uint64_t stages = 0;             // arena stages used so far; their parity picks the slot
};

// One collective's side of the opening exchange.
struct Opening {
  uint64_t seq = 0;  // 1, 2, ... per group
  transport::Note note{};
  std::function<void(int rank, const transport::Note& theirs)> check;  // throws Error(kMismatch)
};

// Called after each step with the resolved destinations; for walkthroughs and tests.
using Observer = std::function<void(const plan::Step&, const std::vector<void*>& dsts)>;

class Executor {
 public:
  // `plan`, `fabric` and `workspace` must outlive the executor.
  Executor(const plan::Plan& plan, Buffers buffers, const Fabric& fabric, Workspace& workspace, Opening opening,
           Observer observer = {});

  bool advance();  // true when anything moved; throws Error(kMismatch, kPeerLost)
  bool done() const { return lanes_left_ + notes_left_ + notes_unsent_ == 0; }

  // Descriptors to poll(2) while nothing moves (sends that are full, receives that are empty).
  void add_polls(std::vector<pollfd>& polls) const;

  std::vector<int> silent_ranks() const;   // ranks whose note has not come: they have not entered this collective
  std::vector<int> awaited_ranks() const;  // ranks whose bytes or arrival the next steps wait for
  const trace::Totals& totals() const { return totals_; }

 private:
  struct LaneState {
    size_t step = 0;
    size_t bytes = 0;      // of the current send or receive
    uint64_t barrier = 0;  // last one signalled
  };
  struct PeerState {
    size_t sent = 0;  // bytes of my note
    size_t received = 0;
    bool checked = false;
    transport::Note note{};
  };

  void start();
  bool exchange_notes();
  bool send_note(int rank);
  bool receive_note(int rank);
  bool look_at_note(int rank);  // in the arena
  void accept_note(int rank, const transport::Note& note);

  bool advance_lane(size_t lane);
  bool ready(const plan::Step& step) const;
  bool run(const plan::Step& step, LaneState& state);  // true when the step is finished
  bool send(const plan::Step& step, LaneState& state);
  bool receive(const plan::Step& step, LaneState& state);
  void fold(const plan::Step& step);
  void copy(const plan::Step& step);
  void finish_step(const plan::Step& step);

  std::byte* resolve(const plan::Ref& ref) const;
  size_t bytes_of(const plan::Ref& ref) const { return static_cast<size_t>(plan::bytes_of(plan_, ref)); }

  const plan::Plan& plan_;
  Buffers buffers_;
  const Fabric& fabric_;
  Workspace& workspace_;
  Opening opening_;
  Observer observer_;

  bool on_arena_ = false;  // notes and barriers go through the arena, not through the links
  bool moved_ = false;     // bytes moved inside an unfinished step
  std::vector<LaneState> lanes_;
  std::vector<PeerState> peers_;
  size_t lanes_left_ = 0;
  size_t notes_left_ = 0;    // of peers, not yet checked
  size_t notes_unsent_ = 0;  // own, to peers whose link was full
  uint64_t stage_base_ = 0;
  trace::Totals totals_;
};

}  // namespace ringdp::collective
