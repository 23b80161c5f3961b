// What a rank publishes about itself through the store.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "base/settings.h"
#include "transport/hello.h"
#include "transport/identity.h"
#include "transport/tcp/address.h"

namespace ringdp::comm {

// Where a rank listens for TCP connections, how many streams it wants, and how far away it is.
struct TcpEndpoint {
  transport::SocketAddress address;
  int streams = 1;   // by setting, or for the speed of its interface
  int store_ms = 0;  // a round trip from this rank to the store
};

// "10.0.0.1 4711 4 52": address, port, streams, round trip.
std::string to_text(const TcpEndpoint& endpoint);

// nullopt unless `text` is what to_text() writes.
std::optional<TcpEndpoint> tcp_endpoint_from_text(const std::string& text);

// By which the hellos of a group are told from all others. Of rank 0, for all.
struct Secret {
  uint64_t group = 0;
  transport::Token token{};

  static Secret random();
};

// Read by all ranks: its process, where it listens, and the settings that must be equal.
struct PeerInfo {
  transport::HostIdentity identity;
  std::string socket_name;  // abstract unix socket; empty without one
  std::string settings;     // "transport=auto algorithm=auto ..."
  Thresholds thresholds;    // all ranks use rank 0's
  int64_t heap_bytes = 0;   // the heap for which this process has address space; a host's ranks use their minimum
  int world = 0;            // the group's number of ranks, as this rank was told
  std::optional<Secret> secret = {};         // rank 0's
  std::optional<TcpEndpoint> endpoint = {};  // where it is known that early (TcpDoor::reopened)
};

// The settings that must be equal on all ranks, as text to compare and to print.
std::string shared_settings(const Settings& settings);

std::string to_text(const PeerInfo& info);

// nullopt unless `text` is what to_text() writes.
std::optional<PeerInfo> peer_info_from_text(const std::string& text);

// The protocol version (hello.h) of the build that wrote a PeerInfo; nullopt when `text` is no PeerInfo.
std::optional<uint32_t> protocol_of_peer_info(const std::string& text);

}  // namespace ringdp::comm
