// Which send a receive gets: offers and receives that wait for each other.
//
// A receive takes the oldest offer of its source and tag, an offer the oldest receive posted for it. Points to
// receives, which must outlive it. Driver thread only.
#pragma once
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "comm/frame.h"
#include "comm/message.h"

namespace ringdp::comm {

struct Offer {
  int from = -1;  // rank
  Frame frame;
};

class Matcher {
 public:
  // Offers of one peer that may wait for a receive.
  static constexpr size_t kMostOffers = 65536;

  Matcher(int rank, int world) : rank_(rank), waiting_(static_cast<size_t>(world)) {}

  // Both throw Error(kMismatch) when the two differ in dtype or count.
  std::optional<Offer> post(Message& receive);  // the offer it takes; none: it waits
  // The receive that takes it; null: it waits. Error(kInternal) beyond kMostOffers.
  Message* offer(const Offer& offer);

  bool awaits_any_source() const { return any_source_ > 0; }
  // "; rank 1 offers float32 x 4 with tag 5, which waits for a receive here"; "" when `source`, a rank or kAnySource,
  // offers nothing that waits.
  std::string waiting_offer(int source) const;

 private:
  void check_same(const Message& receive, const Offer& offer) const;

  const int rank_;
  std::list<Message*> receives_;  // oldest first
  std::list<Offer> offers_;       // oldest first
  std::vector<size_t> waiting_;   // offers by rank
  int any_source_ = 0;            // of receives_
};

}  // namespace ringdp::comm
