#include "comm/roll_call.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <thread>

#include "base/log.h"

namespace ringdp::comm {
namespace {

// Between two looks at the store. They grow, so that a short wait ends at once and a long one is no load.
constexpr int kFirstPauseMs = 1, kLongestPauseMs = 250;

std::string whole_seconds(Deadline::Clock::time_point since) {
  return std::to_string(std::lround(seconds_since(since))) + " s";
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
      generation_(static_cast<uint64_t>(store.add("generation/" + std::to_string(rank), 1))) {}

std::string RollCall::key(const std::string& what, int rank) const {
  return std::to_string(generation_) + "/" + what + "/" + std::to_string(rank);
}

std::string RollCall::failed_key() const { return std::to_string(generation_) + "/failed"; }

void RollCall::publish(const std::string& what, const std::string& value) { store_.set(key(what, rank_), value); }

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
  for (int pause_ms = kFirstPauseMs; !store_.has(keys);) {
    look_around("publish its " + what, missing);
    std::this_thread::sleep_for(std::chrono::milliseconds(deadline_.poll_ms(pause_ms)));
    pause_ms = std::min(pause_ms + (pause_ms + 1) / 2, kLongestPauseMs);
  }
  return store_.get(keys);
}

transport::Patience RollCall::patience(std::string act, Missing missing) {
  return {deadline_, [this, act = std::move(act), missing = std::move(missing)] { look_around(act, missing); }};
}

void RollCall::look_around(const std::string& act, const Missing& missing) {
  // Who has all it waits for goes on and meets the cause itself.
  if (store_.has({failed_key()}) && !missing().empty()) throw_failure_of_other();
  const bool late = deadline_.passed();
  if (!late && !schedule_.due(Deadline::Clock::now())) return;
  const std::vector<int> ranks = missing();
  // They came between the last wait and this look: the caller's next attempt succeeds.
  if (ranks.empty() && !late) return;
  const std::string wait = whole_seconds(start_) + " for " + name_ranks(ranks) + " to " + act;
  if (late) {
    throw Error(ErrorKind::kTimeout,
                who() + " has waited " + wait + " (generation " + std::to_string(generation_) +
                    "); did it start, and with the same world size? See its own output",
                ranks.empty() ? -1 : ranks.front());
  }
  log_line(LogLevel::kWarning, who(), "rendezvous has waited " + wait);
}

void RollCall::throw_failure_of_other() const {
  const std::string text = store_.get({failed_key()}).front();
  int culprit = -1;
  std::from_chars(text.data(), text.data() + text.size(), culprit);
  throw Error(ErrorKind::kAborted, "the rendezvous was given up by rank " + text, culprit);
}

void RollCall::give_up(const Error& error) noexcept {
  try {
    // The first failure is the cause; the later ones follow from it.
    if (!store_.has({failed_key()})) store_.set(failed_key(), std::to_string(rank_) + ": " + error.what());
  } catch (const std::exception& lost) {
    log_line(LogLevel::kDebug, who(), std::string("cannot publish a failure: ") + lost.what());
  }
}

}  // namespace ringdp::comm
