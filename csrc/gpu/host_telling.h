// How the ranks of each host tell each other things where only all ranks together can: a collective of all for every
// telling of any host, for as long as one of them goes on.
//
// Of one thread. What is told is read by the ranks of the teller's host only.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace ringdp::gpu {

class HostTelling {
 public:
  using TellAll = std::function<std::vector<std::string>(const std::string&)>;  // collective: everybody's, by rank

  // `hosts`: first rank of each, ascending.
  HostTelling(TellAll tell_all, const std::vector<int>& hosts, int rank, int world);

  int first() const { return first_; }      // rank of this rank's host
  int members() const { return members_; }  // of it

  // Collective on this rank's host, by member; at most kMostBytes. Throws what tell_all() throws.
  std::vector<std::string> tell(const std::string& own);
  static constexpr size_t kMostBytes = 1020;

  // Collective over all ranks, once this rank's host has told all: "rank 2: why not" of the first that has a reason.
  std::string agree(const std::string& why_not);

 private:
  const TellAll tell_all_;
  int first_ = 0, members_ = 0;
};

}  // namespace ringdp::gpu
