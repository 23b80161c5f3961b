// One process group's life on one rank: its mesh of peers, its collectives and messages, how it fails and how it ends.
//
// submit(), send(), recv(), fail() and leave() may be called from any thread; everything else runs on the driver
// (engine.h) or the watch.
// Collectives run one at a time in the order submitted, messages beside them. The first error is latched: it ends all
// queued work, is told to all peers, and is thrown by every later submit(), send() and recv().
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
#include "comm/group_log.h"
#include "comm/mailbox.h"
#include "comm/op.h"
#include "comm/placement.h"
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
  std::vector<int> members = {};  // of each rank of the group, its rank in the job; else: the same
};
std::vector<int> members_of(const GroupConfig& config);

class Group : public Drivable, public Watched, public std::enable_shared_from_this<Group> {
 public:
  // Collective over all ranks: connects them (see rendezvous.h).
  static std::shared_ptr<Group> create(Runtime& runtime, transport::Store& store, const GroupConfig& config,
                                       Deadline deadline);
  ~Group() override;

  // Throws InvalidArgument (nothing happened) or the latched error.
  std::shared_ptr<Op> submit(Request request);
  std::shared_ptr<Message> send(MessageRequest request);
  std::shared_ptr<Message> recv(MessageRequest request);
  // Drives until `work` is done, its error thrown if it failed; false when `deadline` passed first.
  bool wait(const Pending& work, Deadline deadline);

  // Where this rank's tensors can lie so that collectives of this group need not copy them. It outlives the group.
  // InvalidArgument when no rank of this host shares memory with this one, or in a forked child.
  std::shared_ptr<transport::Heap> heap() const;
  bool has_heap() const { return mesh_.arena && mesh_.arena->heap(); }

  // What ranks need who will share memory of devices:
  std::string why_no_shared_heaps() const;       // "" when all ranks map each other's heaps
  std::vector<std::byte*> heaps() const;         // of this host's ranks, where they begin here; while heap() lives
  int64_t heap_bytes() const { return has_heap() ? mesh_.arena->heap_bytes() : 0; }
  bool is_process_of(int socket, int rank) const;  // at the other end of a unix socket
  const std::vector<int>& hosts() const { return mesh_.hosts; }  // first rank of each, see hosts.h; empty on one host
  int ranks_on_host() const { return static_cast<int>(mesh_.locals.size()); }
  // What runs on the CPU.
  collective::Choice choice(plan::Collective what, int64_t bytes) const {
    return collective::select(mesh_.settings, topology_, what, bytes);
  }
  int rank() const { return config_.rank; }
  int world() const { return config_.world; }
  const Settings& settings() const { return mesh_.settings; }  // in force

  void fail(const Error& error);
  // Ends unfinished work with kAborted, tells peers goodbye. Idempotent, at most about a second. `last_words`: UTF-8,
  // for which exception this rank leaves, "ValueError: no data"; or "".
  void leave(const std::string& last_words = "");

  std::optional<Error> error() const;
  // Of a collective on devices whose notes have been compared: `peer` is waited for in a step of its plan, -1: it is not
  // known who. And which peers' processes are stopped, in words.
  Error timed_out_on_device(const std::string& what, int peer, double seconds, int step) const;
  std::string stopped_peers() const;
  std::vector<int> absent() const;  // after a collective timed out here: the ranks that had not called it
  uint64_t sequence() const;  // collectives submitted so far
  trace::Totals counters() const { return counters_.totals(); }
  std::vector<int64_t> delays() const { return log_.delays(); }  // by rank: ns that the others waited for it alone
  const std::string& name() const { return config_.name; }
  std::string description() const;  // one line per peer: how bytes reach it and why; then which plans run and why

  // Drivable
  bool active() const override { return pending_.load(std::memory_order_acquire) > 0; }
  bool advance() override;
  void check_time() override;
  void set_asleep(bool asleep, std::vector<pollfd>& polls) override;
  Patience patience() const override { return patience_; }
  void step_aside() override;

  // Watched
  void peer_aborted(int rank, const ControlMessage& message) override;
  void peer_left(int rank, const ControlMessage& goodbye) override;
  void peer_lost(int rank, const std::string& how) override;
  void unwatched(const std::string& why) override;
  std::vector<Loss> losses() const override;

 private:
  Group(Runtime& runtime, const GroupConfig& config, Mesh mesh);
  void watch_peers();
  bool latch(const Error& error, const ControlMessage& words);  // false when an error was latched before
  void refuse_in_child() const;
  void refuse_after_end(const Pending& call) const;  // throws the latched error, or that it was left; under mutex_
  static bool ended(const Pending& work);
  void complete(Pending& work, std::exception_ptr error);

  std::shared_ptr<Op> front() const;
  bool advance_front();
  // Starting a collective: group_start.cc.
  void start(Op& op);
  bool heaps_are_shared() const;
  bool meet(Op& op);  // looks at notes that decide on the plan; true when anything moved
  void run_plan(Op& op, const plan::Problem& problem);
  plan::Problem problem_of(const OpDesc& desc) const;
  std::shared_ptr<const plan::Plan> plan_for(const plan::Problem& problem);

