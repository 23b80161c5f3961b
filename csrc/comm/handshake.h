// Two sides of one authenticated connection: introduce() by the higher rank, receive() by the lower.
#pragma once
#include <functional>
#include <vector>

#include "comm/session.h"
#include "transport/acceptor.h"

namespace ringdp::comm {

// Opens a connection; an empty socket means "try again".
using Open = std::function<transport::Socket(const transport::Patience&)>;
using Admit = transport::Acceptor::Admit;

// Connects to `peer`, says hello and hears it back. A connection that is closed on the way is opened anew: the listener
// may have been flooded. Ends with the roll call's errors; Error(kMismatch) where TLS with the peer fails.
// `stream`: which of the channel's connections.
transport::Socket introduce(const Session& session, int peer, transport::Channel channel, const Open& open,
                            const Admit& admit, uint32_t stream = 0);

// The sockets of all `expected` hellos, in the order they came; under `tls`, unless it is null. Who comes otherwise is
// refused and named by a warning: a stranger must not end the rendezvous, and a rank of the group says what is wrong itself.
std::vector<transport::Acceptor::Arrival> receive(const Session& session, int listener,
                                                  std::vector<transport::Hello> expected, const Admit& admit,
                                                  const transport::TlsContext* tls = nullptr);

}  // namespace ringdp::comm
