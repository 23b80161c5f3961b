#include "collective/select.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace ringdp::collective {
namespace {

Settings forced(const char* algorithm) {
  Settings settings;
  set_field(settings, "algorithm", algorithm);
  return settings;
}

TEST(Select, DefaultsSumInRankOrder) {
  for (const Topology t : {Topology{1, false}, Topology{8, true}, Topology{16, false}, Topology{17, false}}) {
    const Choice choice = select(Settings{}, t);
    EXPECT_EQ(choice.order, Order::kRank);
    EXPECT_FALSE(choice.why.empty());
  }
  EXPECT_EQ(select(Settings{}, {8, true}).algorithm, AlgorithmChoice::kArena);
  EXPECT_EQ(select(Settings{}, {16, false}).algorithm, AlgorithmChoice::kDirect);
  EXPECT_EQ(select(Settings{}, {17, false}).algorithm, AlgorithmChoice::kRing);
}

TEST(Select, AForcedAlgorithmIsTakenOrRefusedByName) {
  EXPECT_EQ(select(forced("ring"), {4, true}).algorithm, AlgorithmChoice::kRing);
  EXPECT_EQ(select(forced("direct"), {4, true}).algorithm, AlgorithmChoice::kDirect);
  EXPECT_EQ(select(forced("arena"), {4, true}).algorithm, AlgorithmChoice::kArena);
  EXPECT_THROW(select(forced("arena"), {4, false}), Error);
  for (const char* later : {"hierarchy", "tree", "server"}) {
    try {
      select(forced(later), {4, true});
      FAIL() << later;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(later), std::string::npos);
    }
  }
}

TEST(Select, RotatedOrderMeansTheRing) {
  Settings settings;
  settings.order = Order::kRotated;
  EXPECT_EQ(select(settings, {4, true}).algorithm, AlgorithmChoice::kRing);
  EXPECT_EQ(select(settings, {4, true}).order, Order::kRotated);
}

}  // namespace
}  // namespace ringdp::collective
