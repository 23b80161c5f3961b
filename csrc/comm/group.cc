#include "comm/group.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "base/log.h"
#include "comm/engine.h"
#include "plan/one_pass.h"
#include "trace/dump.h"
#include "transport/unix_socket.h"

namespace ringdp::comm {
namespace {

std::vector<transport::Link*> message_links(const Mesh& mesh) {
  std::vector<transport::Link*> links;
  for (const Peer& peer : mesh.peers) links.push_back(peer.messages.get());
  return links;
}

// How many collectives may run beside each other: where one arena holds all ranks, there is no latency to hide.
size_t most_in_flight(const Mesh& mesh) {
  return mesh.world > 1 && !mesh.shares_one_arena() ? collective::kMostInFlight : 1;
}

// Where ranks outnumber cores, a rank that polls for long delays another one's work, and one that polls briefly and
// yields still saves the cost of sleeping. Measured with 4 and 8 ranks on 2 cores, 4 KiB to 16 MiB: 10 to 25 us are
// best.
SpinPolicy choose_spin_policy(const Settings& settings, const Mesh& mesh) {
  constexpr int64_t kCrowdedUs = 15;
  int local = 1;
  for (const Peer& peer : mesh.peers) local += peer.rank != mesh.rank && peer.same_host;
  const bool crowded = local > std::max(1, static_cast<int>(usable_cores().size()));
  return {std::chrono::microseconds(crowded ? std::min(settings.spin_us, kCrowdedUs) : settings.spin_us), crowded};
}

// As connect(); its errors also give the culprit's global rank.
Mesh connect_ranks(Runtime& runtime, transport::Store& store, const GroupConfig& config, Deadline deadline,
                   const Losses& losses) {
  try {
    return connect(store, config.rank, config.world, config.settings, runtime.engine.doorbell(), deadline, losses,
                   config.name);
  } catch (const Error& error) {
    const int culprit = error.culprit();
    const int member = culprit >= 0 && culprit < config.world ? members_of(config)[culprit] : culprit;
    if (member == culprit) throw;
    throw Error(error.kind(),
                std::string(error.what()) + " (rank " + std::to_string(culprit) + " of this group is rank " +
                    std::to_string(member) + " of the job)",
                culprit);
  }
}

}  // namespace

std::vector<int> members_of(const GroupConfig& config) {
  if (config.members.size() == static_cast<size_t>(config.world)) return config.members;
  std::vector<int> same(config.world);
  std::iota(same.begin(), same.end(), 0);
  return same;
}

std::shared_ptr<Group> Group::create(Runtime& runtime, transport::Store& store, const GroupConfig& config,
                                     Deadline deadline) {
  const std::vector<int> members = members_of(config);
  const Losses losses = [&] {
    std::vector<Loss> all = runtime.watch.losses();
    for (Loss& loss : all) {
      loss.member = static_cast<int>(std::find(members.begin(), members.end(), loss.member) - members.begin());
    }
    return all;
  };
  Mesh mesh = connect_ranks(runtime, store, config, deadline, losses);
  const std::shared_ptr<Group> group(new Group(runtime, config, std::move(mesh)));
  trace::clear_dump_if_asked();
  group->watch_peers();
  runtime.engine.add(group);
  log_line(LogLevel::kInfo, "rank " + std::to_string(config.rank) + "/" + std::to_string(config.world),
           "group " + config.name + ": " + group->description());
  return group;
}

Group::Group(Runtime& runtime, const GroupConfig& config, Mesh mesh)
    : runtime_(runtime),
      config_(config),
      mesh_(std::move(mesh)),
      plans_(mesh_),
      fence_(mesh_),
      spin_policy_(choose_spin_policy(config.settings, mesh_)),
      owner_pid_(::getpid()),
      log_(trace::recorder(), config.name, config.rank, members_of(config), most_in_flight(mesh_)),
      lateness_(config.settings.late_ms),
      mailbox_(config.rank, message_links(mesh_)) {
  for (const Peer& peer : mesh_.peers) fabric_.links.push_back(peer.link.get());
  fabric_.arena = mesh_.arena.get();
  fabric_.members = mesh_.locals;
  if (most_in_flight(mesh_) > 1) fabric_.frame_links(collective::ahead_bytes(config.world));
}

Group::~Group() = default;

void Group::watch_peers() {
  std::vector<WatchedPeer> peers;
  for (const Peer& peer : mesh_.peers) {
    if (peer.rank == config_.rank || !peer.control) continue;
    const int pidfd = peer.pidfd ? peer.pidfd->get() : -1;
    peers.push_back({peer.rank, peer.control.view(), pidfd, !peer.same_host || !peer.pidfd});
  }
  runtime_.watch.add(shared_from_this(), peers);
}

// The threads and mappings of a group do not survive fork().
void Group::refuse_in_child() const {
  if (::getpid() == owner_pid_) return;
  throw Error(ErrorKind::kInvalidArgument,
              "this process was forked from rank " + std::to_string(config_.rank) +
                  " and may not use its process group: call collectives in the rank itself");
}

void Group::refuse_after_end(const Pending& call) const {
  if (error_) throw with_activity(*error_, "called", call);
  if (left_) throw Error(ErrorKind::kInvalidArgument, "process group " + config_.name + " was destroyed on this rank");
}

std::shared_ptr<Op> Group::submit(Request request) {
  refuse_in_child();
  request.desc.group = hash_name(config_.name);
  request.desc.generation = mesh_.generation;
  const bool asynchronous = request.asynchronous;
  std::shared_ptr<Op> op;
  {
    const std::lock_guard lock(mutex_);
    request.desc.seq = next_seq_;
    op = std::make_shared<Op>(std::move(request));
    refuse_after_end(*op);
    ++next_seq_;
    queue_.push_back(op);
    pending_.fetch_add(1, std::memory_order_release);
  }
  log_.enqueued(op->desc(), trace::in_ns(op->submitted()));
  if (asynchronous) runtime_.engine.kick();
  return op;
}

bool Group::wait(const Pending& work, Deadline deadline) {
  refuse_in_child();
  work.begin_wait();
  if (work.done()) return ended(work);
  const int64_t since = trace::now_ns();
  const bool in_time = runtime_.engine.wait([&work] { return work.done(); }, deadline);
  log_.waited(since);
  return in_time && ended(work);
}

// True; throws the error of work that failed.
bool Group::ended(const Pending& work) {
  if (work.error()) std::rethrow_exception(work.error());
  return true;
}

std::shared_ptr<Op> Group::front() const {
  const std::lock_guard lock(mutex_);
  return queue_.empty() ? nullptr : queue_.front();
}

bool Group::advance() {
  if (failed_.load(std::memory_order_acquire)) {
    return finish_all_failed();
  }
  const bool mail_moved = advance_messages();
  try {
    if (any_peer_left_.load(std::memory_order_relaxed)) check_departures();
    return (!broken_link_ && advance_collectives()) || mail_moved;
  } catch (const Error& error) {
    const auto op = front();
    const Error explained = op ? with_work(error, *op) : error;
    // The watch may know why the link broke: a killed process, a mismatch, a goodbye. check_time() waits for that.
    if (error.kind() == ErrorKind::kPeerLost && !broken_link_) {
      broken_link_.emplace(explained, Deadline::after(kGrace));
    } else {
      fail(explained);
    }
  } catch (const std::exception& error) {
    fail(Error(ErrorKind::kInternal, error.what()));
  }
  return true;
}

bool Group::advance_collectives() {
  bool moved = false;
  for (InFlight& flight : in_flight_) moved |= advance(flight);
  while (begin_next()) moved |= advance(in_flight_.back());
  moved |= fabric_.take_arrived();
  if (in_flight_.empty()) return false;
  log_.looked();
  const InFlight& first = in_flight_.front();
  if (!first.executor || !first.executor->done() || fence_.may_be_overwritten()) return moved;
  const std::shared_ptr<Op> op = first.op;
  trace::Totals totals = first.executor->totals();
  totals.header_bytes_sent += fabric_.take_frame_bytes();
  counters_.add(totals);
  log_.ended(op->desc(), first.executor->backlogs(), /*failed=*/false);
  in_flight_.pop_front();
  fence_.end();
  if (op->ending_.epilogue) op->ending_.epilogue();
  finish(nullptr);
  if (!in_flight_.empty()) becomes_first(in_flight_.front());
  return true;
}

bool Group::advance(InFlight& flight) {
  if (flight.error) return false;
  try {
    bool moved = flight.headers && choose_plan(flight);
    if (flight.executor) moved |= flight.executor->advance();
    if (moved && is_front(flight)) last_moved_ = Deadline::Clock::now();
    return moved;
  } catch (...) {
    if (is_front(flight) || fabric_.is_sending(flight.op->desc().seq)) throw;  // others wait for the rest of a frame
    flight.error = std::current_exception();
    return true;
  }
}

// Begins the first collective that has not begun, if it may.
bool Group::begin_next() {
  const bool is_alone = in_flight_.empty();
  if (!is_alone && (!fabric_.runs_several() || in_flight_.size() == collective::kMostInFlight)) return false;
  if (next_.empty() && !look_at_next()) return false;
  InFlight& next = next_.front();
  if ((!is_alone && !may_begin_beside_others(next)) || !next.op->may_begin()) return false;
  in_flight_.splice(in_flight_.end(), next_);
  if (is_alone) becomes_first(next);
  try {
    begin(next);
  } catch (...) {
    if (is_alone) throw;
    next.error = std::current_exception();
  }
  return true;
}

bool Group::look_at_next() {
  std::shared_ptr<Op> op;
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() <= in_flight_.size()) return false;
    op = queue_[in_flight_.size()];
  }
  InFlight& next = next_.emplace_back(op, plans_.problem_of(op->desc()));
  if (!fabric_.runs_several()) return true;
  const collective::Buffers& buffers = op->request_.buffers;
  next.memory = accessed_by(next.problem, buffers);
  // What else it does at its end, or on the way, may be to memory of those behind it.
  const bool writes_only_results = op->desc().place == Place::kHost && !buffers.on_result;
  next.lets_others_begin = writes_only_results && !op->ending_.epilogue;
  next.may_begin_beside_others = writes_only_results && uses_links_only(next.problem);
  return true;
}

