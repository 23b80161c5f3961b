#include "comm/roll_call.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <sstream>
#include <thread>

#include "base/log.h"
#include "comm/peer_name.h"
#include "transport/pidfd.h"
#include "transport/unix_socket.h"

namespace ringdp::comm {
namespace {

// Between two looks at the store. They grow, so that a short wait ends at once and a long one is no load.
constexpr int kShortestWaitMs = 1, kLongestWaitMs = 250;
constexpr size_t kMostDescribed = 4;  // of the missing ranks

std::string whole_seconds(Deadline::Clock::time_point since) {
  return std::to_string(std::lround(seconds_since(since))) + " s";
}

bool same_process(const transport::HostIdentity& a, const transport::HostIdentity& b) {
  return a.boot_id == b.boot_id && a.pid_namespace == b.pid_namespace && a.pid == b.pid;
}

// Known for sure of a process that shares pids with this one only.
bool has_ended(const transport::HostIdentity& process, const transport::HostIdentity& self) {
  return transport::share_pids(process, self) && !transport::exists(static_cast<pid_t>(process.pid));
}

std::string describe(const Loss& loss) {
  return name_of_peer(loss.member, loss.member, loss.process) + " " + loss.how;
}

// A rank listens until it has met those of its host.
bool is_meeting(const Card& card, const transport::HostIdentity& self) {
  if (card.socket_name.empty() || !transport::same_host(card.identity, self).same) return false;
  try {
    transport::connect_unix(card.socket_name);
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

RollCall::RollCall(transport::Store& store, int rank, int world, Deadline deadline)
    : store_(store),
      rank_(rank),
      world_(world),
      deadline_(deadline),
      start_(Deadline::Clock::now()),
      schedule_(start_),
      generation_(static_cast<uint64_t>(store.add(joined_key(rank), 1))) {}

std::string RollCall::key_of(uint64_t generation, const std::string& what, int rank) {
  return std::to_string(generation) + "/" + what + "/" + std::to_string(rank);
}

std::optional<std::string> RollCall::glance(const std::string& what, int rank) const {
  return value_of(key(what, rank));
}

void RollCall::publish(const std::string& what, const std::string& value) { store_.set(key(what, rank_), value); }

// A second process with this rank has come to the generation after the first one's: so has a restarted one.
void RollCall::introduce(const Card& own) {
  publish("card", to_text(own));
  const auto before = generation_ > 1 ? card_of(generation_ - 1, rank_) : std::nullopt;
  if (!before || same_process(before->identity, own.identity) || has_ended(before->identity, own.identity)) return;
  twin_ = process_of(before->identity);
  const std::string rank = "rank " + std::to_string(rank_);
  store_.set(twin_key(generation_ - 1), rank + " has come twice, as " + twin_ + " and as " + process_of(own.identity));
  if (!is_meeting(*before, own.identity) || store_.has({failed_key(generation_ - 1)})) return;
  const Error error(ErrorKind::kMismatch,
                    "two processes say that they are " + rank + ": " + twin_ + " and " + process_of(own.identity) +
                        "; give every process a rank of its own",
                    rank_);
  publish_failure(generation_ - 1, error);
  throw error;
}

std::vector<std::string> RollCall::gather(const std::string& what, const std::vector<int>& ranks) {
  std::vector<std::string> keys;
  for (const int rank : ranks) keys.push_back(key(what, rank));
  const Missing missing = [&] {
    std::vector<int> absent;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (!store_.has({keys[i]})) absent.push_back(ranks[i]);
    }
    return absent;
  };
  for (int pause_ms = kShortestWaitMs; !store_.has(keys);) {
    look_around("publish its " + what, missing);
    std::this_thread::sleep_for(std::chrono::milliseconds(deadline_.poll_ms(pause_ms)));
    pause_ms = std::min(pause_ms + (pause_ms + 1) / 2, kLongestWaitMs);
  }
  return store_.get(keys);
}

transport::Patience RollCall::patience(std::string act, Missing missing) {
  return {deadline_, [this, act = std::move(act), missing = std::move(missing)] { look_around(act, missing); }};
}

void RollCall::look_around(const std::string& act, const Missing& missing) {
  check_losses(missing);
  if (look_) look_(missing());
  // Who has all it waits for goes on and meets the cause itself.
  if (store_.has({failed_key(generation_)}) && !missing().empty()) throw_failure_of_other();
  const bool late = deadline_.passed();
  if (!late && !schedule_.due(Deadline::Clock::now())) return;
  const std::vector<int> ranks = missing();
  // They came between the last wait and this look: the caller's next attempt succeeds.
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

// The others of this group that are lost: whoever is waited for may have ended because of them.
std::string RollCall::described_but(int member, const std::vector<Loss>& losses) const {
  std::map<int, std::string> others;
  for (const Loss& loss : losses) {
    if (loss.member != member && loss.member < world_) others.emplace(loss.member, "; " + describe(loss));
  }
  std::string text;
  for (const auto& [rank, words] : others) text += words;
  return text;
}

// A process that has taken a lost one's place says so by its card.
void RollCall::check_losses(const Missing& missing) const {
  const std::vector<Loss> losses = losses_ ? losses_() : std::vector<Loss>{};
  if (losses.empty()) return;
  const std::vector<int> ranks = missing();
  for (const Loss& loss : losses) {
    if (std::find(ranks.begin(), ranks.end(), loss.member) == ranks.end()) continue;
    const auto card = card_of(generation_, loss.member);
    if (card && !same_process(card->identity, loss.process)) continue;
    throw Error(ErrorKind::kPeerLost,
                describe(loss) + " while a group was being made" + described_but(loss.member, losses) +
                    ". Its own output tells why; restart the job from its last checkpoint",
                loss.member);
  }
}

// What the store knows of a rank that is waited for.
std::string RollCall::whereabouts(int rank) const {
  const std::string name = "rank " + std::to_string(rank);
  if (const auto card = card_of(generation_, rank)) return name + " is " + process_of(card->identity);
  const auto joined = value_of(joined_key(rank));
  if (!joined) return name + " has not been heard of";
  const uint64_t generation = std::strtoull(joined->c_str(), nullptr, 10);
  if (generation >= generation_) return name + " has joined, but not said who it is";
  const auto card = card_of(generation, rank);
  return name + (card ? ", " + process_of(card->identity) + "," : "") + " has come no further than generation " +
         std::to_string(generation);
}

std::string RollCall::what_is_known(const std::vector<int>& missing) const noexcept {
  std::string text;
  try {
    for (size_t i = 0; i < std::min(missing.size(), kMostDescribed); ++i) {
      text += (i == 0 ? ": " : "; ") + whereabouts(missing[i]);
    }
    if (missing.size() > kMostDescribed) text += "; and so on";
    if (const auto twin = value_of(twin_key(generation_))) text += "; " + *twin;
    if (!twin_.empty()) text += "; in generation " + std::to_string(generation_ - 1) + " this rank was " + twin_;
  } catch (const std::exception& lost) {
    log_line(LogLevel::kDebug, who(), std::string("cannot ask the store who is missing: ") + lost.what());
  }
  return text;
}

// nullopt also for one of another build.
std::optional<Card> RollCall::card_of(uint64_t generation, int rank) const {
  const auto text = value_of(key_of(generation, "card", rank));
  return text ? card_from_text(*text) : std::nullopt;
}

std::optional<std::string> RollCall::value_of(const std::string& key) const {
  return store_.has({key}) ? std::optional(store_.get({key}).front()) : std::nullopt;
}

// "<rank> <kind> <culprit> <text>". Who is lost is lost to all; else it is the failure of the rank that gave up.
void RollCall::throw_failure_of_other() const {
  std::istringstream said(store_.get({failed_key(generation_)}).front());
  int rank = -1, kind = -1, culprit = -1;
  std::string text;
  said >> rank >> kind >> culprit;
  std::getline(said, text);
  const bool lost = kind == static_cast<int>(ErrorKind::kPeerLost) && culprit != rank_;
  throw Error(lost ? ErrorKind::kPeerLost : ErrorKind::kAborted,
              "the rendezvous was given up by rank " + std::to_string(rank) + ":" + text, lost ? culprit : rank);
}

void RollCall::give_up(const Error& error) noexcept {
  try {
    publish_failure(generation_, error);
  } catch (const std::exception& lost) {
    log_line(LogLevel::kDebug, who(), std::string("cannot publish a failure: ") + lost.what());
  }
}

Error RollCall::named(const Error& error) const noexcept {
  const int culprit = error.culprit();
  if (culprit < 0 || culprit >= world_ || culprit == rank_) return error;
  Error found = error;
  try {
    for (const int rank : {culprit, rank_}) {
      if (rank != culprit && error.kind() != ErrorKind::kMismatch) continue;
      const auto card = card_of(generation_, rank);
      if (card) found = with_name(found, rank, name_of_peer(rank, rank, card->identity));
    }
  } catch (const std::exception& lost) {
    log_line(LogLevel::kDebug, who(), std::string("cannot ask the store who is at fault: ") + lost.what());
  }
  return found;
}

// The first failure is the cause; the later ones follow from it.
void RollCall::publish_failure(uint64_t generation, const Error& error) {
  if (store_.has({failed_key(generation)})) return;
  const std::string how = std::to_string(static_cast<int>(error.kind())) + " " + std::to_string(error.culprit());
  store_.set(failed_key(generation), std::to_string(rank_) + " " + how + " " + error.what());
}

}  // namespace ringdp::comm
