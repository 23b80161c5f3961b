// Who can form a group of NCCL: all ranks say the same of the same cards.
#include "gpu/nccl/card.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace ringdp::gpu {
namespace {

std::vector<NcclCard> cards(int world) {
  std::vector<NcclCard> all;
  for (int r = 0; r < world; ++r) {
    all.push_back(nccl_card_without(""));
    all.back().version = 22907;
    all.back().uuid[3] = static_cast<unsigned char>(r);
  }
  return all;
}

TEST(NcclCard, ADeviceForEachAndOneVersionAreEnough) { EXPECT_EQ(why_not(cards(3)), ""); }

TEST(NcclCard, ARankWithoutNcclIsNamedWithItsReason) {
  std::vector<NcclCard> all = cards(3);
  all[2] = nccl_card_without("no NCCL: not here");
  EXPECT_EQ(why_not(all), "rank 2: no NCCL: not here");
}

TEST(NcclCard, RanksThatShareADeviceAreNamed) {
  std::vector<NcclCard> all = cards(3);
  all[2].uuid[3] = 1;
  EXPECT_EQ(why_not(all), "ranks 1 and 2 share a device, and NCCL wants one for each");
}

TEST(NcclCard, SoAreTwoVersions) {
  std::vector<NcclCard> all = cards(2);
  all[1].version = 23007;
  EXPECT_EQ(why_not(all), "rank 0 has NCCL 22907, and rank 1 has 23007");
}

TEST(NcclCard, TravelsAsBytesAndAnotherBuildIsNamed) {
  std::vector<NcclCard> all = cards(2);
  std::vector<std::string> bytes = {to_bytes(all[0]), to_bytes(all[1])};
  EXPECT_EQ(nccl_cards_from(bytes)[1].uuid[3], 1);
  bytes[1].pop_back();
  try {
    nccl_cards_from(bytes);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
    EXPECT_EQ(error.culprit(), 1);
  }
}

}  // namespace
}  // namespace ringdp::gpu