bool Group::uses_links_only(const plan::Problem& problem) {
  try {
    return !plan::has_barriers(*plans_.plan_for(problem));
  } catch (const Error&) {
    return false;  // it meets that error at its turn
  }
}

bool Group::may_begin_beside_others(const InFlight& next) const {
  return next.may_begin_beside_others && std::all_of(in_flight_.begin(), in_flight_.end(), [&](const InFlight& flight) {
           return flight.lets_others_begin && !flight.error && !conflict(flight.memory, next.memory);
         });
}

// Ends the op at the front of the queue.
void Group::finish(std::exception_ptr error) {
  std::shared_ptr<Op> op;
  {
    const std::lock_guard lock(mutex_);
    op = queue_.front();
    queue_.pop_front();
    if (!error) finished_ = op->desc().seq;
    if (error_ && queue_.empty()) fence_.retire();  // it failed while this op, its last, was ending
  }
  complete(*op, std::move(error));
}

void Group::complete(Pending& work, std::exception_ptr error) {
  const auto on_done = work.finish(error);
  if (!error && !lateness_.is_short(work.seconds())) lateness_.took(work.call(), work.seconds());
  if (pending_.fetch_sub(1) == 1 && leaves_engine_.load()) runtime_.engine.remove(this);
  runtime_.engine.announce();
  if (on_done) on_done(std::move(error));
}

