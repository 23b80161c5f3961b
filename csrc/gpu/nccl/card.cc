#include "gpu/nccl/card.h"

#include <cstring>

namespace ringdp::gpu {
namespace {

constexpr uint32_t kBuild = RD_GPU_ABI << 24 ^ static_cast<uint32_t>(sizeof(NcclCard) << 8) ^ 1u;  // the last: plans

std::string rank(size_t number) { return "rank " + std::to_string(number); }

}  // namespace

NcclCard nccl_card_without(const std::string& why_not) {
  NcclCard card;
  card.build = kBuild;
  put(card.why_not, why_not);
  return card;
}

std::vector<NcclCard> nccl_cards_from(const std::vector<std::string>& bytes) {
  return cards_told<NcclCard>(bytes, kBuild, "what it says of NCCL is not understood");
}

std::string why_not(const std::vector<NcclCard>& cards) {
  for (size_t r = 0; r < cards.size(); ++r) {
    if (cards[r].version == 0) return rank(r) + ": " + cards[r].why_not;
  }
  for (size_t r = 1; r < cards.size(); ++r) {
    if (cards[r].version != cards[0].version) {
      return rank(0) + " has NCCL " + std::to_string(cards[0].version) + ", and " + rank(r) + " has " +
             std::to_string(cards[r].version);
    }
    for (size_t other = 0; other < r; ++other) {
      if (std::memcmp(cards[other].uuid, cards[r].uuid, sizeof cards[r].uuid) != 0) continue;
      return "ranks " + std::to_string(other) + " and " + std::to_string(r) +
             " share a device, and NCCL wants one for each";
    }
  }
  return "";
}

}  // namespace ringdp::gpu
