#include "gpu/card.h"

#include <unistd.h>

#include <cstring>

#include "gpu/device/work.h"

namespace ringdp::gpu {
namespace {

// Whatever changes what ranks do to each other's memory changes one of these.
constexpr uint32_t kBuild = RD_GPU_ABI << 24 ^ static_cast<uint32_t>(sizeof(Card) << 12) ^ sizeof(Work) ^ sizeof(Flags);

Card blank() {
  Card card;
  card.build = kBuild;
  card.pid = static_cast<uint64_t>(::getpid());
  return card;
}

}  // namespace

Card card_of(const Functions& functions, int device) {
  rd_gpu_device facts{};
  require(functions, functions.describe(device, &facts));
  Card card = blank();
  card.usable = 1;
  card.multiprocessors = facts.multiprocessors;
  card.waits_on_streams = facts.waits_on_streams;
  std::memcpy(card.uuid, facts.uuid, sizeof card.uuid);
  return card;
}

Card card_without(const std::string& why_not) {
  Card card = blank();
  put(card.why_not, why_not);
  return card;
}

std::vector<Card> cards_from(const std::vector<std::string>& bytes) {
  auto cards = cards_told<Card>(bytes, kBuild, "its device's card is none");
  for (Card& card : cards) end_text(card.socket);
  return cards;
}

std::string why_not(const std::vector<Card>& cards) {
  for (size_t rank = 0; rank < cards.size(); ++rank) {
    if (!cards[rank].usable) return "rank " + std::to_string(rank) + ": " + cards[rank].why_not;
  }
  return "";
}

}  // namespace ringdp::gpu