bool Group::finish_all_failed() {
  in_flight_.clear();
  next_.clear();
  fence_.retire();
  if (!fence_off_peers()) return false;
  const Error error = *this->error();
  log_failed();
  const char* did = "was in";
  while (const auto op = front()) {
    finish(std::make_exception_ptr(with_activity(error, std::exchange(did, "had queued"), *op)));
  }
  finish_messages_failed(error);
  return true;
}

void Group::fail(const Error& unnamed) {
  const Error error = with_names(unnamed);
  const ControlMessage words{ControlKind::kAbort, error.kind(), error.culprit(), 0, error.what(), config_.rank};
  if (latch(error, words)) send_to_all(words);
}

bool Group::latch(const Error& error, const ControlMessage& words) {
  {
    const std::lock_guard lock(mutex_);
    if (error_ || left_) return false;
    error_ = error;
    last_words_ = words;
    // Nothing runs or can be submitted any more. Otherwise the driver retires when it has stopped.
    if (queue_.empty()) fence_.retire();
  }
  failed_.store(true, std::memory_order_release);
  if (active()) runtime_.engine.kick();
  return true;
}

std::optional<Error> Group::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

uint64_t Group::sequence() const {
  const std::lock_guard lock(mutex_);
  return next_seq_ - 1;
}

