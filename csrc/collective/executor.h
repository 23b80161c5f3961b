// Runs one plan on links and arena, a little at a time: advance() does what it can and never blocks.
//
// Nothing a peer sent is used and nothing completes before that peer's header has been checked; no peer's tensor is
// touched before all have. Owned and called by the driver thread of its group.
#pragma once
#include <poll.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "collective/contributions.h"
#include "collective/header_exchange.h"
#include "collective/slot_path.h"
#include "kernels/fold.h"
#include "plan/plan.h"
#include "trace/counters.h"

namespace ringdp::collective {

// Where an arena member's tensors lie, as its header says; null where no plan reaches them.
struct PeerTensors {
  const std::byte* inputs = nullptr;
  std::byte* output = nullptr;
};

// User memory of one collective; see plan.h for which buffer is which. Must stay valid until done().
struct Buffers {
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  double divisor = 0;                   // of an AVG; 0: the number of ranks
  std::vector<PeerTensors> peers = {};  // by arena member; empty unless the plan names them
  // Called by the driver as soon as elements begin..begin+count of output 0 have been folded for good, while they are
  // in its cache. Plans that copy or decode into the output do not say so.
  std::function<void(int64_t begin, int64_t count)> on_result = {};
  Contributions* contributions = nullptr;  // of a sum: what was summed here; null: not wanted
};

// Memory and positions that outlive one collective: one per group.
struct Workspace {
  std::vector<std::byte> scratch;  // grows to the largest plan's need
  uint64_t stages = 0;             // arena stages used so far; their parity picks the slot
  SlotPath slot_path;
};

// What a link had no room for at first: `bytes` took `ns` until it had them all.
struct Backlog {
  int64_t bytes = 0, ns = 0;
};

// Called after each step with the resolved destinations; for walkthroughs and tests.
using Observer = std::function<void(const plan::Step&, const std::vector<void*>& dsts)>;

class Executor {
 public:
  // `plan`, `fabric` and `workspace` must outlive the executor. All `headers` are checked already when the plan names
  // tensors of peers.
  Executor(const plan::Plan& plan, Buffers buffers, const Fabric& fabric, Workspace& workspace, HeaderExchange headers,
           Observer observer = {});

  bool advance();  // true when anything moved; throws Error(kMismatch, kPeerLost)
  bool done() const { return channels_left_ == 0 && headers_.done(); }

  // Descriptors to poll(2) while nothing moves (sends that are full, receives that are empty).
  void add_polls(std::vector<pollfd>& polls) const;

  std::vector<int> silent_ranks() const { return headers_.silent_ranks(); }
  std::vector<int> awaited_ranks() const;  // ranks whose bytes or arrival the next steps wait for
  trace::Totals totals() const;
  const std::vector<Backlog>& backlogs() const { return backlogs_; }  // by rank; empty when there were none

 private:
  struct ChannelState {
    size_t step = 0;
    size_t header = 0;       // bytes of the announcement of the current send or receive
    uint64_t length = 0;     // announced by the peer
    size_t bytes = 0;        // of the current send or receive
    uint64_t barrier = 0;    // last one signalled
    int64_t full_since = 0;  // steady_clock ns: the link had no room for the rest of the current send
  };
  bool advance_channel(size_t channel);
  bool ready(const plan::Step& step) const;
  bool run(const plan::Step& step, ChannelState& state);  // true when the step is finished
  bool send(const plan::Step& step, ChannelState& state);
  void note_backlog(const plan::Step& step, ChannelState& state, bool sent, size_t size);
  bool receive(const plan::Step& step, ChannelState& state);
  bool send_bytes(int peer, const void* bytes, size_t size, size_t& sent, uint64_t& counter);
  bool receive_bytes(int peer, void* bytes, size_t size, size_t& received);
  void check_announced(int peer, uint64_t announced, size_t expected) const;
  void fold(const plan::Step& step);
  void fold_in_blocks(const plan::Step& step, const kernels::FoldArgs& args, bool tells);
  void copy(const plan::Step& step);
  void recode(const plan::Step& step);  // encode or decode
  void finish_step(const plan::Step& step);

  bool is_staged_past_caches(const plan::Ref& ref) const;
  std::byte* resolve(const plan::Ref& ref) const;
  size_t bytes_of(const plan::Ref& ref) const { return static_cast<size_t>(plan::bytes_of(plan_, ref)); }
  uint64_t memory_bytes() const { return totals_.memory_bytes_read + totals_.memory_bytes_written; }

  const plan::Plan& plan_;
  Buffers buffers_;
  const Fabric& fabric_;
  Workspace& workspace_;
  HeaderExchange headers_;
  Observer observer_;
  std::optional<ContributionReader> reader_;

  const bool has_barriers_;  // the first arrival at one shows the header
  bool moved_ = false;       // bytes moved inside an unfinished step
  std::vector<ChannelState> channels_;
  size_t channels_left_ = 0;
  uint64_t turn_end_ = 0;  // of memory_bytes(): then advance() returns
  uint64_t stage_base_ = 0;
  trace::Totals totals_;
  std::vector<Backlog> backlogs_;
};

}  // namespace ringdp::collective