  void finish(std::exception_ptr error);
  void log_failed();
  bool finish_all_failed();  // false while a peer may still write into this rank's tensor
  // Peers that write into this rank's tensor: group_fence.cc.
  void expose(const plan::Problem& problem, const Placement& own);
  bool shut_out_the_late();
  bool is_quiet(const Peer& peer) const;
  bool is_tainted() const;   // a peer gave this pass up and may have used its tensors for something else since
  void retire() const;       // see Arena::retire
  void check_nobody_left();  // fails the group when a peer left before it finished the front op

  // Messages: group_messages.cc.
  std::shared_ptr<Message> post(Direction direction, MessageRequest request);
  void check_request(Direction direction, const MessageRequest& request) const;
  std::shared_ptr<Message> take_posted();       // the first that may begin
  std::vector<std::shared_ptr<Message>> held_back() const;
  bool advance_messages();
  void finish_messages();
  void finish_message(Message& message, std::exception_ptr error);
  void finish_messages_failed(const Error& error);
  void check_messages();  // deadlines, lateness, and peers that left or were lost
  void check_stranded();

  std::string name_of_peer(int rank) const;           // as in peer_name.h
  Error named(const Error& error) const;              // that names its culprit so, and a Mismatch both sides
  // With what this rank did when it heard of it: "was in", "had queued", "called" `work`; unless the text names that.
  Error seen_here(const Error& error, const char* did, const Pending& work) const;
  std::string state_of_peer(const Peer& peer) const;  // "running", "stopped by ..."; "" when unknown
  struct Suspicion {
    std::string text;
    int culprit = -1;
  };
  Suspicion suspect() const;  // who keeps the running collective waiting, and what it is doing
  Suspicion suspect(const Message& message) const;
  Suspicion not_ready() const;
  Error timed_out(const Pending& work, Deadline::Clock::time_point since, const Suspicion& suspicion) const;
  bool is_late(const Pending& work, Deadline::Clock::time_point last_moved) const;
  void report_late(Pending& work, Deadline::Clock::time_point last_moved, const Suspicion& suspicion);
  Error explain(const Error& error, const Pending& work) const;
  void tell_all(const ControlMessage& message) const;

  Runtime& runtime_;
  const GroupConfig config_;
  const Mesh mesh_;
  const collective::Topology topology_;
  const bool on_arena_;  // whatever the size
  collective::Fabric fabric_;
  const Patience patience_;
  const int owner_pid_;
  GroupLog log_;

  // How long bytes may still be under way, or better news of a peer, once a link broke or a peer left.
  static constexpr std::chrono::milliseconds kGrace{250};

  mutable std::mutex mutex_;  // guards the next block
  std::deque<std::shared_ptr<Op>> queue_;
  std::deque<std::shared_ptr<Message>> posted_;  // not yet in the mailbox: new, or held back
  int messages_ = 0;                             // not done
  uint64_t next_seq_ = 1;
  uint64_t finished_ = 0;
  std::optional<Error> error_;
  std::vector<int> absent_;
  std::optional<ControlMessage> last_words_;  // what peers are told of error_
  bool left_ = false;
  struct Departure {
    uint64_t finished = 0;   // collectives
    std::string last_words;  // "" or printable
  };
  static std::string how_it_left(const Departure& departure);
  std::map<int, Departure> peers_left_;
  std::map<int, std::string> peers_lost_;        // rank -> how

  std::atomic<int> pending_{0};
  std::atomic<bool> failed_{false};
  std::atomic<bool> someone_left_{false};
  std::atomic<bool> mail_posted_{false};

  // Driver only.
  bool failure_logged_ = false;
  Mailbox mailbox_;
  using Counts = std::vector<int64_t>;
  using PlanKey = std::tuple<plan::Collective, DType, ReduceOp, int32_t, int64_t, Counts, Counts, Counts, bool>;
  std::map<PlanKey, std::shared_ptr<const plan::Plan>> plans_;
  std::shared_ptr<const plan::Plan> plan_;
  std::vector<Placement> placements_;                // of the front op, by rank; empty when no heap is considered
  // The part of the own heap into which peers write, until barrier number `end` has passed.
  struct Exposure {
    int64_t offset = 0, bytes = 0;
    uint64_t end = 0;
    std::optional<Deadline> patience;  // with peers that go on after a failure
  };
  std::optional<Exposure> exposed_;                  // of the front op
  bool in_heaps_ = false;                            // the front op runs on tensors where they lie
  std::atomic<uint64_t> first_barrier_{0};           // of the op that runs; 0: none does
  std::optional<collective::NoteExchange> notes_;    // of the front op, until its plan is known
  std::optional<collective::Executor> executor_;
  std::optional<std::pair<Error, Deadline>> broken_link_;  // what to report unless the watch knows better by then
  collective::Workspace workspace_;
  Deadline::Clock::time_point started_, last_moved_;
  trace::Counters counters_;
};

}  // namespace ringdp::comm
