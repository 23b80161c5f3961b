// What ranks tell each other of their devices (csrc/gpu/card.h, csrc/gpu/nccl/card.h), and what is made of it.
#include "gpu/card.h"
#include "gpu/nccl/card.h"
#include "gpu/placement.h"
#include "target.h"

namespace ringdp::fuzz {
namespace {

bool ends(const char* text, size_t size) { return std::memchr(text, 0, size) != nullptr; }

// Three ranks' bytes: as they are, or of this build.
template <class Card>
std::vector<std::string> three(Input& input, const Card& own) {
  std::vector<std::string> bytes;
  for (int rank = 0; rank < 3; ++rank) {
    const bool of_this_build = input.up_to(7) > 0;
    bytes.push_back(input.bytes(sizeof(Card)));
    if (!of_this_build) continue;
    bytes.back().resize(sizeof(Card));
    std::memcpy(bytes.back().data(), &own.build, sizeof own.build);
  }
  return bytes;
}

}  // namespace

FUZZ_TARGET(told) {
  Input again = input;
  const auto cards = three(input, gpu::card_without(""));
  refuses({ErrorKind::kMismatch}, [&] {
    const std::vector<gpu::Card> read = gpu::cards_from(cards);
    for (const gpu::Card& card : read) {
      require(ends(card.why_not, sizeof card.why_not) && ends(card.socket, sizeof card.socket), "texts end");
    }
    gpu::why_not(read);
    const gpu::Placement placement = gpu::place(read);
    require(placement.blocks >= 1, "a kernel has a block");
  });
  const auto others = three(again, gpu::nccl_card_without(""));
  refuses({ErrorKind::kMismatch}, [&] {
    const std::vector<gpu::NcclCard> read = gpu::nccl_cards_from(others);
    for (const gpu::NcclCard& card : read) require(ends(card.why_not, sizeof card.why_not), "texts end");
    gpu::why_not(read);
  });
}

}  // namespace ringdp::fuzz
