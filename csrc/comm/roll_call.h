// Meeting through the store: publish, gather from others, and say who is missing while waiting.
//
// Keys are "<generation>/<what>/<rank>"; the generation counts the groups these ranks have made on the store, so no
// value of an earlier group is ever read. A rank that fails publishes why, and the others stop waiting for it at once.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "comm/card.h"
#include "comm/loss.h"
#include "transport/socket_io.h"
#include "transport/store.h"

namespace ringdp::comm {

// When a wait is reported: after 5 s, then every 10 s. Takes the time as an argument, so it can be tested.
class ReportSchedule {
 public:
  explicit ReportSchedule(Deadline::Clock::time_point start) : next_(start + std::chrono::seconds(5)) {}
  bool due(Deadline::Clock::time_point now);  // true at most once per interval

 private:
  Deadline::Clock::time_point next_;
};

// "rank 3", "ranks 3, 4 and 7".
std::string name_ranks(const std::vector<int>& ranks);

class RollCall {
 public:
  using Missing = std::function<std::vector<int>()>;

  // Joins the next generation of the group on this store. `store` must outlive it.
  RollCall(transport::Store& store, int rank, int world, Deadline deadline);

  int rank() const { return rank_; }
  int world() const { return world_; }
  uint64_t generation() const { return generation_; }
  std::string who() const { return "rank " + std::to_string(rank_) + "/" + std::to_string(world_); }
  std::string key(const std::string& what, int rank) const { return key_of(generation_, what, rank); }

  // What a rank has published; nullopt when it has not so far.
  std::optional<std::string> glance(const std::string& what, int rank) const;
  void publish(const std::string& what, const std::string& value);
  // Says who this rank is. Error(kMismatch) when another process says the same right now.
  void introduce(const Card& own);
  // The values of `ranks`, in their order. Error(kTimeout) names those that did not come, with what is known of them.
  std::vector<std::string> gather(const std::string& what, const std::vector<int>& ranks);

  // For waits on sockets: "waits for <missing ranks> to <act>".
  transport::Patience patience(std::string act, Missing missing);

  // Looks around while nothing happens: reports a long wait, throws when a rank that is missing is lost, another rank
  // failed, or the deadline passed.
  void look_around(const std::string& act, const Missing& missing);

  // Where to ask who of this group is lost, at every look around; in place of what was said before.
  void heed(Losses losses) { losses_ = std::move(losses); }

  // Also asked at every look around, with the ranks that are missing; may throw. Empty: nothing any more.
  void on_look(std::function<void(const std::vector<int>&)> look) { look_ = std::move(look); }

  // The error with pid and host of the rank at fault, of a Mismatch of both sides, where the store knows them.
  Error named(const Error& error) const noexcept;

  // Tells the others that this rank will not come, and why. Never throws.
  void give_up(const Error& error) noexcept;

 private:
  static std::string key_of(uint64_t generation, const std::string& what, int rank);
  static std::string joined_key(int rank) { return "generation/" + std::to_string(rank); }
  static std::string failed_key(uint64_t generation) { return std::to_string(generation) + "/failed"; }
  static std::string twin_key(uint64_t generation) { return std::to_string(generation) + "/twin"; }

  void check_losses(const Missing& missing) const;
  std::string described_but(int member, const std::vector<Loss>& losses) const;
  [[noreturn]] void throw_failure_of_other() const;
  void publish_failure(uint64_t generation, const Error& error);
  std::optional<std::string> value_of(const std::string& key) const;
  std::optional<Card> card_of(uint64_t generation, int rank) const;
  std::string whereabouts(int rank) const;
  std::string what_is_known(const std::vector<int>& missing) const noexcept;

  transport::Store& store_;
  int rank_, world_;
  Deadline deadline_;
  Deadline::Clock::time_point start_;
  ReportSchedule schedule_;
  uint64_t generation_;
  Losses losses_;
  std::function<void(const std::vector<int>&)> look_;
  std::string twin_;  // of this rank in the generation before, if it was another process
};

}  // namespace ringdp::comm
