#include "plan/direct.h"

#include <gtest/gtest.h>

#include "harness.h"

namespace ringdp::plan::testing {
namespace {

class DirectEverything : public ::testing::TestWithParam<int> {};

TEST_P(DirectEverything, EqualsTheSerialOracle) {
  check_everything(AlgorithmChoice::kDirect, Order::kRank, static_cast<Collective>(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Collectives, DirectEverything, ::testing::Range(0, kCollectiveCount));

TEST(Direct, SendsTheTextbookBytesInTwoRounds) {
  for (int world = 2; world <= 9; ++world) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
      Case c;
      c.problem.dtype = dtype;
      c.problem.world = world;
      c.problem.count = 100 * world;
      c.problem.segment_bytes = 128;
      const int64_t tensor = c.problem.count * size_of(dtype);
      for (const Plan& plan : plans_of(c)) {
        const collective::PlanTotals sums = collective::totals(plan);
        EXPECT_EQ(sums.bytes_sent, 2 * (world - 1) * tensor / world) << text_of(c);
        EXPECT_EQ(sums.bytes_received, sums.bytes_sent) << text_of(c);
        EXPECT_EQ(sums.rounds, 2) << text_of(c);
      }
    }
  }
}

Case moves(Collective what, int world) {
  Case c;
  c.problem.what = what;
  c.problem.world = world;
  c.problem.root = world / 2;
  c.problem.count = 1000;
  c.seed = world;
  make_uneven(c);
  return c;
}

// Every part but the own goes over a link once, in one round.
TEST(Direct, MovesSendEachPartOnce) {
  for (int world = 2; world <= 9; ++world) {
    for (const Collective what : {Collective::kAllGather, Collective::kGather, Collective::kScatter}) {
      const Case c = moves(what, world);
      int64_t all = 0;
      for (const int64_t part : c.problem.counts) all += 4 * part;
      for (const Plan& plan : plans_of(c)) {
        const bool is_root = plan.rank == c.problem.root;
        const int64_t mine = 4 * c.problem.counts[plan.rank];
        const int64_t wanted = what == Collective::kAllGather ? (world - 1) * mine
                               : what == Collective::kGather  ? (is_root ? 0 : mine)
                                                              : (is_root ? all - mine : 0);
        EXPECT_EQ(collective::totals(plan).bytes_sent, wanted) << text_of(c) << " rank " << plan.rank;
        EXPECT_LE(collective::totals(plan).rounds, 1) << text_of(c);
      }
    }
  }
}

// Only a pair knows whether its parts are empty: each has exactly one announced step, also of nothing.
TEST(Direct, AllToAllAnnouncesEveryTransferOnce) {
  for (int world = 2; world <= 9; ++world) {
    const Case c = moves(Collective::kAllToAll, world);
    for (const Plan& plan : plans_of(c)) {
      std::vector<int> sent(world), received(world);
      for (const Channel& channel : plan.channels) {
        for (const Step& step : channel.steps) {
          EXPECT_EQ(step.announce, step.verb != Verb::kCopy);
          if (step.verb == Verb::kSend && ++sent[step.peer]) {
            EXPECT_EQ(step.srcs[0].count, c.sends[plan.rank][step.peer]) << text_of(c);
          }
          if (step.verb == Verb::kRecv) ++received[step.peer];
        }
      }
      std::vector<int> once(world, 1);
      once[plan.rank] = 0;
      EXPECT_EQ(sent, once) << text_of(c);
      EXPECT_EQ(received, once) << text_of(c);
    }
  }
}

TEST(Direct, EveryRankStartsWithAnotherPeer) {
  Case c;
  c.problem.world = 5;
  c.problem.count = 100;
  const std::vector<Plan> plans = plans_of(c);
  for (int r = 0; r < 5; ++r) EXPECT_EQ(plans[r].channels[0].steps[0].peer, (r + 1) % 5);
}

// ---- sums at owners

Case fold_case(Collective what, int world, int64_t count) {
  Case c;
  c.problem.what = what;
  c.problem.world = world;
  c.problem.count = count;
  c.problem.segment_bytes = 1024;
  return c;
}

// Slices of N different sizes, one of them empty: what a rank sends is everyone else's slice and what others get.
TEST(OwnerFold, BytesFollowTheSlices) {
  const std::vector<Extent> slices = {{0, 10}, {10, 10}, {10, 400}, {400, 1000}};
  Problem problem = fold_case(Collective::kReduce, 4, 1000).problem;
  problem.root = 2;
  for (problem.rank = 0; problem.rank < 4; ++problem.rank) {
    const int64_t mine = slices[problem.rank].count();
    const Plan plan = fold_at_owners("test", problem, slices);
    EXPECT_EQ(plan.algorithm, "test");
    const int64_t result = problem.rank == problem.root ? 0 : mine;
    EXPECT_EQ(collective::totals(plan).bytes_sent, 4 * (1000 - mine + result)) << problem.rank;
  }
}

TEST(OwnerFold, ReduceSendsResultsToTheRootOnly) {
  for (int world = 2; world <= 9; ++world) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
      Case c = fold_case(Collective::kReduce, world, 100 * world);
      c.problem.dtype = dtype;
      c.problem.root = world - 1;
      const int64_t tensor = c.problem.count * size_of(dtype), slice = tensor / world;
      for (const Plan& plan : plans_of(c)) {
        const collective::PlanTotals sums = collective::totals(plan);
        const bool is_root = plan.rank == c.problem.root;
        EXPECT_EQ(sums.bytes_sent, tensor - slice + (is_root ? 0 : slice)) << text_of(c);
        EXPECT_EQ(sums.bytes_received, (world - 1) * slice * (is_root ? 2 : 1)) << text_of(c);
      }
    }
  }
}

