// Round 2 and 3 of the rendezvous: the ranks of one host pass each other memory and doorbells, and prove the mapping.
#pragma once
#include <map>
#include <vector>

#include "comm/card.h"
#include "comm/session.h"
#include "transport/catalog.h"
#include "transport/doorbell.h"
#include "transport/shm/shm_arena.h"
#include "transport/unix_socket.h"

namespace ringdp::comm {

struct LocalExchange {
  transport::Probe probe;  // of the whole host: one failed pair fails it, so that all its ranks decide alike
  transport::SegmentLayout layout;
  std::vector<transport::LocalMember> members;  // by member number; complete only if the probe worked
  std::map<int, transport::Socket> controls;    // by rank; only if the probe worked
};

// What plans may use of a slot: whole cache lines, equal on all ranks of all hosts.
int64_t planned_slot_bytes(const Settings& settings);
// Slots of at least that, streams of a power of two. `heap_bytes` comes from the ranks' cards.
transport::SegmentLayout segment_layout(const Settings& settings, int members, int64_t heap_bytes);

// `locals`: at least two ranks of one host, ascending, own rank included; `cards` by rank. Memory that cannot be shared
// is a failed probe, not an error; a rank that vanishes is Error(kPeerLost).
LocalExchange exchange_memory(const Session& session, const std::vector<int>& locals, const std::vector<Card>& cards,
                              const transport::UnixListener& listener, const transport::Doorbell& doorbell);

}  // namespace ringdp::comm
