// The part of Group that handles time and failures: deadlines, late peers, peers that fail, die or leave.
#include <cctype>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "comm/group.h"
#include "comm/peer_state.h"
#include "trace/dump.h"
#include "transport/process_fds.h"
#include "transport/tcp/send_window.h"
#include "transport/tcp/tcp_socket.h"

namespace ringdp::comm {
namespace {

std::string in_seconds(double s) {
  const auto tenths = static_cast<long long>(s * 10 + 0.5);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

// Whether `text` contains `work`, and not as the beginning of another one ("#1" of "#12").
bool names(const std::string& text, const std::string& work) {
  const size_t at = text.find(work), end = at + work.size();
  return at != std::string::npos && (end == text.size() || std::isdigit(static_cast<unsigned char>(text[end])) == 0);
}

}  // namespace

std::string Group::name_of_peer(int rank) const {
  const Peer& peer = mesh_.peers[rank];
  return comm::name_of_peer(rank, members_of(config_)[rank], peer.identity, peer.address);
}

Error Group::with_names(const Error& error) const {
  const int culprit = error.culprit();
  if (culprit < 0 || culprit >= config_.world || culprit == config_.rank) return error;
  const Peer& peer = mesh_.peers[culprit];
  const bool says_address = std::string(error.what()).find(peer.address) != std::string::npos;
  const std::string name =
      comm::name_of_peer(culprit, members_of(config_)[culprit], peer.identity, says_address ? "" : peer.address);
  Error found = with_name(error, culprit, name);
  if (std::string(found.what()).find(process_of(peer.identity)) == std::string::npos) {
    found = Error(error.kind(), name + ": " + error.what(), culprit);
  }
  // Both sides of a mismatch are named, for the other ranks.
  return error.kind() == ErrorKind::kMismatch ? with_name(found, config_.rank, name_of_peer(config_.rank)) : found;
}

Error Group::with_activity(const Error& error, const char* did, const Pending& work) const {
  const std::string text = error.what(), what = work.describe();
  const bool of_calls = error.kind() == ErrorKind::kMismatch || error.kind() == ErrorKind::kInvalidArgument;
  if (of_calls || names(text, what)) return error;
  const auto* const op = dynamic_cast<const Op*>(&work);
  const std::string bytes = op ? ", " + std::to_string(bytes_of(op->desc(), config_.world)) + " bytes" : "";
  return Error(error.kind(), text + " (this rank " + did + " " + what + bytes + ")", error.culprit());
}

std::string Group::state_of_peer(const Peer& peer) const { return peer.pidfd ? process_state(peer.pid) : ""; }

// Seconds of silence of another host's network; 0 where that is no more than a busy host or a lost packet explains.
double Group::unreachable_for(const Peer& peer) const {
  constexpr int64_t kNoticedMs = 1500;  // heartbeats come every quarter of a second
  const int64_t silent = peer.control && !peer.same_host ? transport::silent_for_ms(peer.control.get()) : 0;
  return silent >= kNoticedMs ? static_cast<double>(silent) / 1000 : 0;
}

bool Group::is_stopped(const Peer& peer) const {
  return peer.rank != config_.rank && state_of_peer(peer).rfind("stopped", 0) == 0;
}

// Blames stopped processes first, then ranks that have not called. Ranks whose bytes do not arrive come last, because
// they may be waiting for another rank.
Group::Suspicion Group::suspect() const {
  std::map<int, std::string> said;
  int culprit = -1;
  const InFlight& first = in_flight_.front();
  const std::vector<int> silent = first.silent_ranks();
  for (const int rank : silent.empty() && first.executor ? first.executor->awaited_ranks() : std::vector<int>{}) {
    said[rank] = " has called it, but its data does not arrive";
    culprit = rank;
  }
  for (const int rank : silent) {
    said[rank] = " has not called it";
    if (fabric_.arena && fabric_.arena->size() == config_.world) {
      said[rank] += ", its last was #" + std::to_string(fabric_.arena->last_header(rank));
    }
    culprit = rank;
  }
  for (const Peer& peer : mesh_.peers) {
    if (const double seconds = unreachable_for(peer); seconds > 0 && said.count(peer.rank)) {
      said[peer.rank] =
          " has not been reached for " + in_seconds(seconds) + ": its host, or the network to it, does not answer";
      culprit = peer.rank;
    }
    const std::string state = state_of_peer(peer);
    const bool stopped = state.rfind("stopped", 0) == 0;
    if (stopped) culprit = peer.rank;
    if (!state.empty() && (stopped || said.count(peer.rank))) said[peer.rank] += ", its process is " + state;
  }
  std::string text;
  for (const auto& [rank, words] : said) text += (text.empty() ? "" : "; ") + name_of_peer(rank) + words;
  return {text.empty() ? "its data stopped moving" : text, culprit};
}

Group::Suspicion Group::not_ready() const {
  return {"it never began, because the device of this rank has not finished the work that produces its tensors",
          config_.rank};
}

Error Group::timed_out(const Pending& work, Deadline::Clock::time_point since, const Suspicion& suspicion) const {
  return Error(
      ErrorKind::kTimeout,
      work.describe() + " did not finish in time: waited " + in_seconds(seconds_since(since)) + "; " + suspicion.text +
          ". Look at that rank's own error or stack; raise the timeout of the process group if it is only slow.",
      suspicion.culprit);
}

Error Group::timed_out_on_device(const std::string& what, int peer, double seconds, int step) const {
  std::string text = stopped_peers();
  if (peer < 0 && text.empty()) {
    text = "the device of this rank, or one that it waits for, has not reached it or is blocked";
  } else if (peer >= 0) {
    const std::string state = state_of_peer(mesh_.peers[peer]);
    text = name_of_peer(peer) + " has called it, but its device has not reached what step " + std::to_string(step) +
           " waits for" + (state.empty() ? "" : ", its process is " + state);
  }
  return Error(
      ErrorKind::kTimeout,
      "group " + config_.name + ": " + what + " did not finish in time: waited " + in_seconds(seconds) + "; " + text +
          ". Look at that rank's own error or stack; raise the timeout of the process group if it is only slow.",
      peer >= 0 ? peer : config_.rank);
}

std::string Group::stopped_peers() const {
  std::string text;
  for (const Peer& peer : mesh_.peers) {
    if (!is_stopped(peer)) continue;
    text += (text.empty() ? "" : "; ") + name_of_peer(peer.rank) + ", its process is " + state_of_peer(peer);
  }
  return text;
}

void Group::check_time() {
  check_messages();
  const std::shared_ptr<Op> op = front();
  if (!op || failed_.load(std::memory_order_acquire)) return;
  if (in_flight_.empty()) {
    if (op->deadline().passed()) fail(timed_out(*op, op->submitted(), not_ready()));
  } else if (broken_link_) {
    if (broken_link_->second.passed()) fail(with_departure(broken_link_->first));
  } else if (op->deadline().passed()) {
    {
      const std::lock_guard lock(mutex_);
      absent_ = in_flight_.front().silent_ranks();
    }
    fail(timed_out(*op, started_, suspect()));
  } else if (is_late(*op, last_moved_, [this] { return !stopped_peers().empty(); })) {
    report_late(*op, last_moved_, suspect());
  }
}

std::vector<int> Group::absent() const {
  const std::lock_guard lock(mutex_);
  return absent_;
}

bool Group::is_late(const Pending& work, Deadline::Clock::time_point last_moved, const std::function<bool()>& stopped) {
  const double waited = seconds_since(last_moved);
  return !work.reported_late_ && !lateness_.is_short(waited) && lateness_.due(work.call(), waited, stopped);
}

// A late peer is not dead: a collective or message is reported once and goes on until its deadline.
void Group::report_late(Pending& work, Deadline::Clock::time_point last_moved, const Suspicion& suspicion) {
  work.reported_late_ = true;
  log_line(LogLevel::kWarning, "rank " + std::to_string(config_.rank) + "/" + std::to_string(config_.world),
           work.describe() + " has waited " + in_seconds(seconds_since(last_moved)) + ": " + suspicion.text);
}

// The dump is written before callers see the failure: it may end the process.
void Group::log_failed() {
  if (std::exchange(failure_logged_, true)) return;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& op : queue_) log_.ended(op->desc(), {}, /*failed=*/true);
  }
  trace::dump_if_asked();
}

