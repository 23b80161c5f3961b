#include "comm/store_exchange.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <sstream>
#include <thread>

#include "base/log.h"
#include "comm/peer_state.h"
#include "transport/unix_socket.h"

namespace ringdp::comm {
namespace {

// Between two looks at the store. They grow, so that a short wait ends at once and a long one causes no load.
constexpr int kShortestWaitMs = 1, kLongestWaitMs = 250;
constexpr size_t kMostDescribed = 4;  // missing ranks

std::string whole_seconds(Deadline::Clock::time_point since) {
  return std::to_string(std::lround(seconds_since(since))) + " s";
}

bool same_process(const transport::HostIdentity& a, const transport::HostIdentity& b) {
  return a.boot_id == b.boot_id && a.pid_namespace == b.pid_namespace && a.pid == b.pid && a.start_time == b.start_time;
}

std::string describe(const Loss& loss) { return name_of_peer(loss.member, loss.member, loss.process) + " " + loss.how; }

// A rank listens until it has connected to the ranks of its host.
bool is_listening(const PeerInfo& info, const transport::HostIdentity& self) {
  if (info.socket_name.empty() || !transport::same_host(info.identity, self).same) return false;
  try {
    transport::connect_unix(info.socket_name);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

bool ReportSchedule::due(Deadline::Clock::time_point now) {
  if (now < next_) return false;
  next_ = now + std::chrono::seconds(10);
  return true;
}

std::string name_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    const bool last = i + 1 == ranks.size();
    text += (i == 0 ? "" : last ? " and " : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

// Only requests that the store answers at once: it does not answer set(), and get() may take several round trips.
template <class Call>
auto StoreExchange::timed(Call call) {
  const auto begun = Deadline::Clock::now();
  auto answer = call();
  round_trip_ = std::min<std::chrono::nanoseconds>(round_trip_, Deadline::Clock::now() - begun);
  return answer;
}

StoreExchange::StoreExchange(transport::Store& store, int rank, int world, Deadline deadline)
    : store_(store),
      rank_(rank),
      world_(world),
      deadline_(deadline),
      start_(Deadline::Clock::now()),
      schedule_(start_),
      generation_(timed([&] { return static_cast<uint64_t>(store.add(joined_key(rank), 1)); })) {}

std::string StoreExchange::key_of(uint64_t generation, const std::string& what, int rank) {
  return std::to_string(generation) + "/" + what + "/" + std::to_string(rank);
}

std::optional<std::string> StoreExchange::peek(const std::string& what, int rank) const {
  return value_of(key(what, rank));
}

void StoreExchange::publish(const std::string& what, const std::string& value) { store_.set(key(what, rank_), value); }

// A second process with the same rank joins the next generation, and so does a restarted one.
void StoreExchange::publish_info(const PeerInfo& own) {
  publish("peer_info", to_text(own));
  const auto before = generation_ > 1 ? info_of(generation_ - 1, rank_) : std::nullopt;
  if (!before || same_process(before->identity, own.identity)) return;
  if (transport::is_absent(before->identity, own.identity)) return;
  duplicate_ = process_of(before->identity);
  const std::string rank = "rank " + std::to_string(rank_);
  store_.set(duplicate_key(generation_ - 1),
             rank + " has come twice, as " + duplicate_ + " and as " + process_of(own.identity));
  if (!is_listening(*before, own.identity) || store_.has({failed_key(generation_ - 1)})) return;
  const Error error(ErrorKind::kMismatch,
                    "two processes say that they are " + rank + ": " + duplicate_ + " and " + process_of(own.identity) +
                        "; give every process a rank of its own",
                    rank_);
  publish_failure(generation_ - 1, error);
  throw error;
}

std::vector<std::string> StoreExchange::gather(const std::string& what, const std::vector<int>& ranks) {
  std::vector<std::string> keys;
  for (const int rank : ranks) keys.push_back(key(what, rank));
  const Missing missing = [&] {
    std::vector<int> absent;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (!store_.has({keys[i]})) absent.push_back(ranks[i]);
    }
    return absent;
  };
  for (int pause_ms = kShortestWaitMs; !timed([&] { return store_.has(keys); });) {
    check_progress("publish " + what, missing);
    std::this_thread::sleep_for(std::chrono::milliseconds(deadline_.poll_ms(pause_ms)));
    pause_ms = std::min(pause_ms + (pause_ms + 1) / 2, kLongestWaitMs);
  }
  return store_.get(keys);
}

transport::WaitPolicy StoreExchange::wait_policy(std::string act, Missing missing) {
  return {deadline_, [this, act = std::move(act), missing = std::move(missing)] { check_progress(act, missing); }};
}

void StoreExchange::check_progress(const std::string& act, const Missing& missing) {
  check_losses(missing);
  if (look_) look_(missing());
  // A rank that misses nothing continues, and encounters the failure itself.
  if (store_.has({failed_key(generation_)}) && !missing().empty()) throw_failure_of_other();
  const bool late = deadline_.passed();
  if (!late && !schedule_.due(Deadline::Clock::now())) return;
  const std::vector<int> ranks = missing();
  // They arrived between the last wait and this look: the caller's next attempt succeeds.
  if (ranks.empty() && !late) return;
  const std::string wait = whole_seconds(start_) + " for " + name_ranks(ranks) + " to " + act + " (generation " +
                           std::to_string(generation_) + ")" + what_is_known(ranks);
  if (late) {
    throw Error(ErrorKind::kTimeout,
                who() + " has waited " + wait + ". Did it start, and with the same world size? See its own output",
                ranks.empty() ? -1 : ranks.front());
  }
  log_line(LogLevel::kWarning, who(), "rendezvous has waited " + wait);
}

// The other lost ranks of this group, which may be the cause.
std::string StoreExchange::described_but(int member, const std::vector<Loss>& losses) const {
  std::map<int, std::string> others;
  for (const Loss& loss : losses) {
    if (loss.member != member && loss.member < world_) others.emplace(loss.member, "; " + describe(loss));
  }
  std::string text;
  for (const auto& [rank, words] : others) text += words;
  return text;
}

// A process that has replaced a lost one has published its own PeerInfo.
void StoreExchange::check_losses(const Missing& missing) const {
  const std::vector<Loss> losses = losses_ ? losses_() : std::vector<Loss>{};
  if (losses.empty()) return;
  const std::vector<int> ranks = missing();
  for (const Loss& loss : losses) {
    if (std::find(ranks.begin(), ranks.end(), loss.member) == ranks.end()) continue;
    const auto info = info_of(generation_, loss.member);
    if (info && !same_process(info->identity, loss.process)) continue;
    throw Error(ErrorKind::kPeerLost,
                describe(loss) + " while a group was being made" + described_but(loss.member, losses) +
                    ". Its own output tells why; restart the job from its last checkpoint",
                loss.member);
  }
}

// What the store knows of a missing rank.
std::string StoreExchange::status_of(int rank) const {
  const std::string name = "rank " + std::to_string(rank);
  if (const auto info = info_of(generation_, rank)) return name + " is " + process_of(info->identity);
  const auto joined = value_of(joined_key(rank));
  if (!joined) return name + " has not been heard of";
  const uint64_t generation = std::strtoull(joined->c_str(), nullptr, 10);
  if (generation >= generation_) return name + " has joined, but not said who it is";
  const auto info = info_of(generation, rank);
  return name + (info ? ", " + process_of(info->identity) + "," : "") + " has come no further than generation " +
         std::to_string(generation);
}

std::string StoreExchange::what_is_known(const std::vector<int>& missing) const noexcept {
  std::string text;
  try {
    for (size_t i = 0; i < std::min(missing.size(), kMostDescribed); ++i) {
      text += (i == 0 ? ": " : "; ") + status_of(missing[i]);
    }
    if (missing.size() > kMostDescribed) text += "; and so on";
    if (const auto duplicate = value_of(duplicate_key(generation_))) text += "; " + *duplicate;
    if (!duplicate_.empty()) {
      text += "; in generation " + std::to_string(generation_ - 1) + " this rank was " + duplicate_;
    }
  } catch (const std::exception& lost) {
    log_line(LogLevel::kDebug, who(), std::string("cannot ask the store for missing ranks: ") + lost.what());
  }
  return text;
}

// nullopt also for that of another build.
std::optional<PeerInfo> StoreExchange::info_of(uint64_t generation, int rank) const {
  const auto text = value_of(key_of(generation, "peer_info", rank));
  return text ? peer_info_from_text(*text) : std::nullopt;
}

std::optional<std::string> StoreExchange::value_of(const std::string& key) const {
  return store_.has({key}) ? std::optional(store_.get({key}).front()) : std::nullopt;
}

// The value is "<rank> <kind> <culprit> <text>". A lost peer is the culprit for all ranks; otherwise it is the rank
// that published the failure.
void StoreExchange::throw_failure_of_other() const {
  std::istringstream said(store_.get({failed_key(generation_)}).front());
  int rank = -1, kind = -1, culprit = -1;
  std::string text;
  said >> rank >> kind >> culprit;
  std::getline(said, text);
  const bool lost = kind == static_cast<int>(ErrorKind::kPeerLost) && culprit != rank_;
  throw Error(lost ? ErrorKind::kPeerLost : ErrorKind::kAborted,
              "the rendezvous was given up by rank " + std::to_string(rank) + ":" + text, lost ? culprit : rank);
}

void StoreExchange::give_up(const Error& error) noexcept {
  try {
    publish_failure(generation_, error);
  } catch (const std::exception& lost) {
    log_line(LogLevel::kDebug, who(), std::string("cannot publish a failure: ") + lost.what());
  }
}

Error StoreExchange::with_names(const Error& error) const noexcept {
  const int culprit = error.culprit();
  if (culprit < 0 || culprit >= world_ || culprit == rank_) return error;
  Error found = error;
  try {
    for (const int rank : {culprit, rank_}) {
      if (rank != culprit && error.kind() != ErrorKind::kMismatch) continue;
      const auto info = info_of(generation_, rank);
      if (info) found = with_name(found, rank, name_of_peer(rank, rank, info->identity));
    }
  } catch (const std::exception& lost) {
    log_line(LogLevel::kDebug, who(), std::string("cannot ask the store for the culprit: ") + lost.what());
  }
  return found;
}

// The first failure is the cause of later ones, so it is kept.
void StoreExchange::publish_failure(uint64_t generation, const Error& error) {
  if (store_.has({failed_key(generation)})) return;
  const std::string how = std::to_string(static_cast<int>(error.kind())) + " " + std::to_string(error.culprit());
  store_.set(failed_key(generation), std::to_string(rank_) + " " + how + " " + error.what());
}

}  // namespace ringdp::comm
