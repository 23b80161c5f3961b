// Runs one plan on links and arena, a little at a time: advance() does what it can and never blocks.
//
// A peer's bytes are used only after its header has been checked, and its tensors only after all headers have been
// checked. Owned and called by the driver thread of its group.
#pragma once
#include <poll.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "collective/contributions.h"
#include "collective/header_exchange.h"
#include "collective/slot_stores.h"
#include "kernels/fold.h"
#include "plan/plan.h"
#include "trace/counters.h"

namespace ringdp::collective {

// Where an arena member's tensors lie in this process, from the placement in its header; null: not accessed.
struct PeerTensors {
  std::vector<const std::byte*> inputs;  // those of each root that it contributes; else one entry
  std::byte* output = nullptr;
};

// User memory of one collective; see plan.h for which buffer is which. Must stay valid until done().
struct Buffers {
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  double divisor = 0;                   // AVG divides by it; 0: by the number of ranks
  std::vector<PeerTensors> peers = {};  // by arena member; empty unless the plan accesses them
  // Called by the driver as soon as elements begin..begin+count of output 0 are final, while they are in its cache. Not
  // called by plans that copy or decode into the output.
  std::function<void(int64_t begin, int64_t count)> on_result = {};
  Contributions* contributions = nullptr;  // receives checksums of what this rank sums and computes; null: none
};

// Memory and positions that outlive one collective: one per group.
struct Workspace {
  using Scratch = std::shared_ptr<std::vector<std::byte>>;
  Scratch take_scratch(size_t bytes);  // that no other collective holds

  std::vector<Scratch> scratch;  // one for each collective that has run beside others; each grows to what it needs
  uint64_t stages = 0;           // arena stages used so far; their parity picks the slot
  SlotStores slot_stores;
};

// Sends for which a link had no room at first: their bytes, and for how long it had none.
struct Backlog {
  int64_t bytes = 0, ns = 0;
};

// Called after each step with the resolved destinations; for walkthroughs and tests.
using Observer = std::function<void(const plan::Step&, const std::vector<void*>& dsts)>;

class Executor {
 public:
  // `plan`, `fabric` and `workspace` must outlive the executor. If the plan accesses tensors of peers, all `headers`
  // must already be checked.
  Executor(const plan::Plan& plan, Buffers buffers, const Fabric& fabric, Workspace& workspace, HeaderExchange headers,
           Observer observer = {});

  bool advance();  // true when anything moved; throws Error(kMismatch, kPeerLost)
  bool done() const { return channels_left_ == 0 && headers_.done(); }

  // Adds what to poll(2) while nothing moves: links that are full for a send, or empty for a receive.
  void add_polls(std::vector<pollfd>& polls) const;

  std::vector<int> silent_ranks() const { return headers_.silent_ranks(); }  // ranks whose header has not arrived
  std::vector<int> awaited_ranks() const;  // ranks whose bytes or barrier arrival the next steps wait for
  trace::Totals totals() const;
  const std::vector<Backlog>& backlogs() const { return backlogs_; }  // by rank; empty when there were none

 private:
  struct ChannelState {
    size_t step = 0;
    size_t announcement = 0;  // its bytes that have moved, in the current send or receive
    uint64_t length = 0;      // bytes that the peer has announced
    size_t bytes = 0;         // payload that has moved, in the current send or receive
    uint64_t barrier = 0;     // the last one at which it arrived
    // Of the current send, in ns of steady_clock: since when its link has no room, 0 while it has; how long it had
    // none.
    int64_t full_since = 0, full_ns = 0;
  };
  bool advance_channel(size_t channel);
  bool ready(const plan::Step& step) const;
  bool run(const plan::Step& step, ChannelState& state);  // true when the step is finished
  bool send(const plan::Step& step, ChannelState& state);
  void note_backlog(const plan::Step& step, ChannelState& state, bool sent, size_t size);
  bool receive(const plan::Step& step, ChannelState& state);
  void finish_sending();  // on links to which it has sent all
  bool send_bytes(int peer, const void* bytes, size_t size, size_t& sent, uint64_t& counter);
  bool receive_bytes(int peer, void* bytes, size_t size, size_t& received);
  void check_announced(int peer, uint64_t announced, size_t expected) const;
  void fold(const plan::Step& step);
  void add_up(const plan::Step& step, const kernels::FoldArgs& args) const;
  void fold_in_blocks(const plan::Step& step, const kernels::FoldArgs& args, bool reports);
  void copy(const plan::Step& step);
  void recode(const plan::Step& step);  // encode or decode
  void finish_step(const plan::Step& step);

  bool stages_nontemporal(const plan::Ref& ref) const;
  std::byte* resolve(const plan::Ref& ref) const;
  size_t bytes_of(const plan::Ref& ref) const { return static_cast<size_t>(plan::bytes_of(plan_, ref)); }
  uint64_t memory_bytes() const { return totals_.memory_bytes_read + totals_.memory_bytes_written; }

  const plan::Plan& plan_;
  Buffers buffers_;
  const Fabric& fabric_;
  Workspace& workspace_;
  mutable Workspace::Scratch scratch_;  // null until a step uses it
  HeaderExchange headers_;
  Observer observer_;
  std::optional<ContributionReader> reader_;

  const bool has_barriers_;  // this rank's header is then published with its first arrival
  bool moved_ = false;       // bytes moved inside an unfinished step
  std::vector<ChannelState> channels_;
  size_t channels_left_ = 0;
  std::vector<size_t> sends_left_;  // steps, by rank; empty where collectives run one at a time
  uint64_t turn_end_ = 0;           // advance() returns once memory_bytes() has reached this
  uint64_t stage_base_ = 0;
  trace::Totals totals_;
  std::vector<Backlog> backlogs_;
};

}  // namespace ringdp::collective
