// One process group's life on one rank: its mesh of peers, its queue of collectives, how it fails and how it ends.
//
// submit(), fail() and leave() may be called from any thread; everything else runs on the driver (engine.h) or the watch.
// Collectives run one at a time in the order submitted. The first error is latched: it ends all queued work, is told to
// all peers, and is thrown by every later submit().
#pragma once
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>

#include "collective/executor.h"
#include "collective/select.h"
#include "comm/engine.h"
#include "comm/op.h"
#include "comm/rendezvous.h"
#include "comm/watch.h"
#include "trace/counters.h"

namespace ringdp::comm {

// The threads that serve all groups of a process.
struct Runtime {
  Engine engine;
  Watch watch{[this] {
    if (engine.any_active()) engine.kick();
  }};
};

struct GroupConfig {
  std::string name;
  int rank = 0, world = 1;
  Settings settings;
};

class Group : public Drivable, public Watched, public std::enable_shared_from_this<Group> {
 public:
  // Collective over all ranks: connects them (see rendezvous.h).
  static std::shared_ptr<Group> create(Runtime& runtime, transport::Store& store, const GroupConfig& config,
                                       Deadline deadline);
  ~Group() override;

  // Throws InvalidArgument (nothing happened) or the latched error.
  std::shared_ptr<Op> submit(Request request);
  // Drives until the op is done, its result thrown if it failed; false when `deadline` passed first.
  bool wait(const Op& op, Deadline deadline);

  void fail(const Error& error);
  // Ends unfinished work with kAborted, tells peers goodbye. Idempotent, at most about a second.
  void leave();

  std::optional<Error> error() const;
  uint64_t sequence() const;  // collectives submitted so far
  trace::Totals counters() const { return counters_.totals(); }
  collective::Choice choice() const { return choice_; }
  std::string description() const;  // one line per peer: how bytes reach it and why; then which plan runs and why

  // Drivable
  bool active() const override { return pending_.load(std::memory_order_acquire) > 0; }
  bool advance() override;
  void check_time() override;
  void set_asleep(bool asleep, std::vector<pollfd>& polls) override;
  int spin_us() const override { return spin_us_; }

  // Watched
  void peer_aborted(int rank, const ControlMessage& message) override;
  void peer_left(int rank, uint64_t finished) override;
  void peer_lost(int rank, const std::string& how) override;

 private:
  Group(Runtime& runtime, const GroupConfig& config, Mesh mesh);
  void watch_peers();
  bool latch(const Error& error, const ControlMessage& words);  // false when an error was latched before
  void refuse_in_child() const;

  std::shared_ptr<Op> front() const;
  bool advance_front();
  void start(Op& op);
  std::shared_ptr<const plan::Plan> plan_for(const OpDesc& desc);
  void finish(std::exception_ptr error);
  void finish_all_failed();
  void check_nobody_left();  // fails the group when a peer left before it finished the front op
  void report_late(Op& op);

  std::string name_of_peer(int rank) const;          // "rank 2 (pid 77 on host a)"
  struct Suspicion {
    std::string text;
    int culprit = -1;
  };
  Suspicion suspect() const;  // who keeps the running collective waiting, and what it is doing
  Error explain(const Error& error, const OpDesc& desc) const;
  void tell_all(const ControlMessage& message) const;

  Runtime& runtime_;
  const GroupConfig config_;
  const Mesh mesh_;
  const collective::Choice choice_;
  collective::Fabric fabric_;
  const int spin_us_;
  const int owner_pid_;

  mutable std::mutex mutex_;  // guards the next block
  std::deque<std::shared_ptr<Op>> queue_;
  uint64_t next_seq_ = 1;
  uint64_t finished_ = 0;
  std::optional<Error> error_;
  std::optional<ControlMessage> last_words_;  // what peers are told of error_
  bool left_ = false;
  std::map<int, uint64_t> peers_left_;  // rank -> collectives it had finished

  std::atomic<int> pending_{0};
  std::atomic<bool> failed_{false};
  std::atomic<bool> someone_left_{false};

  // Driver only.
  using PlanKey = std::tuple<plan::Collective, DType, ReduceOp, int32_t, int64_t>;
  std::map<PlanKey, std::shared_ptr<const plan::Plan>> plans_;
  std::shared_ptr<const plan::Plan> plan_;
  std::optional<collective::Executor> executor_;
  std::optional<std::pair<Error, Deadline>> broken_link_;  // what to report unless the watch knows better by then
  collective::Workspace workspace_;
  Deadline::Clock::time_point started_, last_moved_;
  trace::Counters counters_;
};

}  // namespace ringdp::comm
