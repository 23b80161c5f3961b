// Plans of devices that reach each other by messages: which one, whole packs, and the bits of the serial fold.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "device/cpp/plan/link_rounds_case.h"
#include "device/plan/select.h"
#include "long_tests.h"

namespace ringdp::plan::testing {
namespace {

constexpr DeviceAlgorithm kSums[] = {DeviceAlgorithm::kDirect, DeviceAlgorithm::kRankRing,
                                     DeviceAlgorithm::kRotatedRing};

struct Asked {
  Case c;
  std::vector<Plan> plans;
};

LinkSettings over(WireType wire) {
  LinkSettings link_settings;
  link_settings.wire = wire;
  return link_settings;
}

Asked ask(DeviceAlgorithm algorithm, Problem problem, uint64_t seed, WireType wire = WireType::kFp32) {
  Asked asked;
  asked.c.algorithm = algorithm == DeviceAlgorithm::kDirect ? AlgorithmChoice::kDirect : AlgorithmChoice::kRing;
  asked.c.order = algorithm == DeviceAlgorithm::kRotatedRing ? Order::kRotated : Order::kRank;
  asked.c.seed = seed;
  asked.c.in_place = problem.what == Collective::kAllReduce;
  asked.c.link_bytes = 40 + seed % 97;
  asked.c.problem.what = problem.what;
  asked.c.problem.dtype = problem.dtype;
  asked.c.problem.op = problem.op;
  asked.c.problem.world = problem.world;
  asked.c.problem.root = problem.root;
  asked.c.problem.count = problem.count;
  asked.c.problem.wire = wire;
  asked.c.unit = pack_elements(problem.dtype);
  for (problem.rank = 0; problem.rank < problem.world; ++problem.rank) {
    asked.plans.push_back(make_link_plan(algorithm, problem, over(wire)));
  }
  return asked;
}

Problem linked_problem(Collective what, DType dtype, int world, int64_t packs) {
  Problem problem;
  problem.what = what;
  problem.dtype = dtype;
  problem.world = world;
  problem.count = packs * pack_elements(dtype);
  return problem;
}

void expect_whole_packs(const Plan& plan, const Step& step) {
  for (const auto* refs : {&step.srcs, &step.dsts}) {
    for (const Ref& ref : *refs) {
      EXPECT_EQ(ref.offset % kDevicePackBytes, 0);
      EXPECT_TRUE(ref.form == Form::kEncoded || bytes_of(plan, ref) % kDevicePackBytes == 0);
    }
  }
}

void check(const Asked& asked) {
  check_ends_meet(asked.c, asked.plans);
  if (!::testing::Test::HasFatalFailure()) check_rounds(asked.c, asked.plans);
  for (const Plan& plan : asked.plans) {
    for (const Channel& channel : plan.channels) {
      for (const Step& step : channel.steps) expect_whole_packs(plan, step);
    }
  }
}

TEST(DeviceLinks, SumsHaveTheBitsOfTheSerialFold) {
  uint64_t seed = 0;
  for (const DeviceAlgorithm algorithm : kSums) {
    for (const Collective what : {Collective::kAllReduce, Collective::kReduceScatter}) {
      for (int world = 2; world <= 8; ++world) {
        for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64, DType::kI32}) {
          for (const int64_t packs : {0, 1, 2 * world + 1}) {
            Problem problem = linked_problem(what, dtype, world, packs);
            problem.op = is_floating(dtype) && ++seed % 2 ? ReduceOp::kAvg : ReduceOp::kSum;
            check(ask(algorithm, problem, seed));
            if (::testing::Test::HasFailure()) return;
          }
        }
      }
    }
  }
}

// The most that any of these ranks needs.
int64_t most_scratch(DeviceAlgorithm algorithm, Problem problem, const LinkSettings& link_settings,
                     const std::set<int>& ranks) {
  int64_t most = 0;
  for (const int rank : ranks) {
    problem.rank = rank;
    most = std::max(most, make_link_plan(algorithm, problem, link_settings).scratch_bytes);
  }
  return most;
}