void Group::leave(const std::string& last_words) {
  constexpr auto kPatience = std::chrono::seconds(1);
  if (::getpid() != owner_pid_) return;  // a forked child must not say goodbye for its parent
  uint64_t finished = 0;
  std::optional<ControlMessage> words;
  {
    const std::lock_guard lock(mutex_);
    if (left_) return;
    left_ = true;
    finished = finished_;
    words = last_words_;
    if (!error_ && (!queue_.empty() || messages_ > 0)) {
      const std::string work = queue_.empty() ? "a send or receive" : queue_.front()->describe();
      error_ = Error(ErrorKind::kAborted, "process group " + config_.name + " was destroyed on rank " +
                                              std::to_string(config_.rank) + " while " + work + " was in flight");
    }
    failed_.store(error_.has_value(), std::memory_order_release);
  }
  if (has_heap()) mesh_.arena->heap()->close(/*peers_are_done=*/!failed_.load(std::memory_order_acquire));
  if (!active()) fence_.retire();
  // This goodbye may overtake the message of the rank that failed first: peers must get the reason before it.
  if (words) send_to_all(*words);
  send_to_all({ControlKind::kGoodbye, ErrorKind::kAborted, config_.rank, finished, last_words, -1});
  const bool has_ended = runtime_.engine.wait([this] { return !active(); }, Deadline::after(kPatience));
  if (has_heap() && has_ended) mesh_.arena->give_heap_back();
  runtime_.watch.remove(this);
  leaves_engine_.store(true);
  if (pending_.load() == 0) runtime_.engine.remove(this);  // else complete() does: somebody may wait for what is left
  for (const Peer& peer : mesh_.peers) {
    if (peer.control) ::shutdown(peer.control.get(), SHUT_WR);
  }
  trace::dump_if_asked();
}

void Group::send_to_all(const ControlMessage& message) const {
  for (const Peer& peer : mesh_.peers) {
    if (peer.control) send_control(peer.control.view(), message);
  }
}

// Where ranks outnumber cores there is no free core.
void Group::leave_shared_core() {
  if (mesh_.arena && !spin_policy_.yields) comm::leave_shared_core(*mesh_.arena);
}

void Group::set_asleep(bool asleep, std::vector<pollfd>& polls) {
  if (mesh_.arena) mesh_.arena->set_asleep(asleep);
  if (!asleep) return;
  mailbox_.add_polls(polls);
  for (const InFlight& flight : in_flight_) {
    if (flight.executor && !flight.error && !broken_link_) flight.executor->add_polls(polls);
  }
}

// Nothing runs any more that was submitted before it.
void Group::becomes_first(InFlight& flight) {
  started_ = last_moved_ = Deadline::Clock::now();
  fence_.begin();
  log_.started(flight.op->desc(), trace::in_ns(started_));
  if (flight.executor) log_.looked();  // it has begun before
  for (const auto& [rank, theirs] : flight.entered) log_.entered(rank, theirs, trace::in_ns(started_));
  if (flight.plan) log_.running(flight.plan->algorithm);
  if (flight.error) std::rethrow_exception(flight.error);
}

