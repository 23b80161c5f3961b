#include "comm/hosts.h"

#include <algorithm>
#include <numeric>

namespace ringdp::comm {

std::vector<int> contiguous_hosts(const std::vector<Card>& cards) {
  const auto same = [&](size_t a, size_t b) { return transport::same_host(cards[a].identity, cards[b].identity).same; };
  std::vector<int> hosts;
  for (size_t rank = 0; rank < cards.size(); ++rank) {
    if (rank > 0 && same(rank - 1, rank)) continue;
    const auto seen = [&](int first) { return same(static_cast<size_t>(first), rank); };
    if (std::any_of(hosts.begin(), hosts.end(), seen)) return {};  // a host has come back
    hosts.push_back(static_cast<int>(rank));
  }
  return hosts;
}

std::vector<int> agree_on_hosts(const Session& session, const std::vector<Card>& cards, bool mine_shares_memory) {
  constexpr char kWhat[] = "shares", kYes[] = "yes";
  session.roll_call.publish(kWhat, mine_shares_memory ? kYes : "no");
  std::vector<int> ranks(cards.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  const std::vector<std::string> answers = session.roll_call.gather(kWhat, ranks);
  const bool all = std::all_of(answers.begin(), answers.end(), [&](const std::string& said) { return said == kYes; });
  return all ? contiguous_hosts(cards) : std::vector<int>{};
}

}  // namespace ringdp::comm
