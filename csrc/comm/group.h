// One process group on one rank: its peers, its collectives and messages, its failure and its end.
//
// submit(), send(), recv(), fail() and leave() may be called by any thread; everything else runs on the driver
// (engine.h) or the watch. Collectives begin and end in the order of their submission, several at once between hosts
// (in_flight.h), messages concurrently with them. The first error is latched: it ends all queued work, is sent to all
// peers, and is thrown by every later submit(), send() and recv().
#pragma once
#include <atomic>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "collective/executor.h"
#include "comm/bootstrap.h"
#include "comm/engine.h"
#include "comm/group_log.h"
#include "comm/heap_fence.h"
#include "comm/in_flight.h"
#include "comm/lateness.h"
#include "comm/mailbox.h"
#include "comm/pending.h"
#include "comm/placement.h"
#include "comm/plan_cache.h"
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
  std::vector<int> members = {};  // global rank of each group rank; empty: they are equal
};
std::vector<int> members_of(const GroupConfig& config);

class Group : public Drivable, public Watched, public std::enable_shared_from_this<Group> {
 public:
  // Collective over all ranks: connects them (see bootstrap.h).
  static std::shared_ptr<Group> create(Runtime& runtime, transport::Store& store, const GroupConfig& config,
                                       Deadline deadline);
  ~Group() override;

  // Throws InvalidArgument (nothing happened) or the latched error.
  std::shared_ptr<Op> submit(Request request);
  std::shared_ptr<Message> send(MessageRequest request);
  std::shared_ptr<Message> recv(MessageRequest request);
  // Drives until `work` is done and throws its error if it failed; false when `deadline` passed first.
  bool wait(const Pending& work, Deadline deadline);

  // This rank's heap: collectives of this group access tensors there without copying. It outlives the group, and the
  // next one may adopt it.
  // InvalidArgument when no rank of this host shares memory with this one, or in a forked child.
  std::shared_ptr<transport::Heap> heap() const;
  bool has_heap() const { return mesh_.arena && mesh_.arena->heap(); }

  // For ranks that set up shared device memory:
  std::string why_no_shared_heaps() const;  // "" when all ranks map each other's heaps
  std::vector<std::byte*> heaps()
      const;  // where this process maps the heap of each arena member, while mappings() lives
  std::shared_ptr<const void> mappings() const { return mesh_.arena ? mesh_.arena->mappings() : nullptr; }
  int64_t heap_bytes() const { return has_heap() ? mesh_.arena->heap_bytes() : 0; }
  bool is_peer_process(int socket, int rank) const;  // whether `rank` is at the other end of this unix socket
  const std::vector<int>& hosts() const { return mesh_.hosts; }  // see Mesh::hosts
  int ranks_on_host() const { return static_cast<int>(mesh_.locals.size()); }
  // The algorithm for CPU tensors of `bytes` together, as in Problem::total_bytes().
  collective::Choice choice(plan::Collective what, int64_t bytes) const { return plans_.choice(what, bytes); }
  int rank() const { return config_.rank; }
  int world() const { return config_.world; }
  const Settings& settings() const { return mesh_.settings; }  // as agreed on by all ranks

  void fail(const Error& error);
  // Ends unfinished work with kAborted and sends goodbye to all peers. Idempotent; takes about a second at most.
  // `last_words`: the exception that ends this rank, for its peers' errors: "ValueError: no data", in UTF-8; or "".
  void leave(const std::string& last_words = "");

  std::optional<Error> error() const;
  // The kTimeout error of a collective on devices, after headers were compared. `peer`: the rank for which step `step`
  // of its plan waits; -1: unknown.
  Error timed_out_on_device(const std::string& what, int peer, double seconds, int step) const;
  bool is_short(double seconds) const { return lateness_.is_short(seconds); }  // a wait that is never reported
  std::string stopped_peers() const;  // names the peers whose processes are stopped (SIGSTOP, debugger); "": none
  std::vector<int> absent() const;    // after a collective timed out here: the ranks that had not called it
  uint64_t sequence() const;          // collectives submitted so far
  trace::Totals counters() const { return counters_.totals(); }
  std::vector<int64_t> delays() const { return log_.delays(); }  // by rank: ns for which the others waited for it alone
  const std::string& name() const { return config_.name; }
  std::string description() const;  // one line per peer: its transport and why; then which plans run and why

  // Drivable
  bool active() const override { return pending_.load(std::memory_order_acquire) > 0; }
  bool advance() override;
  void check_time() override;
  void set_asleep(bool asleep, std::vector<pollfd>& polls) override;
  SpinPolicy spin_policy() const override { return spin_policy_; }
  void leave_shared_core() override;

  // Watched
  void peer_aborted(int rank, const ControlMessage& message) override;
  void peer_left(int rank, const ControlMessage& goodbye) override;
  void peer_lost(int rank, const std::string& how) override;
  void watch_failed(const std::string& why) override;
  std::vector<Loss> losses() const override;

 private:
  Group(Runtime& runtime, const GroupConfig& config, Mesh mesh);
  void watch_peers();
  bool latch(const Error& error, const ControlMessage& words);  // false when an error was latched before
  void refuse_in_child() const;
  void refuse_after_end(const Pending& call) const;  // throws if the group has failed or was left; under mutex_
  static bool ended(const Pending& work);
  void complete(Pending& work, std::exception_ptr error);

