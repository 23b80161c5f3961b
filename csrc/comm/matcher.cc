#include "comm/matcher.h"

#include <algorithm>

#include "base/error.h"

namespace ringdp::comm {
namespace {

bool is_from(const Offer& offer, int source) { return source == kAnySource || source == offer.from; }

bool fits(const Message& receive, const Offer& offer) {
  return is_from(offer, receive.peer()) && receive.tag() == offer.frame.tag;
}

std::string name_of_rank(int rank) { return "rank " + std::to_string(rank); }

}  // namespace

std::optional<Offer> Matcher::post(Message& receive) {
  const auto found =
      std::find_if(offers_.begin(), offers_.end(), [&](const Offer& offer) { return fits(receive, offer); });
  if (found == offers_.end()) {
    receives_.push_back(&receive);
    any_source_ += receive.peer() == kAnySource;
    return std::nullopt;
  }
  const Offer offer = *found;
  check_same(receive, offer);
  offers_.erase(found);
  --waiting_[offer.from];
  return offer;
}

Message* Matcher::offer(const Offer& offer) {
  const auto found =
      std::find_if(receives_.begin(), receives_.end(), [&](const Message* receive) { return fits(*receive, offer); });
  if (found != receives_.end()) {
    Message* const receive = *found;
    check_same(*receive, offer);
    receives_.erase(found);
    any_source_ -= receive->peer() == kAnySource;
    return receive;
  }
  if (++waiting_[offer.from] > kMostOffers) {
    throw Error(ErrorKind::kInternal,
                name_of_rank(offer.from) + " has more than " + std::to_string(kMostOffers) + " sends to " +
                    name_of_rank(rank_) + " in flight that no receive was posted for (the newest has tag " +
                    std::to_string(offer.frame.tag) + "): post receives earlier, or wait for sends before starting "
                    "more",
                offer.from);
  }
  offers_.push_back(offer);
  return nullptr;
}

void Matcher::check_same(const Message& receive, const Offer& offer) const {
  const bool same_dtype = receive.dtype() == offer.frame.dtype, same_count = receive.count() == offer.frame.count;
  if (same_dtype && same_count) return;
  const std::string differing = same_count ? "dtype" : same_dtype ? "element count" : "dtype, element count";
  throw Error(ErrorKind::kMismatch,
              "a send and its receive disagree (" + differing + "): " + name_of_rank(offer.from) + " called send(" +
                  describe_payload(offer.frame.dtype, offer.frame.count) + " to " + name_of_rank(rank_) + ", tag " +
                  std::to_string(offer.frame.tag) + "), " + name_of_rank(rank_) + " called " + receive.describe() +
                  ". Give both the same dtype and size, and messages that are in flight together different tags.",
              offer.from);
}

std::string Matcher::waiting_offer(int source) const {
  for (const Offer& offer : offers_) {
    if (!is_from(offer, source)) continue;
    return "; " + name_of_rank(offer.from) + " offers " + describe_payload(offer.frame.dtype, offer.frame.count) +
           " with tag " + std::to_string(offer.frame.tag) + ", which waits for a receive here";
  }
  return "";
}

}  // namespace ringdp::comm
