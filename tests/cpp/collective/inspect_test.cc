#include "collective/inspect.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "plan/builder.h"
#include "plan/catalog.h"

namespace ringdp::collective {
namespace {

using plan::Builder;
using plan::Plan;
using plan::Problem;

// A recursive-descent reader that accepts JSON's grammar and nothing else.
class JsonReader {
 public:
  explicit JsonReader(const std::string& text) : text_(text) {}
  bool valid() { return value() && at_ == text_.size(); }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void spaces() {
    while (peek() == ' ' || peek() == '\n') ++at_;
  }
  bool eat(char c) {
    spaces();
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  bool word(const std::string& w) {
    if (text_.compare(at_, w.size(), w) != 0) return false;
    at_ += w.size();
    return true;
  }
  bool string() {
    if (!eat('"')) return false;
    while (peek() != '"') {
      if (static_cast<unsigned char>(peek()) < 0x20) return false;
      if (peek() == '\\' && !escape()) return false;
      ++at_;
    }
    return eat('"');
  }
  bool escape() {  // leaves at_ on its last character
    ++at_;
    if (peek() != 'u') return std::string("\"\\/bfnrt").find(peek()) != std::string::npos;
    for (int i = 0; i < 4; ++i) {
      ++at_;
      if (!std::isxdigit(static_cast<unsigned char>(peek()))) return false;
    }
    return true;
  }
  bool number() {
    if (peek() == '-') ++at_;
    const size_t start = at_;
    while (std::isdigit(static_cast<unsigned char>(peek()))) ++at_;
    return at_ > start;
  }
  bool members(char close, bool keyed) {
    if (eat(close)) return true;
    do {
      if (keyed && (!string() || !eat(':'))) return false;
      if (!value()) return false;
    } while (eat(','));
    return eat(close);
  }
  bool value() {
    spaces();
    if (eat('{')) return members('}', true);
    if (eat('[')) return members(']', false);
    if (peek() == '"') return string();
    return word("true") || word("false") || number();
  }

  const std::string& text_;
  size_t at_ = 0;
};

Problem example() {
  Problem problem;
  problem.world = 4;
  problem.rank = 1;
  problem.count = 10;
  problem.dtype = DType::kBF16;
  return problem;
}

TEST(Recorder, TotalsAreTheSumsOfTheSteps) {
  Builder builder("test", example());
  const int send = builder.add_send_channel(2), recv = builder.add_recv_channel(0), fold = builder.add_channel("fold");
  const plan::Ref wide = Builder::scratch(0, plan::Form::kWide, 3);
  builder.send(send, 2, 4, builder.input(0, {0, 5}));
  builder.send(send, 2, 2, wide);
  builder.recv(recv, 0, 6, builder.output(0, {0, 7}));
  builder.fold(fold, {wide, builder.input(0, {0, 3})}, {builder.output(0, {0, 3}), wide}, true);
  builder.copy(fold, builder.input(0, {0, 10}), builder.output(0, {0, 10}));
  builder.arrive(fold);
  const PlanTotals sums = totals(builder.finish());
  EXPECT_EQ(sums.steps, 6);
  EXPECT_EQ(sums.sends, 2);
  EXPECT_EQ(sums.rounds, 7);
  EXPECT_EQ(sums.bytes_sent, 5 * 2 + 3 * 4);
  EXPECT_EQ(sums.bytes_received, 7 * 2);
  EXPECT_EQ(sums.memory_read, 3 * 4 + 3 * 2 + 10 * 2);
  EXPECT_EQ(sums.memory_written, 3 * 2 + 3 * 4 + 10 * 2);
}

TEST(Recorder, AnEmptyPlanHasNoRounds) {
  const PlanTotals sums = totals(Plan{});
  EXPECT_EQ(sums.steps, 0);
  EXPECT_EQ(sums.rounds, 0);
}

TEST(Recorder, TextHasARowPerStepAndSaysWhatItWaitsFor) {
  const Plan plan = plan::make_plan(AlgorithmChoice::kRing, Order::kRank, example());
  const std::string text = to_text(plan);
  const auto lines = std::count(text.begin(), text.end(), '\n');
  EXPECT_EQ(lines, 1 + static_cast<long>(plan.channels.size()) + totals(plan).steps) << text;
  for (const char* part : {"ring all_reduce SUM bfloat16, rank 1 of 4", "send>2", "recv<0", "round 0", "peer 2",
                           "scratch[0:20] + input0[0:20] -> scratch", "]w", "after recv<0#1"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in\n" << text;
  }
}

TEST(Recorder, AnnouncedStepsSaySo) {
  Builder builder("test", example());
  builder.send_announced(builder.add_send_channel(2), 2, 0, builder.input(2, {0, 0}));
  builder.send(0, 2, 0, builder.input(0, {0, 5}));
  const Plan plan = builder.finish();
  const std::string text = to_text(plan), json = to_json(plan);
  EXPECT_NE(text.find("input2[0:0] (announced)\n"), std::string::npos) << text;
  EXPECT_NE(text.find("input0[0:10]\n"), std::string::npos) << text;
  EXPECT_NE(json.find("\"announce\": true"), json.npos) << json;
  EXPECT_NE(json.find("\"announce\": false"), json.npos) << json;
}

TEST(Recorder, TextLeavesOutChannelsWithoutSteps) {
  Problem problem = example();
  problem.what = plan::Collective::kBarrier;
  const std::string text = to_text(plan::make_plan(AlgorithmChoice::kDirect, Order::kRank, problem));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
}

TEST(Recorder, JsonIsValidForEveryAlgorithm) {
  for (const AlgorithmChoice algorithm :
       {AlgorithmChoice::kArena, AlgorithmChoice::kDirect, AlgorithmChoice::kExchange, AlgorithmChoice::kRing,
        AlgorithmChoice::kHierarchy, AlgorithmChoice::kTree, AlgorithmChoice::kServer}) {
    for (int what = 0; what < plan::kCollectiveCount; ++what) {
      Problem problem = example();
      problem.hosts = {0, 3};
      problem.what = static_cast<plan::Collective>(what);
      const std::string json = to_json(plan::make_plan(algorithm, Order::kRotated, problem));
      EXPECT_TRUE(JsonReader(json).valid()) << json;
    }
  }
}

TEST(Recorder, JsonEscapesNames) {
  Builder builder("quote \" slash \\ newline \n end", example());
  builder.add_channel("tab\t");
  const std::string json = to_json(builder.finish());
  EXPECT_TRUE(JsonReader(json).valid()) << json;
  EXPECT_NE(json.find(R"(quote \" slash \\ newline \u000a end)"), std::string::npos) << json;
  EXPECT_NE(json.find(R"(tab\u0009)"), std::string::npos) << json;
}

TEST(Recorder, TheJsonReaderOfThisTestRefusesBadJson) {
  for (const char* bad : {"{\"a\": 1,}", "[1 2]", "{\"a\" 1}", "\"\n\"", "\"\\x\"", "[1]]", ""}) {
    EXPECT_FALSE(JsonReader(bad).valid()) << bad;
  }
}

std::vector<std::vector<float>> tens(int ranks, int elements) {
  std::vector<std::vector<float>> inputs(ranks, std::vector<float>(elements));
  for (int r = 0; r < ranks; ++r) {
    for (int c = 0; c < elements; ++c) inputs[r][c] = static_cast<float>((r + 1) * 10 + c);
  }
  return inputs;
}

// The textbook's own arithmetic: after round s rank r holds the sum over ranks r-s-1..r of element (r-s-1) mod N.
TEST(Walkthrough, RotatedRingFollowsTheTextbookRoundByRound) {
  constexpr int kRanks = 4;
  const auto inputs = tens(kRanks, kRanks);
  const Walkthrough walk = walk_ring(inputs, Order::kRotated);
  int sums = 0;
  for (const RingEvent& e : walk.events) {
    if (e.kind == RingEvent::Kind::kCopy) continue;
    ++sums;
    const int chunk = ((e.rank - e.round - 1) % kRanks + kRanks) % kRanks;
    float expected = 0;
    for (int back = 0; back <= e.round + 1; ++back) expected += inputs[(e.rank - back + kRanks) % kRanks][chunk];
    EXPECT_EQ(e.begin, chunk);
    EXPECT_EQ(e.values, std::vector<float>{expected}) << "rank " << e.rank << " round " << e.round;
    if (e.kind == RingEvent::Kind::kFinalSum) {
      EXPECT_EQ(e.begin, (e.rank + 1) % kRanks);  // erratum E4
    }
  }
  EXPECT_EQ(sums, kRanks * (kRanks - 1));
  for (const auto& result : walk.results) EXPECT_EQ(result, (std::vector<float>{100, 104, 108, 112}));
  for (const auto& t : walk.totals) {
    EXPECT_EQ(t.rounds, 2u * (kRanks - 1));
    EXPECT_EQ(t.wire_bytes_sent, 24u);
  }
}

TEST(Walkthrough, BothOrdersGiveTheSumForAnySize) {
  for (const Order order : {Order::kRank, Order::kRotated}) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      for (int elements : {0, 1, ranks - 1, ranks + 1, 100}) {
        const auto inputs = tens(ranks, elements);
        const Walkthrough walk = walk_ring(inputs, order);
        for (const auto& result : walk.results) {
          for (int c = 0; c < elements; ++c) ASSERT_EQ(result[c], ranks * (ranks + 1) / 2 * 10 + ranks * c);
        }
      }
    }
  }
}

TEST(Walkthrough, RefusesUnequalInputs) {
  EXPECT_THROW(walk_ring({{1, 2}, {1}}, Order::kRank), Error);
  EXPECT_THROW(walk_ring({}, Order::kRank), Error);
}

}  // namespace

}  // namespace ringdp::collective
