#include "collective/select.h"

#include <gtest/gtest.h>

#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "plan/exchange.h"

namespace ringdp::collective {
namespace {

using plan::Collective;

Choice select(const Settings& settings, const Topology& topology) {
  return collective::select(settings, topology, Collective::kAllReduce, settings.thresholds.direct_bytes + 1);
}

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
  EXPECT_EQ(select(forced("exchange"), {4, true, {0}}).algorithm, AlgorithmChoice::kExchange);
  EXPECT_EQ(select(forced("arena"), {4, true, {0}}).algorithm, AlgorithmChoice::kArena);
  EXPECT_THROW(select(forced("arena"), {4, false, {}}), Error);
  EXPECT_EQ(select(forced("tree"), {4, true, {0}}).algorithm, AlgorithmChoice::kTree);
  EXPECT_EQ(select(forced("server"), {4, false, {}}).algorithm, AlgorithmChoice::kServer);
  EXPECT_EQ(select(forced("hierarchy"), {4, false, {0, 1}}).algorithm, AlgorithmChoice::kHierarchy);
  const std::pair<Topology, std::string> refused[] = {
      {{4, false, {}}, "algorithm=hierarchy needs the ranks of every host"},
      {{4, true, {}, true}, "algorithm=hierarchy needs several hosts"},
  };
  for (const auto& [topology, words] : refused) {
    try {
      select(forced("hierarchy"), topology);
      FAIL() << words;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
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

TEST(Select, TheTreesOrderIsThatOfArenaDirectExchangeHierarchyAndHalving) {
  Settings settings;
  settings.order = Order::kTree;
  EXPECT_EQ(select(settings, {4, true, {0}}).algorithm, AlgorithmChoice::kArena);
  const auto layered = [&](std::vector<int> hosts, int world, int64_t bytes) {
    return collective::select(settings, {world, false, std::move(hosts)}, Collective::kAllReduce, bytes).algorithm;
  };
  EXPECT_EQ(layered({0, 2}, 4, 1 << 30), AlgorithmChoice::kHierarchy);
  EXPECT_EQ(layered({0, 2}, 4, 8), AlgorithmChoice::kDirect);
  EXPECT_EQ(layered({0, 3}, 4, 1 << 30), AlgorithmChoice::kHierarchy);
  const auto choice = [&](int world, Collective what, int64_t bytes) {
    return collective::select(settings, {world, false, {}}, what, bytes).algorithm;
  };
  EXPECT_EQ(choice(64, Collective::kAllReduce, 1 << 30), AlgorithmChoice::kHalving) << "else a ring";
  EXPECT_EQ(choice(64, Collective::kAllReduce, 8), AlgorithmChoice::kExchange);
  EXPECT_EQ(choice(64, Collective::kAllReduce, 8 << 10), AlgorithmChoice::kDirect);
  EXPECT_EQ(choice(63, Collective::kAllReduce, 1 << 30), AlgorithmChoice::kDirect);
  EXPECT_EQ(choice(64, Collective::kReduceScatter, 1 << 30), AlgorithmChoice::kDirect);
  EXPECT_EQ(select(settings, {4, true, {0}}).order, Order::kTree);
  const Choice moved = collective::select(settings, {64, false, {}}, Collective::kAllGather, 1 << 30);
  EXPECT_EQ(moved.algorithm, AlgorithmChoice::kRing);
  EXPECT_EQ(moved.order, Order::kRank);
  for (const char* algorithm : {"ring", "tree"}) {
    set_field(settings, "algorithm", algorithm);
    try {
      select(settings, {4, false, {0, 2}});
      FAIL() << algorithm;
    } catch (const Error& error) {
      const std::string named = std::string("algorithm=") + algorithm + " cannot sum with order=tree";
      EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
    }
  }
}

TEST(Select, HalvingIsForTheTreesOrderAndAPowerOfTwoOfRanks) {
  Settings settings = forced("halving");
  const auto refused = [&](int world, const std::string& named) {
    try {
      select(settings, {world, false, {}});
      FAIL() << named;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
    }
  };
  refused(4, "algorithm=halving cannot sum with order=rank");
  settings.order = Order::kRotated;
  refused(4, "algorithm=halving cannot sum with order=rotated");
  settings.order = Order::kTree;
  refused(6, "algorithm=halving needs 2, 4, 8, 16, ... ranks, and there are 6");
  EXPECT_EQ(select(settings, {4, false, {}}).algorithm, AlgorithmChoice::kHalving);
  EXPECT_EQ(select(settings, {4, false, {}}).order, Order::kTree);
}

// Hosts of equally many ranks.
Topology hosts_of(int hosts, int local) {
  Topology topology{hosts * local, false, {}};
  for (int host = 0; host < hosts; ++host) topology.hosts.push_back(host * local);
  return topology;
}

constexpr Collective kMoved[] = {Collective::kAllGather, Collective::kReduceScatter, Collective::kReduce};

struct Row {
  Topology topology;
  std::vector<Collective> what;
  AlgorithmChoice small, large;
  int64_t Thresholds::*limit;
};

std::vector<Row> rows() {
  using enum AlgorithmChoice;
  const std::vector<Collective> any(std::begin(kMoved), std::end(kMoved));
  std::vector<Collective> with_sum = any;
  with_sum.push_back(Collective::kAllReduce);
  const auto bytes = &Thresholds::direct_bytes, tree = &Thresholds::tree_bytes;
  return {
      {{16, false, {}}, with_sum, kDirect, kDirect, bytes},
      {{17, false, {}}, with_sum, kDirect, kRing, bytes},
      {{17, false, {}}, {Collective::kBroadcast}, kTree, kRing, tree},
      {{16, false, {}}, {Collective::kBroadcast}, kDirect, kDirect, tree},
      {hosts_of(17, 1), with_sum, kDirect, kRing, bytes},
      {hosts_of(4, 2), {Collective::kAllReduce}, kDirect, kHierarchy, bytes},
      {hosts_of(3, 2), {Collective::kAllReduce}, kHierarchy, kHierarchy, bytes},
      {hosts_of(2, 8), {Collective::kAllReduce}, kHierarchy, kHierarchy, bytes},
      {hosts_of(2, 8), any, kDirect, kDirect, bytes},
      {hosts_of(3, 8), any, kDirect, kRing, bytes},
      {hosts_of(3, 8), {Collective::kBroadcast}, kTree, kRing, tree},
      {{8, true, {}}, with_sum, kArena, kArena, bytes},
  };
}

TEST(Select, TheLimitItselfIsStillSmall) {
  Settings settings;
  settings.thresholds.direct_bytes = 1000;
  settings.thresholds.tree_bytes = 500;
  settings.thresholds.exchange_bytes = 0;
  for (const Row& row : rows()) {
    const int64_t limit = settings.thresholds.*row.limit;
    for (const Collective what : row.what) {
      const std::string where = std::to_string(row.topology.world) + " ranks, " + plan::name_of(what);
      for (const int64_t bytes : {int64_t{1}, limit}) {
        const Choice small = collective::select(settings, row.topology, what, bytes);
        EXPECT_EQ(small.algorithm, row.small) << where << " " << bytes;
      }
      const Choice large = collective::select(settings, row.topology, what, limit + 1);
      EXPECT_EQ(large.algorithm, row.large) << where;
      const bool named = large.why.find(std::to_string(limit)) != std::string::npos;
      EXPECT_TRUE(named || row.small == row.large) << large.why;
    }
  }
}

TEST(Select, ExchangeIsForFewBytesBetweenHosts) {
  Settings settings;
  for (const int64_t more : {int64_t{0}, settings.thresholds.exchange_bytes, int64_t{1} << 20}) {
    settings.thresholds.exchange_bytes = more;
    for (const int world : {3, 8, 16, 17, 100}) {
      const int64_t limit = plan::largest_exchange(world, more);
      for (const Topology& topology : {Topology{world, false, {}}, hosts_of(world, 1)}) {
        const Choice within = collective::select(settings, topology, Collective::kAllReduce, limit);
        EXPECT_EQ(within.algorithm, AlgorithmChoice::kExchange) << world;
        EXPECT_EQ(within.order, Order::kRank);
        EXPECT_NE(within.why.find("up to " + std::to_string(limit) + " bytes"), std::string::npos) << within.why;
        const Choice beyond = collective::select(settings, topology, Collective::kAllReduce, limit + 1);
        EXPECT_NE(beyond.algorithm, AlgorithmChoice::kExchange) << world;
        for (const Collective what : kMoved) {
          EXPECT_NE(collective::select(settings, topology, what, 0).algorithm, AlgorithmChoice::kExchange);
        }
      }
      const Topology one_host = {world, false, {}, true};
      EXPECT_NE(collective::select(settings, one_host, Collective::kAllReduce, 0).algorithm,
                AlgorithmChoice::kExchange);
    }
  }
}

TEST(Select, BetweenTwoHostsOfOneRankExchangeIsForEverySize) {
  Settings settings;
  settings.thresholds.exchange_bytes = 0;
  for (const int64_t bytes : {int64_t{0}, int64_t{1} << 40}) {
    const auto of = [&](const Topology& topology) {
      return collective::select(settings, topology, Collective::kAllReduce, bytes).algorithm;
    };
    EXPECT_EQ(of({2, false, {}}), AlgorithmChoice::kExchange);
    EXPECT_EQ(of({2, false, {0, 1}}), AlgorithmChoice::kExchange);
    EXPECT_EQ(of({2, false, {}, true}), AlgorithmChoice::kDirect);
    EXPECT_EQ(of({2, true, {}, true}), AlgorithmChoice::kArena);
  }
  settings.order = Order::kTree;
  const Choice along_tree = collective::select(settings, {2, false, {}}, Collective::kAllReduce, 1 << 30);
  EXPECT_EQ(along_tree.algorithm, AlgorithmChoice::kExchange);
  EXPECT_EQ(along_tree.order, Order::kTree);
}

TEST(Select, WhereOnlyDirectHasAPlanItSaysSo) {
  for (const Collective what : {Collective::kGather, Collective::kScatter, Collective::kAllToAll}) {
    for (const Topology& topology : {Topology{64, false, {}}, hosts_of(8, 8)}) {
      for (const int64_t bytes : {0, 1 << 30}) {
        const Choice choice = collective::select(Settings{}, topology, what, bytes);
        EXPECT_EQ(choice.algorithm, AlgorithmChoice::kDirect);
        EXPECT_NE(choice.why.find(plan::name_of(what)), std::string::npos) << choice.why;
      }
    }
  }
}

// The sum of a tree is in the tree's order: nobody gets it without asking for it.
TEST(Select, NothingThatSumsIsATree) {
  for (const Row& row : rows()) {
    for (int what = 0; what < plan::kCollectiveCount; ++what) {
      for (int64_t bytes = 0; bytes <= int64_t{1} << 31; bytes = 2 * bytes + 1) {
        const Choice choice = collective::select(Settings{}, row.topology, static_cast<Collective>(what), bytes);
        EXPECT_EQ(choice.order, Order::kRank);
        const bool moves_only = static_cast<Collective>(what) == Collective::kBroadcast;
        EXPECT_TRUE(choice.algorithm != AlgorithmChoice::kTree || moves_only);
      }
    }
  }
}

TEST(Select, SizesAreDescribedInOrder) {
  Settings settings;
  settings.thresholds.direct_bytes = 1234;
  settings.thresholds.exchange_bytes = 1 << 10;
  const std::string text = describe_choices(settings, hosts_of(4, 2));
  const size_t direct = text.find("plan: direct ("), hierarchy = text.find("\nplan: hierarchy (");
  ASSERT_NE(hierarchy, std::string::npos) << text;
  EXPECT_LT(direct, hierarchy) << text;
  EXPECT_NE(text.find("up to 1234 bytes"), std::string::npos) << text;
  EXPECT_NE(text.find("beyond 1234 bytes"), std::string::npos) << text;
  const std::string flat = describe_choices(settings, hosts_of(17, 1));
  const size_t exchange = flat.find("plan: exchange ("), owners = flat.find("\nplan: direct ("),
               ring = flat.find("\nplan: ring (");
  EXPECT_TRUE(exchange < owners && owners < ring && ring != std::string::npos) << flat;
  const std::string pair = describe_choices(settings, hosts_of(2, 1));
  EXPECT_EQ(pair.rfind("plan: exchange (", 0), 0u) << pair;
  EXPECT_EQ(pair.find('\n'), std::string::npos) << pair;
  EXPECT_EQ(describe_choices(forced("ring"), {4, true, {0}}), "plan: ring (forced by algorithm=ring)");
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
  Settings rotated = wired("auto"), along_tree = wired("direct");
  rotated.order = Order::kRotated;
  along_tree.order = Order::kTree;
  for (const auto& [settings, named] : {std::pair{wired("ring"), "algorithm=ring"},
                                        {wired("exchange"), "algorithm=exchange"},
                                        {wired("tree"), "algorithm=tree"},
                                        {wired("server"), "algorithm=server"},
                                        {wired("hierarchy"), "algorithm=hierarchy"},
                                        {along_tree, "order=tree"},
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
