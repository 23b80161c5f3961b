// Round 4 of the rendezvous: TCP connections to every peer that does not share memory.
//
// One for control, one for messages, and for collectives as many as both sides want (settings, or what their interface
// is worth): the smaller number of the two.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "comm/session.h"
#include "transport/socket.h"

namespace ringdp::comm {

struct TcpExchange {
  struct Connection {
    transport::Socket control, messages;
    std::vector<transport::Socket> bulk;  // by stream
    std::string address;  // of the other side, for messages
  };
  std::map<int, Connection> connections;  // by rank
  std::string address;                    // "10.0.0.1 (eth0)" that this rank is bound to
};

// `peers`: ranks, ascending, at least one. `one_host`: all ranks of the group run on this host.
TcpExchange exchange_tcp(const Session& session, const std::vector<int>& peers, bool one_host);

}  // namespace ringdp::comm