void expect_no_other_needs_more(DeviceAlgorithm algorithm, const Problem& problem, const LinkSettings& link_settings) {
  std::set<int> all;
  for (int rank = 0; rank < problem.world; ++rank) all.insert(rank);
  EXPECT_EQ(most_scratch(algorithm, problem, link_settings, ranks_with_most_scratch(problem, link_settings)),
            most_scratch(algorithm, problem, link_settings, all))
      << name_of(algorithm) << " " << name_of(problem.what) << " of " << problem.count << " " << name_of(problem.dtype)
      << ", " << problem.world << " ranks, " << name_of(link_settings.wire);
}

TEST(DeviceLinks, NobodyNeedsMoreScratchThanThoseWhoAreAsked) {
  for (const WireType wire : {WireType::kFp32, WireType::kBf16, WireType::kFp8}) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
      for (int world = 2; world <= 9; ++world) {
        for (const int64_t packs : {1, world + 1, 64 * world, 64 * world + 65, 4999}) {
          for (const DeviceAlgorithm algorithm : kSums) {
            for (const Collective what : {Collective::kAllReduce, Collective::kReduceScatter}) {
              const bool encoded = travels_encoded(over(wire), linked_problem(what, dtype, world, packs));
              if (encoded && algorithm != DeviceAlgorithm::kDirect) continue;
              expect_no_other_needs_more(algorithm, linked_problem(what, dtype, world, packs), over(wire));
            }
          }
          for (const Collective what : {Collective::kReduce, Collective::kGather, Collective::kBroadcast}) {
            Problem problem = linked_problem(what, dtype, world, packs);
            problem.root = world / 2;
            expect_no_other_needs_more(DeviceAlgorithm::kDirect, problem, over(wire));
          }
        }
      }
    }
  }
}

TEST(DeviceLinks, NobodyNeedsMoreScratchInAHierarchy) {
  for (const std::vector<int>& hosts : {std::vector<int>{0, 2}, {0, 1}, {0, 3}, {0, 1, 3}, {0, 2, 3}, {0, 2, 4}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const int64_t packs : {1, 2, 7, 64, 4999}) {
        LinkSettings link_settings;
        link_settings.hosts = hosts;
        const int world = hosts.back() + 2;
        expect_no_other_needs_more(DeviceAlgorithm::kHierarchy,
                                   linked_problem(Collective::kAllReduce, dtype, world, packs), link_settings);
      }
    }
  }
}

