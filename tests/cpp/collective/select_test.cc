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
  for (const Topology& t : {Topology{1, false, {}}, Topology{8, true, {0}}, Topology{16, false, {}},
                            Topology{17, false, {}}, Topology{4, false, {0, 2}}}) {
    const Choice choice = select(Settings{}, t);
    EXPECT_EQ(choice.order, Order::kRank);
    EXPECT_FALSE(choice.why.empty());
  }
  EXPECT_EQ(select(Settings{}, {8, true, {0}}).algorithm, AlgorithmChoice::kArena);
  EXPECT_EQ(select(Settings{}, {16, false, {}}).algorithm, AlgorithmChoice::kDirect);
  EXPECT_EQ(select(Settings{}, {17, false, {}}).algorithm, AlgorithmChoice::kRing);
}

TEST(Select, AForcedAlgorithmIsTakenOrRefusedByName) {
  EXPECT_EQ(select(forced("ring"), {4, true, {0}}).algorithm, AlgorithmChoice::kRing);
  EXPECT_EQ(select(forced("direct"), {4, true, {0}}).algorithm, AlgorithmChoice::kDirect);
  EXPECT_EQ(select(forced("arena"), {4, true, {0}}).algorithm, AlgorithmChoice::kArena);
  EXPECT_THROW(select(forced("arena"), {4, false, {}}), Error);
  EXPECT_EQ(select(forced("tree"), {4, true, {0}}).algorithm, AlgorithmChoice::kTree);
  EXPECT_EQ(select(forced("server"), {4, false, {}}).algorithm, AlgorithmChoice::kServer);
  EXPECT_EQ(select(forced("hierarchy"), {4, false, {0, 1}}).algorithm, AlgorithmChoice::kHierarchy);
  try {
    select(forced("hierarchy"), {4, false, {}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("algorithm=hierarchy needs the ranks of every host"), std::string::npos);
  }
}

TEST(Select, SeveralRanksOnSeveralHostsAreAHierarchy) {
  EXPECT_EQ(select(Settings{}, {4, false, {0, 2}}).algorithm, AlgorithmChoice::kHierarchy);
  EXPECT_EQ(select(Settings{}, {3, false, {0, 1}}).algorithm, AlgorithmChoice::kHierarchy);
  EXPECT_EQ(select(Settings{}, {3, false, {0, 1, 2}}).algorithm, AlgorithmChoice::kDirect) << "one rank per host";
}

TEST(Select, RotatedOrderMeansTheRing) {
  Settings settings;
  settings.order = Order::kRotated;
  EXPECT_EQ(select(settings, {4, true, {0}}).algorithm, AlgorithmChoice::kRing);
  EXPECT_EQ(select(settings, {4, true, {0}}).order, Order::kRotated);
}

Settings wired(const char* algorithm) {
  Settings settings = forced(algorithm);
  settings.wire = WireType::kInt8;
  return settings;
}

TEST(Select, AWireTypeMeansDirectWhereverLinksCarryThePayload) {
  for (const Topology& t : {Topology{2, false, {}}, Topology{64, false, {}}, Topology{4, false, {0, 2}}}) {
    const Choice choice = select(wired("auto"), t);
    EXPECT_EQ(choice.algorithm, AlgorithmChoice::kDirect);
    EXPECT_EQ(choice.wire, WireType::kInt8);
    EXPECT_NE(choice.why.find("wire=int8"), std::string::npos) << choice.why;
  }
  EXPECT_EQ(select(wired("direct"), {4, true, {0}}).wire, WireType::kInt8) << "shared-memory links are links";
  EXPECT_EQ(select(Settings{}, {2, false, {}}).wire, WireType::kFp32);
}

TEST(Select, NothingIsOnAWireInSharedMemory) {
  for (const char* algorithm : {"auto", "arena"}) {
    const Choice choice = select(wired(algorithm), {4, true, {0}});
    EXPECT_EQ(choice.algorithm, AlgorithmChoice::kArena);
    EXPECT_EQ(choice.wire, WireType::kFp32);
    EXPECT_NE(choice.why.find("wire=int8 has no effect"), std::string::npos) << choice.why;
  }
  EXPECT_EQ(select(wired("ring"), {1, false, {}}).wire, WireType::kFp32) << "one rank sends nothing";
}

TEST(Select, OtherPlansWithAWireTypeAreRefusedByName) {
  Settings rotated = wired("auto");
  rotated.order = Order::kRotated;
  for (const auto& [settings, named] : {std::pair{wired("ring"), "algorithm=ring"}, {wired("tree"), "algorithm=tree"},
                                        {wired("server"), "algorithm=server"}, {wired("hierarchy"), "algorithm=hierarchy"},
                                        {rotated, "order=rotated"}}) {
    try {
      select(settings, {4, false, {0, 2}});
      FAIL() << named;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find(std::string(named) + " cannot send wire=int8"), std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace ringdp::collective
