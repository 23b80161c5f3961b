// The exchange of values through the store: publish, gather from other ranks, and report missing ones while waiting.
//
// Keys are "<generation>/<what>/<rank>". The generation counts the groups that these ranks have made on the store, so
// values of earlier groups are never read. A rank that fails publishes the reason, and the others stop waiting for it
// at once.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "comm/peer_info.h"
#include "comm/peer_state.h"
#include "transport/socket.h"
#include "transport/store.h"

namespace ringdp::comm {

// When a wait is reported: after 5 s, then every 10 s. The time is an argument, for tests.
class ReportSchedule {
 public:
  explicit ReportSchedule(Deadline::Clock::time_point start) : next_(start + std::chrono::seconds(5)) {}
  bool due(Deadline::Clock::time_point now);  // true at most once per interval

 private:
  Deadline::Clock::time_point next_;
};

// "rank 3", "ranks 3, 4 and 7".
std::string name_ranks(const std::vector<int>& ranks);

class StoreExchange {
 public:
  using Missing = std::function<std::vector<int>()>;

  // Joins the next generation of the group on this store. `store` must outlive it.
  StoreExchange(transport::Store& store, int rank, int world, Deadline deadline);

  int rank() const { return rank_; }
  int world() const { return world_; }
  uint64_t generation() const { return generation_; }
  // The fastest request of this rank to the store so far.
  std::chrono::nanoseconds round_trip() const { return round_trip_; }
  std::string who() const { return "rank " + std::to_string(rank_) + "/" + std::to_string(world_); }
  std::string key(const std::string& what, int rank) const { return key_of(generation_, what, rank); }

  // What a rank has published; nullopt: nothing yet.
  std::optional<std::string> peek(const std::string& what, int rank) const;
  void publish(const std::string& what, const std::string& value);
  // Publishes this rank's PeerInfo. Error(kMismatch) when another running process has the same rank.
  void publish_info(const PeerInfo& own);
  // The values of `ranks`, in their order. Error(kTimeout) names the missing ones and what is known of them.
  std::vector<std::string> gather(const std::string& what, const std::vector<int>& ranks);

  // For waits on sockets, reported as "has waited 5 s for <missing ranks> to <act>".
  transport::WaitPolicy wait_policy(std::string act, Missing missing);

  // Called while nothing happens: reports a long wait, and throws when a missing rank is lost, another rank has failed,
  // or the deadline has passed.
  void check_progress(const std::string& act, const Missing& missing);

  // Replaces the function that check_progress() asks for lost ranks of this group.
  void set_losses(Losses losses) { losses_ = std::move(losses); }

  // Sets a function that check_progress() calls with the missing ranks; it may throw. Empty: none.
  void on_look(std::function<void(const std::vector<int>&)> look) { look_ = std::move(look); }

  // A copy of the error with pid and host of the culprit; of a Mismatch, of both sides; as far as the store knows them.
  Error with_names(const Error& error) const noexcept;

  // Publishes that this rank has failed, and why. Never throws.
  void give_up(const Error& error) noexcept;

 private:
  static std::string key_of(uint64_t generation, const std::string& what, int rank);
  static std::string joined_key(int rank) { return "generation/" + std::to_string(rank); }
  static std::string failed_key(uint64_t generation) { return std::to_string(generation) + "/failed"; }
  static std::string duplicate_key(uint64_t generation) { return std::to_string(generation) + "/duplicate"; }

  template <class Call>
  auto timed(Call call);
  void check_losses(const Missing& missing) const;
  std::string described_but(int member, const std::vector<Loss>& losses) const;
  [[noreturn]] void throw_failure_of_other() const;
  void publish_failure(uint64_t generation, const Error& error);
  std::optional<std::string> value_of(const std::string& key) const;
  std::optional<PeerInfo> info_of(uint64_t generation, int rank) const;
  std::string status_of(int rank) const;
  std::string what_is_known(const std::vector<int>& missing) const noexcept;

  transport::Store& store_;
  int rank_, world_;
  Deadline deadline_;
  Deadline::Clock::time_point start_;
  ReportSchedule schedule_;
  std::chrono::nanoseconds round_trip_ = std::chrono::nanoseconds::max();
  uint64_t generation_;
  Losses losses_;
  std::function<void(const std::vector<int>&)> look_;
  std::string duplicate_;  // the other process that had this rank in the previous generation; empty: there was none
};

}  // namespace ringdp::comm