// Peers x window x segment; a rank that passes its results on needs one window more.
TEST(OwnerFold, ScratchIsBoundedWhateverTheCount) {
  for (const int64_t count : {100'000, 1'000'000}) {
    EXPECT_EQ(plans_of(fold_case(Collective::kAllReduce, 4, count))[1].scratch_bytes, 3 * 4 * 1024) << count;
    EXPECT_EQ(plans_of(fold_case(Collective::kReduce, 4, count))[1].scratch_bytes, 4 * 4 * 1024) << count;
    EXPECT_EQ(plans_of(fold_case(Collective::kReduce, 4, count))[0].scratch_bytes, 3 * 4 * 1024) << count;
  }
}

// ---- sums over a wire type

constexpr WireType kEncodings[] = {WireType::kBf16, WireType::kFp16, WireType::kFp8, WireType::kInt8};

class EncodedFold : public ::testing::TestWithParam<WireType> {
 protected:
  Case with(Collective what, DType dtype, int world, int64_t count) {
    Case c;
    c.problem.what = what;
    c.problem.dtype = dtype;
    c.problem.world = world;
    c.problem.count = count;
    c.problem.wire = GetParam();
    c.problem.slot_bytes = 640;
    return c;
  }
};

INSTANTIATE_TEST_SUITE_P(Wires, EncodedFold, ::testing::ValuesIn(kEncodings),
                         [](const auto& test) { return std::string(name_of(test.param)); });

// Odd counts, parts of every size, in place and not, with links from a few bytes to plenty.
TEST_P(EncodedFold, EqualsTheSerialOracleOnEveryRank) {
  uint64_t seed = 0;
  for (const int world : {2, 3, 4, 7}) {
    for (const int64_t count : {0, 1, 255, 257, 1000, 4099}) {
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
        for (const Collective what : {Collective::kAllReduce, Collective::kReduceScatter}) {
          Case c = with(what, dtype, world, count);
          c.seed = ++seed;
          c.in_place = seed % 2;
          c.link_bytes = std::vector<size_t>{100, 1000, 1 << 16}[seed % 3];
          c.problem.op = seed / 2 % 2 ? ReduceOp::kAvg : ReduceOp::kSum;
          c.problem.segment_bytes = seed % 5 == 0 ? 64 : 2100;
          if (seed % 3 == 0) make_uneven(c);
          check(c);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Every block goes once to its owner and once from it, and no block is ever cut in two.
TEST_P(EncodedFold, SendsTheWireTypesBytesInTwoRounds) {
  for (const int world : {2, 3, 4, 7}) {
    for (const int64_t count : {1, 700, 4099, 256 * 28}) {
      const Case c = with(Collective::kAllReduce, DType::kF32, world, count);
      const int64_t tensor = encoded_bytes(GetParam(), count);
      int64_t sent = 0, received = 0;
      for (const Plan& plan : plans_of(c)) {
        const collective::PlanTotals sums = collective::totals(plan);
        sent += sums.bytes_sent;
        received += sums.bytes_received;
        if (count % (256 * world) != 0) continue;
        EXPECT_EQ(sums.bytes_sent, 2 * (world - 1) * tensor / world) << text_of(c);
      }
      EXPECT_EQ(sent, 2 * (world - 1) * tensor) << text_of(c);
      EXPECT_EQ(received, sent) << text_of(c);
      EXPECT_LE(rounds_of(plans_of(c)), 2);
    }
    const Case scatter = with(Collective::kReduceScatter, DType::kF32, world, 1000);
    for (const Plan& plan : plans_of(scatter)) {
      EXPECT_EQ(collective::totals(plan).bytes_sent, (world - 1) * encoded_bytes(GetParam(), 1000));
      EXPECT_EQ(collective::totals(plan).rounds, 1);
    }
  }
}

// |result - exact| <= every contribution's half a step, half a step of the result, and the fold's own rounding.
TEST_P(EncodedFold, ErrorsStayWithinTheSumOfHalfSteps) {
  using kernels::testing::half_step;
  for (const int world : {2, 3, 4}) {
    Case c = with(Collective::kAllReduce, DType::kF32, world, 1111);
    c.in_place = true;
    const std::vector<Plan> plans = plans_of(c);
    Simulator simulator(world, 1 << 16, 4096, 1);
    std::vector<Tensors> start, tensors;
    for (int r = 0; r < world; ++r) start.emplace_back(c, r);
    if (GetParam() == WireType::kFp16) {  // the sums of these would overflow
      for (Tensors& t : start) {
        for (int64_t i = 0; i < c.problem.count; ++i) {
          store(t.inputs[0].data(), i, DType::kF32, load(t.inputs[0].data(), i, DType::kF32) / 100);
        }
      }
    }
    tensors = start;
    for (int r = 0; r < world; ++r) simulator.add(r, tensors[r].job(plans[r]));
    ASSERT_EQ(simulator.run(), "");
    const auto largest = [&](const Bytes& tensor, int64_t i) {
      double most = 0;
      for (int64_t k = i / 256 * 256; k < std::min(i / 256 * 256 + 256, c.problem.count); ++k) {
        most = std::max(most, std::fabs(load(tensor.data(), k, DType::kF32)));
      }
      return most;
    };
    for (int64_t i = 0; i < c.problem.count; ++i) {
      double exact = 0, bound = 0, magnitudes = 0;
      for (const Tensors& t : start) {
        const double x = load(t.inputs[0].data(), i, DType::kF32);
        exact += x;
        magnitudes += std::fabs(x);
        bound += half_step(GetParam(), x, largest(t.inputs[0], i));
      }
      const Bytes& result = tensors[0].result(0);
      const double got = load(result.data(), i, DType::kF32);
      bound += (magnitudes + bound) * world * 0x1p-24;
      // The sum may have been in the binade above, where fp8's steps are twice as long.
      const int binades = GetParam() == WireType::kFp8 ? 2 : 1;
      bound += binades * half_step(GetParam(), std::fabs(exact) + bound, largest(result, i) * (1 + 0x1p-3));
      ASSERT_LE(std::fabs(got - exact), bound) << text_of(c) << " at " << i;
    }
  }
}

TEST_P(EncodedFold, OtherSumsTravelAsTheyAre) {
  const auto wire_of = [&](Collective what, DType dtype, ReduceOp op) {
    Case c = with(what, dtype, 3, 100);
    c.problem.op = op;
    return plans_of(c)[0].wire;
  };
  EXPECT_EQ(wire_of(Collective::kAllReduce, DType::kF32, ReduceOp::kPremulSum), GetParam());
  EXPECT_EQ(wire_of(Collective::kAllReduce, DType::kF32, ReduceOp::kMax), WireType::kFp32);
  EXPECT_EQ(wire_of(Collective::kAllReduce, DType::kI64, ReduceOp::kSum), WireType::kFp32);
  EXPECT_EQ(wire_of(Collective::kAllReduce, DType::kC64, ReduceOp::kSum), WireType::kFp32);
  EXPECT_EQ(wire_of(Collective::kReduce, DType::kF32, ReduceOp::kSum), WireType::kFp32);
  EXPECT_EQ(wire_of(Collective::kAllGather, DType::kF32, ReduceOp::kSum), WireType::kFp32);
  EXPECT_EQ(wire_of(Collective::kBroadcast, DType::kF32, ReduceOp::kSum), WireType::kFp32);
}

TEST(EncodedPlan, TheWireTypeIsPrintedWithItsSteps) {
  Case c;
  c.problem.world = 2;
  c.problem.count = 1024;
  c.problem.wire = WireType::kInt8;
  const std::string text = collective::to_text(plans_of(c)[0]);
  for (const char* part : {"float32 as int8", "encode", "decode", "scratch[0:520]e", "sends 1040 B"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
  }
}

// ---- parameter server

class ServerEverything : public ::testing::TestWithParam<Collective> {};

TEST_P(ServerEverything, EqualsTheSerialOracle) {
  check_everything(AlgorithmChoice::kServer, Order::kRank, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Collectives, ServerEverything,
                         ::testing::Values(Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast));

Case server_case(Collective what, int world) {
  Case c;
  c.algorithm = AlgorithmChoice::kServer;
  c.problem.what = what;
  c.problem.world = world;
  c.problem.root = world / 2;
  c.problem.count = 10'000;
  c.problem.segment_bytes = 1024;
  return c;
}

// 2(N-1)S pass the server, S each way everyone else.
TEST(Server, AllReducePassesEverythingThroughRankZero) {
  const int64_t tensor = 40'000;
  for (int world = 2; world <= 9; ++world) {
    for (const Plan& plan : plans_of(server_case(Collective::kAllReduce, world))) {
      const collective::PlanTotals sums = collective::totals(plan);
      const int64_t one_way = plan.rank == 0 ? (world - 1) * tensor : tensor;
      EXPECT_EQ(sums.bytes_sent, one_way) << world << " rank " << plan.rank;
      EXPECT_EQ(sums.bytes_received, one_way) << world << " rank " << plan.rank;
      EXPECT_EQ(sums.rounds, 2);
    }
  }
}

TEST(Server, RootedCollectivesGoOneWay) {
  const int64_t tensor = 40'000;
  for (int world = 2; world <= 9; ++world) {
    for (const Collective what : {Collective::kReduce, Collective::kBroadcast}) {
      const Case c = server_case(what, world);
      for (const Plan& plan : plans_of(c)) {
        const bool is_root = plan.rank == c.problem.root, sends = is_root == (what == Collective::kBroadcast);
        const int64_t peers = is_root ? world - 1 : 1;
        EXPECT_EQ(plan.algorithm, "server");
        EXPECT_EQ(collective::totals(plan).bytes_sent, sends ? peers * tensor : 0) << text_of(c);
        EXPECT_EQ(collective::totals(plan).bytes_received, sends ? 0 : peers * tensor) << text_of(c);
      }
    }
  }
}

TEST(Server, ScratchIsPeersTimesWindowTimesSegment) {
  const std::vector<Plan> plans = plans_of(server_case(Collective::kAllReduce, 4));
  EXPECT_EQ(plans[0].scratch_bytes, 3 * 4 * 1024);
  EXPECT_EQ(plans[1].scratch_bytes, 0);
}

TEST(Server, OtherCollectivesAreDirect) {
  for (const Collective what : {Collective::kAllGather, Collective::kReduceScatter, Collective::kBarrier,
                                Collective::kGather, Collective::kScatter, Collective::kAllToAll}) {
    EXPECT_EQ(plans_of(server_case(what, 4))[1].algorithm, "direct") << name_of(what);
  }
}

}  // namespace
}  // namespace ringdp::plan::testing