TEST(DeviceLinks, MovesBringEveryPart) {
  for (const Collective what : {Collective::kAllGather, Collective::kBroadcast, Collective::kAllToAll,
                                Collective::kGather, Collective::kScatter}) {
    for (int world = 2; world <= 8; ++world) {
      for (const int64_t packs : {0, 1, 5}) {
        Problem problem = linked_problem(what, DType::kF32, world, packs);
        problem.root = world - 1;
        check(ask(DeviceAlgorithm::kDirect, problem, static_cast<uint64_t>(world)));
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(DeviceLinks, EveryRootGetsTheSum) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI32}) {
    for (int world = 2; world <= 5; ++world) {
      Problem problem = linked_problem(Collective::kReduce, dtype, world, 7);
      for (problem.root = 0; problem.root < world; ++problem.root) {
        check(ask(DeviceAlgorithm::kDirect, problem, static_cast<uint64_t>(world)));
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

// Of no block, of a part of one, and of more than one for each rank.
TEST(DeviceLinks, EncodedSumsHaveTheBitsOfTheOracle) {
  uint64_t seed = 0;
  for (const WireType wire : {WireType::kBf16, WireType::kFp16, WireType::kFp8, WireType::kInt8}) {
    for (const Collective what : {Collective::kAllReduce, Collective::kReduceScatter}) {
      for (int world = 2; world <= 8; world += long_tests() ? 1 : 3) {
        for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
          for (const int64_t packs : {0, 1, 65 + 64 * world}) {
            Problem problem = linked_problem(what, dtype, world, packs);
            problem.op = ++seed % 2 ? ReduceOp::kAvg : ReduceOp::kSum;
            check(ask(DeviceAlgorithm::kDirect, problem, seed, wire));
            if (::testing::Test::HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST(DeviceLinks, SlicesTravelEncodedAtOnce) {
  Problem problem = linked_problem(Collective::kAllReduce, DType::kF32, 4, int64_t{1} << 20);
  const Plan plan = make_link_plan(DeviceAlgorithm::kDirect, problem, over(WireType::kFp8));
  EXPECT_EQ(plan.wire, WireType::kFp8);
  EXPECT_EQ(rounds_of(plan).size(), 2u);
  EXPECT_EQ(collective::totals(plan).bytes_sent, 2 * 3 * (problem.count / 4 / 256) * 260);
  problem.op = ReduceOp::kMax;
  EXPECT_EQ(make_link_plan(DeviceAlgorithm::kDirect, problem, over(WireType::kFp8)).wire, WireType::kFp32);
}

TEST(DeviceLinks, LongTensorsHaveAnOrderOfRoundsToo) {
  for (const DeviceAlgorithm algorithm : kSums) {
    for (const Collective what : {Collective::kAllReduce, Collective::kReduceScatter}) {
      Problem problem = linked_problem(what, DType::kBF16, 3, int64_t{1} << 22);
      for (problem.rank = 0; problem.rank < 3; ++problem.rank) {
        const Plan plan = make_link_plan(algorithm, problem);
        EXPECT_FALSE(rounds_of(plan).empty());
        for (const Channel& channel : plan.channels) {
          for (const Step& step : channel.steps) expect_whole_packs(plan, step);
        }
      }
    }
  }
}

// 16-bit sums: raw from the first rank on, float32 between, the result raw.
TEST(DeviceLinks, SendWhatTheirAlgorithmSays) {
  const int64_t bytes = 3 * 16 * 16;
  const Problem problem = linked_problem(Collective::kAllReduce, DType::kBF16, 3, bytes / 16);
  EXPECT_EQ(collective::totals(make_link_plan(DeviceAlgorithm::kDirect, problem)).bytes_sent, 2 * 2 * bytes / 3);
  EXPECT_EQ(collective::totals(make_link_plan(DeviceAlgorithm::kRotatedRing, problem)).bytes_sent, 5 * bytes / 3);
  EXPECT_EQ(collective::totals(make_link_plan(DeviceAlgorithm::kRankRing, problem)).bytes_sent, 2 * bytes);
}

TEST(DeviceLinks, TheWishIsFollowedOrRefusedByName) {
  const Problem few = linked_problem(Collective::kAllReduce, DType::kF32, 16, 4);
  const Problem many = linked_problem(Collective::kAllReduce, DType::kF32, 17, 4);
  LinkSettings link_settings;
  EXPECT_EQ(select_link_plan(link_settings, few).algorithm, DeviceAlgorithm::kDirect);
  EXPECT_EQ(select_link_plan(link_settings, many).algorithm, DeviceAlgorithm::kRankRing);
  link_settings.algorithm = AlgorithmChoice::kRing;
  EXPECT_EQ(select_link_plan(link_settings, few).algorithm, DeviceAlgorithm::kRankRing);
  EXPECT_EQ(select_link_plan(link_settings, linked_problem(Collective::kReduce, DType::kF32, 4, 4)).algorithm,
            DeviceAlgorithm::kDirect);
  link_settings.order = Order::kRotated;
  EXPECT_EQ(select_link_plan(link_settings, few).algorithm, DeviceAlgorithm::kRotatedRing);
  EXPECT_EQ(select_link_plan(link_settings, linked_problem(Collective::kAllGather, DType::kF32, 4, 4)).algorithm,
            DeviceAlgorithm::kDirect);
  link_settings.algorithm = AlgorithmChoice::kDirect;
  EXPECT_EQ(select_link_plan(link_settings, many).algorithm, DeviceAlgorithm::kDirect);
  EXPECT_EQ(why_no_link_plan(link_settings, many), "");
  link_settings.algorithm = AlgorithmChoice::kTree;
  EXPECT_EQ(why_no_link_plan(link_settings, few), "algorithm=tree has no plan between hosts on devices");
  EXPECT_EQ(why_no_link_plan(link_settings, linked_problem(Collective::kAllGather, DType::kF32, 4, 4)), "");
  EXPECT_NE(why_no_link_plan(link_settings, linked_problem(Collective::kReduce, DType::kF32, 4, 4)), "");
  EXPECT_EQ(why_no_link_plan({}, linked_problem(Collective::kReduce, DType::kF32, 192, 4)), "");
  EXPECT_NE(why_no_link_plan({}, linked_problem(Collective::kReduce, DType::kF32, 193, 4)), "");
  EXPECT_NE(why_no_link_plan({}, linked_problem(Collective::kBarrier, DType::kF32, 4, 0)), "");
  link_settings = {};
  link_settings.hosts = {0, 2};
  link_settings.hierarchy_beyond = 63;  // bytes
  EXPECT_EQ(select_link_plan(link_settings, few).algorithm, DeviceAlgorithm::kHierarchy);
  EXPECT_EQ(select_link_plan(link_settings, linked_problem(Collective::kAllReduce, DType::kF32, 4, 3)).algorithm,
            DeviceAlgorithm::kDirect);
  link_settings.algorithm = AlgorithmChoice::kHierarchy;
  EXPECT_EQ(why_no_link_plan(link_settings, few), "");
  EXPECT_EQ(select_link_plan(link_settings, linked_problem(Collective::kReduceScatter, DType::kF32, 4, 4)).algorithm,
            DeviceAlgorithm::kDirect);
  EXPECT_NE(why_no_link_plan(link_settings, linked_problem(Collective::kReduceScatter, DType::kF32, 193, 4)), "");
  link_settings.hosts.clear();
  EXPECT_EQ(why_no_link_plan(link_settings, few), "algorithm=hierarchy has no plan between hosts on devices");
}

TEST(DeviceLinks, AWireTypeIsTheDirectOnes) {
  const Problem many = linked_problem(Collective::kAllReduce, DType::kF32, 17, 4);
  LinkSettings link_settings;
  link_settings.hosts = {0, 8};  // whose hierarchy would round partial sums
  link_settings.wire = WireType::kBf16;
  EXPECT_TRUE(travels_encoded(link_settings, many));
  EXPECT_EQ(why_no_link_plan(link_settings, many), "");
  EXPECT_EQ(select_link_plan(link_settings, many).algorithm, DeviceAlgorithm::kDirect);
  EXPECT_EQ(select_link_plan(link_settings, many).why, "wire=bf16: each contribution is rounded once");
  EXPECT_FALSE(travels_encoded(link_settings, linked_problem(Collective::kReduce, DType::kF32, 17, 4)));
  EXPECT_FALSE(travels_encoded(link_settings, linked_problem(Collective::kAllReduce, DType::kBF16, 17, 4)))
      << "no shorter";
  EXPECT_NE(why_no_link_plan(link_settings, linked_problem(Collective::kAllReduce, DType::kF32, 193, 4)), "");
  link_settings.order = Order::kRotated;
  const std::string why = " has no plan for wire=bf16: only direct rounds each contribution once";
  EXPECT_EQ(why_no_link_plan(link_settings, many), "order=rotated" + why);
  EXPECT_EQ(why_no_link_plan(link_settings, linked_problem(Collective::kAllReduce, DType::kI32, 17, 4)), "");
  link_settings.algorithm = AlgorithmChoice::kDirect;
  EXPECT_EQ(why_no_link_plan(link_settings, many), "") << "as on the host";
  link_settings.algorithm = AlgorithmChoice::kRing;
  EXPECT_EQ(why_no_link_plan(link_settings, many), "algorithm=ring" + why);
}

}  // namespace
}  // namespace ringdp::plan::testing
