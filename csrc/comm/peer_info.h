// What a rank publishes about itself through the store.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "base/settings.h"
#include "transport/identity.h"
#include "transport/tcp/address.h"

namespace ringdp::comm {

// For all ranks: its process, where it listens, and the settings that must agree.
struct PeerInfo {
  transport::HostIdentity identity;
  std::string socket_name;  // abstract unix socket; empty without one
  std::string settings;     // "transport=auto algorithm=auto ..."
  Thresholds thresholds;    // rank 0's are in force
  int64_t heap_bytes = 0;   // for which this process has address space; the minimum of a host's ranks is in force
  int world = 0;            // the number of ranks that it was started with
};

// The settings that must be equal on all ranks, as text to compare and to print.
std::string shared_settings(const Settings& settings);

std::string to_text(const PeerInfo& info);

// nullopt unless `text` is what to_text() writes.
std::optional<PeerInfo> peer_info_from_text(const std::string& text);

// The protocol version (hello.h) of the build that wrote a PeerInfo; nullopt when `text` is none.
std::optional<uint32_t> protocol_of_peer_info(const std::string& text);

// For the ranks that connect to it over TCP: where it listens, and how many streams it wants.
struct TcpEndpoint {
  transport::SocketAddress address;
  int streams = 1;
};

// "10.0.0.1 4711 4".
std::string to_text(const TcpEndpoint& endpoint);

// nullopt unless `text` is what to_text() writes.
std::optional<TcpEndpoint> tcp_endpoint_from_text(const std::string& text);

}  // namespace ringdp::comm