void Group::begin(InFlight& flight) {
  Op& op = *flight.op;
  const plan::Problem& problem = flight.problem;
  collective::Buffers& buffers = op.request_.buffers;
  buffers.divisor = op.desc().divisor;
  const bool large = heaps_are_shared() && plan::is_for_one_pass(problem);
  flight.placements.assign(large ? config_.world : 0, {});
  Placement own;
  if (large) own = flight.placements[config_.rank] = place(problem, buffers, *mesh_.arena);
  collective::Opening opening;
  opening.seq = op.desc().seq;
  const auto& digests = op.request_.digests;
  if (digests) {
    digests->all.assign(config_.world, 0);
    digests->all[config_.rank] = digests->own;
    if (digests->with_sums) buffers.contributions = &digests->summed;
  }
  opening.header = encode(op.desc(), own, log_.remarks(opening.seq, digests ? digests->own : 0));
  opening.check = [this, &flight](int rank, const transport::Header& header) { check_header(flight, rank, header); };
  flight.headers.emplace(fabric_, config_.rank, config_.world, std::move(opening));
  if (large && allows_heaps(problem, config_.rank, own, mesh_.arena->heap_bytes())) {
    fence_.expose(problem, own);
    flight.headers->publish_before_arrival();  // the plan depends on the headers of all ranks
  } else {
    run_plan(flight);
  }
}

void Group::check_header(InFlight& flight, int rank, const transport::Header& header) {
  const Op& op = *flight.op;
  check_same(op.desc(), config_.rank, header, rank);
  if (!flight.placements.empty()) flight.placements[rank] = placement_in(header);
  const Remarks theirs = remarks_in(header);
  if (op.request_.digests) op.request_.digests->all[rank] = theirs.digest;
  if (is_front(flight)) {
    log_.entered(rank, theirs);
  } else {
    flight.entered.emplace_back(rank, theirs);
  }
}

// All ranks share one arena with heaps, and every collective uses it.
bool Group::heaps_are_shared() const { return plans_.always_uses_arena() && has_heap() && mesh_.shares_one_arena(); }

bool Group::choose_plan(InFlight& flight) {
  const bool moved = flight.headers->advance();
  if (!flight.headers->all_checked()) return moved;
  auto located = locate(flight.problem, flight.placements, *mesh_.arena);
  flight.problem.in_heaps = located.has_value();
  fence_.decide(flight.problem.in_heaps);
  if (located) flight.op->request_.buffers.peers = std::move(*located);
  run_plan(flight);
  return true;
}

void Group::run_plan(InFlight& flight) {
  flight.plan = plans_.plan_for(flight.problem);
  if (is_front(flight)) log_.running(flight.plan->algorithm);
  flight.executor.emplace(*flight.plan, std::move(flight.op->request_.buffers), fabric_, workspace_,
                          std::move(*flight.headers));
  flight.headers.reset();
}

std::string Group::why_no_shared_heaps() const {
  if (!mesh_.shares_one_arena()) return "not all ranks share memory of one host";
  return has_heap() ? "" : "heap_bytes is 0, or there was no address space for a heap on some rank";
}

std::vector<std::byte*> Group::heaps() const {
  std::vector<std::byte*> heaps;
  for (int member = 0; has_heap() && member < mesh_.arena->size(); ++member) {
    heaps.push_back(mesh_.arena->heap_at(member));
  }
  return heaps;
}

bool Group::is_peer_process(int socket, int rank) const {
  return transport::is_process(socket, mesh_.peers[rank].identity, mesh_.peers[config_.rank].identity);
}

std::shared_ptr<transport::Heap> Group::heap() const {
  refuse_in_child();
  if (has_heap()) return mesh_.arena->heap();
  throw Error(ErrorKind::kInvalidArgument,
              "process group " + config_.name + " has no memory that ranks share: " +
                  (mesh_.arena ? "heap_bytes is 0, or there was no address space for a heap on some rank"
                               : "the ranks of this host are not connected by shared memory") +
                  "; use an ordinary tensor");
}

}  // namespace ringdp::comm
