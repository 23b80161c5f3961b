#include "comm/group.h"

#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "comm/local_exchange.h"
#include "plan/catalog.h"

namespace ringdp::comm {
namespace {

constexpr size_t kMaxPlans = 128;

int usable_cores() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

std::vector<transport::Link*> message_links(const Mesh& mesh) {
  std::vector<transport::Link*> links;
  for (const Peer& peer : mesh.peers) links.push_back(peer.messages.get());
  return links;
}

collective::Topology topology_of(const Mesh& mesh) {
  return {mesh.world, mesh.arena && static_cast<int>(mesh.locals.size()) == mesh.world, mesh.hosts};
}

int choose_spin(const Settings& settings, const Mesh& mesh) {
  int local = 1;
  for (const Peer& peer : mesh.peers) local += peer.rank != mesh.rank && peer.same_host;
  return local <= usable_cores() ? static_cast<int>(settings.spin_us) : 0;
}

}  // namespace

std::shared_ptr<Group> Group::create(Runtime& runtime, transport::Store& store, const GroupConfig& config,
                                     Deadline deadline) {
  Mesh mesh = connect(store, config.rank, config.world, config.settings, runtime.engine.doorbell(), deadline);
  const std::shared_ptr<Group> group(new Group(runtime, config, std::move(mesh)));
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
      choice_(collective::select(config.settings, topology_of(mesh_))),
      spin_us_(choose_spin(config.settings, mesh_)),
      owner_pid_(::getpid()),
      mailbox_(config.rank, message_links(mesh_)) {
  for (const Peer& peer : mesh_.peers) fabric_.links.push_back(peer.link.get());
  fabric_.arena = mesh_.arena.get();
  fabric_.members = mesh_.locals;
}

Group::~Group() = default;

void Group::watch_peers() {
  std::vector<WatchedPeer> peers;
  for (const Peer& peer : mesh_.peers) {
    if (peer.rank == config_.rank || !peer.control) continue;
    const int pidfd = peer.pidfd ? peer.pidfd->get() : -1;
    peers.push_back({peer.rank, peer.control.get(), pidfd, !peer.same_host || !peer.pidfd});
  }
  runtime_.watch.add(shared_from_this(), peers);
}

// The threads and mappings of a group do not survive fork().
void Group::refuse_in_child() const {
  if (::getpid() == owner_pid_) return;
  throw Error(ErrorKind::kInvalidArgument, "this process was forked from rank " + std::to_string(config_.rank) +
                                               " and may not use its process group: call collectives in the rank itself");
}

void Group::refuse_after_end() const {
  if (error_) throw *error_;
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
    refuse_after_end();
    request.desc.seq = next_seq_;
    op = std::make_shared<Op>(std::move(request));
    ++next_seq_;
    queue_.push_back(op);
    pending_.fetch_add(1, std::memory_order_release);
  }
  if (asynchronous) runtime_.engine.kick();
  return op;
}

bool Group::wait(const Pending& work, Deadline deadline) {
  refuse_in_child();
  work.begin_wait();
  if (!runtime_.engine.wait([&work] { return work.done(); }, deadline)) return false;
  if (work.error()) std::rethrow_exception(work.error());
  return true;
}

std::shared_ptr<Op> Group::front() const {
  const std::lock_guard lock(mutex_);
  return queue_.empty() ? nullptr : queue_.front();
}

bool Group::advance() {
  if (failed_.load(std::memory_order_acquire)) {
    finish_all_failed();
    return true;
  }
  const bool mail_moved = advance_messages();
  try {
    if (someone_left_.load(std::memory_order_relaxed)) check_nobody_left();
    return (!broken_link_ && advance_front()) || mail_moved;
  } catch (const Error& error) {
    const auto op = front();
    const Error explained = op ? explain(error, *op) : error;
    // The watch may know better why a link broke: a killed process, a mismatch, a goodbye. check_time() gives it a moment.
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

bool Group::advance_front() {
  const std::shared_ptr<Op> op = front();
  if (!op) return false;
  if (!executor_) start(*op);
  const bool moved = executor_->advance();
  if (!executor_->done()) {
    if (moved) last_moved_ = Deadline::Clock::now();
    return moved;
  }
  counters_.add(executor_->totals());
  executor_.reset();
  if (op->ending_.epilogue) op->ending_.epilogue();
  finish(nullptr);
  return true;
}

void Group::start(Op& op) {
  plan_ = plan_for(op.desc());
  collective::Opening opening;
  opening.seq = op.desc().seq;
  opening.note = encode(op.desc());
  opening.check = [mine = op.desc(), rank = config_.rank](int their_rank, const transport::Note& note) {
    check_same(mine, rank, note, their_rank);
  };
  started_ = last_moved_ = Deadline::Clock::now();
  op.request_.buffers.divisor = op.desc().divisor;
  executor_.emplace(*plan_, std::move(op.request_.buffers), fabric_, workspace_, std::move(opening));
}

std::shared_ptr<const plan::Plan> Group::plan_for(const OpDesc& d) {
  const PlanKey key{d.what, d.dtype, d.op, d.root, d.count, d.counts, d.sends, d.recvs};
  if (const auto known = plans_.find(key); known != plans_.end()) return known->second;
  if (plans_.size() >= kMaxPlans) plans_.clear();
  plan::Problem problem;
  problem.what = d.what;
  problem.dtype = d.dtype;
  problem.op = d.op;
  problem.wire = choice_.wire;
  problem.rank = config_.rank;
  problem.world = config_.world;
  problem.root = d.root;
  problem.count = d.count;
  problem.counts = d.counts;
  problem.hosts = mesh_.hosts;
  problem.sends = d.sends;
  problem.recvs = d.recvs;
  problem.segment_bytes = config_.settings.segment_bytes;
  problem.slot_bytes = planned_slot_bytes(config_.settings);
  auto plan = std::make_shared<const plan::Plan>(plan::make_plan(choice_.algorithm, choice_.order, problem));
  plans_.emplace(key, plan);
  return plan;
}

// Ends the op at the front of the queue.
void Group::finish(std::exception_ptr error) {
  std::shared_ptr<Op> op;
  {
    const std::lock_guard lock(mutex_);
    op = queue_.front();
    queue_.pop_front();
    if (!error) finished_ = op->desc().seq;
  }
  complete(*op, std::move(error));
}

void Group::complete(Pending& work, std::exception_ptr error) {
  const auto on_done = work.finish(error);
  pending_.fetch_sub(1, std::memory_order_release);
  runtime_.engine.announce();
  if (on_done) on_done(std::move(error));
}

void Group::finish_all_failed() {
  executor_.reset();
  const Error error = *this->error();
  while (front()) finish(std::make_exception_ptr(error));
  finish_messages_failed(error);
}

void Group::fail(const Error& error) {
  const ControlMessage words{ControlKind::kAbort, error.kind(), error.culprit(), 0, error.what(), config_.rank};
  if (latch(error, words)) tell_all(words);
}

bool Group::latch(const Error& error, const ControlMessage& words) {
  {
    const std::lock_guard lock(mutex_);
    if (error_ || left_) return false;
    error_ = error;
    last_words_ = words;
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

void Group::leave() {
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
  // A goodbye may overtake the words of whoever failed first; peers must hear the reason before it.
  if (words) tell_all(*words);
  tell_all({ControlKind::kGoodbye, ErrorKind::kAborted, config_.rank, finished, "", -1});
  runtime_.engine.wait([this] { return !active(); }, Deadline::after(kPatience));
  runtime_.watch.remove(this);
  runtime_.engine.remove(this);
  for (const Peer& peer : mesh_.peers) {
    if (peer.control) ::shutdown(peer.control.get(), SHUT_WR);
  }
}

void Group::tell_all(const ControlMessage& message) const {
  for (const Peer& peer : mesh_.peers) {
    if (peer.control) send_control(peer.control.get(), message);
  }
}

void Group::set_asleep(bool asleep, std::vector<pollfd>& polls) {
  if (mesh_.arena) mesh_.arena->set_asleep(asleep);
  if (!asleep) return;
  mailbox_.add_polls(polls);
  if (executor_ && !broken_link_) executor_->add_polls(polls);
}

}  // namespace ringdp::comm