  // Collectives.
  std::shared_ptr<Op> front() const;
  bool advance_collectives();
  bool begin_next();
  bool look_at_next();  // false when there is none
  bool uses_links_only(const plan::Problem& problem);
  bool may_begin_beside_others(const InFlight& next) const;
  bool is_front(const InFlight& flight) const { return &flight == &in_flight_.front(); }
  void becomes_first(InFlight& flight);
  void begin(InFlight& flight);
  void check_header(InFlight& flight, int rank, const transport::Header& header);
  bool advance(InFlight& flight);  // true when anything moved
  bool heaps_are_shared() const;
  bool choose_plan(InFlight& flight);  // where it depends on all ranks' headers; true when anything moved
  void run_plan(InFlight& flight);
  void finish(std::exception_ptr error);
  bool finish_all_failed();  // false while a peer may still write into this rank's tensor
  void send_to_all(const ControlMessage& message) const;

  // Messages: group_messages.cc.
  std::shared_ptr<Message> post(Direction direction, MessageRequest request);
  void check_request(Direction direction, const MessageRequest& request) const;
  std::shared_ptr<Message> take_posted();  // the first that may begin
  std::vector<std::shared_ptr<Message>> held_back() const;
  bool advance_messages();
  void finish_messages();
  void finish_message(Message& message, std::exception_ptr error);
  void finish_messages_failed(const Error& error);
  void check_messages();  // deadlines, lateness, and peers that left or were lost
  void check_stranded();  // fails the group when a message can no longer complete

  // Failures: group_failures.cc.
  void log_failed();
  bool fence_off_peers();
  void check_departures();  // fails the group when a peer left before it finished the front op
  std::string name_of_peer(int rank) const;
  // Copies of an error with more context. With pid and host of the culprit; of a Mismatch, of both sides:
  Error with_names(const Error& error) const;
  // With what this rank was doing ("was in", "had queued" or "called" `work`), unless the text names `work`:
  Error with_activity(const Error& error, const char* did, const Pending& work) const;
  std::string state_of_peer(const Peer& peer) const;  // "running", "stopped by ..."; "" when unknown
  double unreachable_for(const Peer& peer) const;
  bool is_stopped(const Peer& peer) const;
  struct Suspicion {
    std::string text;
    int culprit = -1;
  };
  Suspicion suspect() const;  // the ranks that keep the running collective waiting, and what they are doing
  Suspicion suspect(const Message& message) const;
  Suspicion not_ready() const;
  Error timed_out(const Pending& work, Deadline::Clock::time_point since, const Suspicion& suspicion) const;
  bool is_late(const Pending& work, Deadline::Clock::time_point last_moved, const std::function<bool()>& stopped);
  void report_late(Pending& work, Deadline::Clock::time_point last_moved, const Suspicion& suspicion);
  // With what the peer said when it left:
  Error with_departure(const Error& error) const;
  // With the collective or message in which a link broke:
  Error with_work(const Error& error, const Pending& work) const;

  Runtime& runtime_;
  const GroupConfig config_;
  const Mesh mesh_;
  PlanCache plans_;
  HeapFence fence_;
  collective::Fabric fabric_;
  const SpinPolicy spin_policy_;
  const int owner_pid_;
  GroupLog log_;

  // After a link broke or a peer left: how long to wait for bytes in flight, or for the reason.
  static constexpr std::chrono::milliseconds kGrace{250};

  mutable std::mutex mutex_;  // guards the next block
  std::deque<std::shared_ptr<Op>> queue_;
  std::deque<std::shared_ptr<Message>> posted_;  // not yet in the mailbox: new, or held back
  int messages_ = 0;                             // that are not done
  uint64_t next_seq_ = 1;
  uint64_t finished_ = 0;
  std::optional<Error> error_;
  std::vector<int> absent_;
  std::optional<ControlMessage> last_words_;  // the message about error_ that peers get
  bool left_ = false;
  struct Departure {
    uint64_t finished = 0;   // collectives that it had finished
    std::string last_words;  // "" or printable
  };
  static std::string how_it_left(const Departure& departure);
  std::map<int, Departure> peers_left_;
  std::map<int, std::string> peers_lost_;  // rank -> how

  std::atomic<int> pending_{0};
  std::atomic<bool> failed_{false};
  std::atomic<bool> leaves_engine_{false};  // once nothing is active
  std::atomic<bool> any_peer_left_{false};
  std::atomic<bool> mail_posted_{false};

  // Driver only.
  bool failure_logged_ = false;
  Lateness lateness_;
  Mailbox mailbox_;
  std::optional<std::pair<Error, Deadline>> broken_link_;  // reported at the deadline unless the watch knows the cause
  collective::Workspace workspace_;
  std::list<InFlight> in_flight_;                     // the first collectives of the queue, which have begun
  std::list<InFlight> next_;                          // the one behind them, once it has been looked at
  Deadline::Clock::time_point started_, last_moved_;  // of the first of them, since it is that
  trace::Counters counters_;
};

}  // namespace ringdp::comm
