// Where a rank listens (csrc/comm/tcp_offer.h).
#include "comm/tcp_offer.h"

#include "target.h"

namespace ringdp::fuzz {
namespace {

void check_offer(const std::string& text) {
  const auto offer = comm::tcp_offer_from_text(text);
  require(!offer || comm::to_text(*offer) == text, "an offer is what to_text() writes");
}

}  // namespace

FUZZ_TARGET(offer) {
  Input raw = input;
  check_offer(raw.rest());
  const char* const host = input.up_to(1) ? "10.0.0.1" : "fd00::1:2";
  const int port = 1 + input.number<uint16_t>() % 65535;
  const comm::TcpOffer offer{*transport::SocketAddress::parse(host, port), 1 + input.up_to(63)};
  const std::string text = comm::to_text(offer);
  const auto copy = comm::tcp_offer_from_text(text);
  require(copy && comm::to_text(*copy) == text, "an offer is read");
  check_offer(edited(text, input));
}

}  // namespace ringdp::fuzz
