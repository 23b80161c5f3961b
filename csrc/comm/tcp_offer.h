// What a rank publishes for those that reach it by TCP: where it listens, and how many streams it wants.
#pragma once
#include <optional>
#include <string>

#include "transport/tcp/address.h"

namespace ringdp::comm {

struct TcpOffer {
  transport::SocketAddress address;
  int streams = 1;
};

// "10.0.0.1 4711 4".
std::string to_text(const TcpOffer& offer);

// nullopt unless `text` is what to_text() writes.
std::optional<TcpOffer> tcp_offer_from_text(const std::string& text);

}  // namespace ringdp::comm