void Group::peer_aborted(int rank, const ControlMessage& message) {
  const int origin = message.origin >= 0 && message.origin < config_.world ? message.origin : rank;
  latch(Error(message.error, name_of_peer(origin) + " gave up: " + message.text, message.culprit), message);
}

void Group::peer_left(int rank, const ControlMessage& goodbye) {
  {
    const std::lock_guard lock(mutex_);
    peers_left_[rank] = {goodbye.seq, printable(goodbye.text.substr(0, goodbye.text.find('\n')), kMaxLastWords)};
  }
  any_peer_left_.store(true, std::memory_order_relaxed);
  if (active()) runtime_.engine.kick();
}

void Group::peer_lost(int rank, const std::string& how) {
  {
    const std::lock_guard lock(mutex_);
    peers_lost_[rank] = how;
  }
  fail(Error(ErrorKind::kPeerLost,
             name_of_peer(rank) + " " + how + ". Its own output tells why; restart the job from its last checkpoint.",
             rank));
}

void Group::watch_failed(const std::string& why) {
  fail(Error(ErrorKind::kInternal, "peers of process group " + config_.name + " cannot be watched any more (" + why +
                                       "): a rank that dies would go unnoticed"));
}

// Peers that left in good order are not lost for this group, but may be for one that is being made.
std::vector<Loss> Group::losses() const {
  std::vector<Loss> losses;
  const std::vector<int> members = members_of(config_);
  const std::lock_guard lock(mutex_);
  for (const auto& [rank, how] : peers_lost_) losses.push_back({members[rank], mesh_.peers[rank].identity, how});
  for (const auto& [rank, departure] : peers_left_) {
    const Peer& peer = mesh_.peers[rank];
    if (!peer.pidfd || !transport::has_ended(*peer.pidfd)) continue;
    losses.push_back({members[rank], peer.identity, departure.last_words.empty() ? kDied : how_it_left(departure)});
  }
  return losses;
}

