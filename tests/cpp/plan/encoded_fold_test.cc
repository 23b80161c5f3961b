#include "plan/encoded_fold.h"

#include <gtest/gtest.h>

#include "harness.h"

namespace ringdp::plan::testing {
namespace {

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

}  // namespace
}  // namespace ringdp::plan::testing
