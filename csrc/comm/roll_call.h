// Meeting through the store: publish, gather from others, and say who is missing while waiting.
//
// Keys are "<generation>/<what>/<rank>"; the generation counts the groups these ranks have made on the store, so no
// value of an earlier group is ever read. A rank that fails publishes why, and the others stop waiting for it at once.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
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
  std::string key(const std::string& what, int rank) const;

  void publish(const std::string& what, const std::string& value);
  // The values of `ranks`, in their order. Error(kTimeout) names those that did not come.
  std::vector<std::string> gather(const std::string& what, const std::vector<int>& ranks);

  // For waits on sockets: "waits for <missing ranks> to <act>".
  transport::Patience patience(std::string act, Missing missing);

  // Looks around while nothing happens: reports a long wait, throws when another rank failed or the deadline passed.
  void look_around(const std::string& act, const Missing& missing);

  // Tells the others that this rank will not come, and why. Never throws.
  void give_up(const Error& error) noexcept;

 private:
  std::string failed_key() const;
  [[noreturn]] void throw_failure_of_other() const;

  transport::Store& store_;
  int rank_, world_;
  Deadline deadline_;
  Deadline::Clock::time_point start_;
  ReportSchedule schedule_;
  uint64_t generation_;
};

}  // namespace ringdp::comm