std::string Group::how_it_left(const Departure& departure) {
  const std::string& words = departure.last_words;
  return "has left the group " + (words.empty() ? "(destroy_process_group or exit)" : "with \"" + words + "\"");
}

// A peer that had finished this collective before it left has done its part.
void Group::check_departures() {
  const std::shared_ptr<Op> op = front();
  if (!op) return;
  std::string who;
  int culprit = -1;
  bool several = false;
  {
    // The culprit is the rank that left first: others may have left because of it.
    const std::lock_guard lock(mutex_);
    for (const auto& [rank, departure] : peers_left_) {
      if (departure.finished >= op->desc().seq) continue;
      several = culprit >= 0;
      if (!several || departure.finished < peers_left_[culprit].finished) culprit = rank;
      who += (several ? "; " : "") + name_of_peer(rank) + " " + how_it_left(departure) + " after " +
             std::to_string(departure.finished) + " collectives";
    }
  }
  who += (several ? ": they will never call " : ": it will never call ") + op->describe();
  if (culprit >= 0) fail(Error(ErrorKind::kPeerLost, who, culprit));
}

// A rank that leaves with collectives of others under way to it resets the link: its last bytes may be lost.
Error Group::with_departure(const Error& error) const {
  const std::lock_guard lock(mutex_);
  const auto found = peers_left_.find(error.culprit());
  if (found == peers_left_.end()) return error;
  const std::string who = name_of_peer(found->first) + " " + how_it_left(found->second);
  return Error(error.kind(), who + " before all that it had sent was here: " + error.what(), error.culprit());
}

Error Group::with_work(const Error& error, const Pending& work) const {
  const bool of_a_link = error.kind() == ErrorKind::kPeerLost || error.kind() == ErrorKind::kInternal;
  if (!of_a_link || error.culprit() < 0) return error;
  return Error(error.kind(), std::string(error.what()) + " (in " + work.describe() + ")", error.culprit());
}

std::string Group::description() const {
  std::string text;
  for (const Peer& peer : mesh_.peers) {
    if (peer.rank != config_.rank) text += name_of_peer(peer.rank) + ": " + peer.why + "\n";
  }
  if (!mesh_.address.empty()) text += "TCP bound to " + mesh_.address + "\n";
  const std::string cap = transport::SendWindow::describe_cap(transport::largest_send_buffer());
  if (!mesh_.is_on_one_host() && !cap.empty()) text += cap + "\n";
  return text + plans_.description();
}

// False during the grace period of peers that may still write into this rank's tensor.
bool Group::fence_off_peers() {
  std::string late;
  for (const int rank : fence_.writers()) late += (late.empty() ? "" : ", ") + name_of_peer(rank);
  if (!late.empty()) {
    if (fence_.in_grace_period()) return false;
    log_line(LogLevel::kWarning, "rank " + std::to_string(config_.rank) + "/" + std::to_string(config_.world),
             late + " may still be writing into a shared tensor: its memory is private from now on");
    try {
      fence_.cut_off();
    } catch (const Error& error) {
      const std::lock_guard lock(mutex_);
      error_ = Error(error_->kind(),
                     std::string(error_->what()) + " Do not use its tensor: " + late + " may still write into it (" +
                         error.what() + ")",
                     error_->culprit());
    }
  }
  fence_.end();
  return true;
}

}  // namespace ringdp::comm
