// Which ranks of a group share a host: what layered plans need to know, equal on all ranks.
#pragma once
#include <vector>

#include "comm/card.h"
#include "comm/session.h"

namespace ringdp::comm {

// First rank of every host, ascending; empty when the ranks of some host are not contiguous.
std::vector<int> contiguous_hosts(const std::vector<Card>& cards);

// The same, but empty unless the ranks of every host share memory, which each knows of its own host only: a round
// through the store. Collective over the ranks of the group.
std::vector<int> agree_on_hosts(const Session& session, const std::vector<Card>& cards, bool mine_shares_memory);

}  // namespace ringdp::comm
