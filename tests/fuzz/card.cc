// What a rank publishes of itself (csrc/comm/card.h), with the identity and thresholds in it.
#include "comm/card.h"

#include "base/thresholds.h"
#include "target.h"

namespace ringdp::fuzz {
namespace {

comm::Card real_card(Input& input) {
  comm::Card card;
  card.identity.host = "a.host";
  card.identity.boot_id = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";
  card.identity.network_namespace = input.number<uint64_t>();
  card.identity.pid = input.number<uint32_t>();
  if (input.up_to(1)) card.socket_name = "ringdp-00112233445566778899aabbccddeeff";
  card.settings = comm::shared_settings(Settings{});
  card.heap_bytes = input.number<uint32_t>();
  card.world = input.number<uint16_t>();
  return card;
}

void check_card(const std::string& text) {
  const auto card = comm::card_from_text(text);
  require(!card || comm::to_text(*card) == text, "a card is what to_text() writes");
  require(comm::protocol_of_card(text) || !card, "a card names its protocol");
  const auto identity = transport::identity_from_line(text);
  require(!identity || transport::to_line(*identity) == text, "an identity is what to_line() writes");
  const auto thresholds = thresholds_from_text(text);
  require(!thresholds || to_text(*thresholds) == text, "thresholds are what to_text() writes");
}

}  // namespace

FUZZ_TARGET(card) {
  Input raw = input;
  check_card(raw.rest());
  const comm::Card card = real_card(input);
  const std::string text = comm::to_text(card);
  require(comm::card_from_text(text).has_value(), "a card is read");
  Input same = input;
  check_card(edited(text, same));
  same = input;
  check_card(edited(transport::to_line(card.identity), same));
  check_card(edited(to_text(card.thresholds), input));
}

}  // namespace ringdp::fuzz
