#include "collective/framed_link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "collective/far_ranks.h"
#include "long_tests.h"

namespace ringdp::collective {
namespace {

constexpr size_t kAhead = 1000;

// Both ends of a link on which so many bytes may be under way.
class Ends {
 public:
  explicit Ends(size_t room = SIZE_MAX, size_t ahead = kAhead)
      : far_{FarLink(now_, ways_[0], ways_[1], room), FarLink(now_, ways_[1], ways_[0], room)},
        ends{FramedLink(far_[0], 1, ahead), FramedLink(far_[1], 0, ahead)} {}

  // As many of these bytes as go at once.
  size_t send(uint64_t seq, const std::string& text) {
    size_t sent = 0;
    while (const size_t n = ends[0].try_send(seq, text.data() + sent, text.size() - sent)) sent += n;
    return sent;
  }
  // A unit of time later.
  std::string receive(uint64_t seq, size_t size = 100000) {
    ++now_;
    std::string text(size, '\0');
    size_t got = 0;
    while (got < size) {
      const size_t n = ends[1].try_recv(seq, text.data() + got, size - got);
      if (n == 0) break;
      got += n;
    }
    return text.substr(0, got);
  }
  // On the link to the second end, as a peer that keeps to no rule would send them.
  void inject(const Frame& frame, const std::string& text) {
    far_[0].try_send(&frame, sizeof frame);
    far_[0].try_send(text.data(), text.size());
  }

 private:
  int now_ = 0;
  Way ways_[2];
  FarLink far_[2];

 public:
  FramedLink ends[2];
};

TEST(FramedLink, EveryCollectiveHasItsOwnStream) {
  Ends pair;
  EXPECT_EQ(pair.send(1, "one"), 3u);
  EXPECT_EQ(pair.send(2, "two"), 3u);
  EXPECT_EQ(pair.send(1, " and more"), 9u);
  pair.ends[0].finish_sending(1);
  EXPECT_EQ(pair.send(3, "three"), 5u);
  EXPECT_EQ(pair.receive(1), "one and more") << "what lies in front for the second is kept";
  EXPECT_EQ(pair.receive(3), "three");
  EXPECT_EQ(pair.receive(2, 2), "tw");
  EXPECT_EQ(pair.receive(2), "o");
  EXPECT_EQ(pair.receive(2), "");
}

TEST(FramedLink, ALaterOneSendsOnlySoMuchAhead) {
  Ends pair;
  const std::string much(3 * kAhead, 'x');
  EXPECT_EQ(pair.send(2, much), kAhead);
  EXPECT_FALSE(pair.ends[0].may_send(2)) << "nothing to poll for";
  EXPECT_EQ(pair.send(3, "each has its own"), 16u);
  EXPECT_EQ(pair.send(1, much), much.size());
  pair.ends[0].finish_sending(1);
  EXPECT_TRUE(pair.ends[0].may_send(2));
  EXPECT_EQ(pair.send(2, much.substr(kAhead)), 2 * kAhead);
  EXPECT_EQ(pair.receive(1, much.size()), much);
  EXPECT_EQ(pair.receive(2, much.size()), much);
}

// Streams may end in any order; the turn passes over those that have.
TEST(FramedLink, TurnsPassInOrder) {
  Ends pair;
  pair.ends[0].finish_sending(2);
  pair.ends[0].finish_sending(2);
  EXPECT_EQ(pair.send(3, std::string(kAhead + 1, 'x')), kAhead);
  pair.ends[0].finish_sending(1);
  EXPECT_EQ(pair.send(3, "x"), 1u);
}

TEST(FramedLink, ALaterOneWaitsForBytesOfAnEarlierOne) {
  Ends pair;
  pair.send(1, "one");
  pair.send(2, "two");
  EXPECT_TRUE(pair.ends[1].may_receive(2));
  EXPECT_EQ(pair.receive(2), "");
  EXPECT_FALSE(pair.ends[1].may_receive(2)) << "the first collective takes them, nobody else";
  EXPECT_TRUE(pair.ends[1].may_receive(1));
  EXPECT_EQ(pair.receive(1), "one");
  EXPECT_EQ(pair.receive(2), "two");
}

// A link that reads ahead has nothing to poll for once a later collective has opened the frame of an earlier one.
TEST(FramedLink, TellsThatAFrameHasBegunToArrive) {
  Ends pair;
  EXPECT_EQ(pair.receive(1), "");
  EXPECT_FALSE(pair.ends[1].take_arrived());
  pair.send(1, "one");
  EXPECT_EQ(pair.receive(2), "");
  EXPECT_TRUE(pair.ends[1].take_arrived());
  EXPECT_FALSE(pair.ends[1].take_arrived()) << "it did already";
}

// Nobody waits for the end of a frame there.
TEST(FramedLink, ABrokenLinkIsMetByWhoeverNeedsIt) {
  class Broken final : public transport::Link {
    size_t try_send(const void*, size_t) override { throw Error(ErrorKind::kPeerLost, "broke", 1); }
    size_t try_recv(void*, size_t) override { return 0; }
    const char* kind() const override { return "broken"; }
  } link;
  FramedLink framed(link, 1, kAhead);
  EXPECT_THROW(framed.try_send(2, "two", 3), Error);
  EXPECT_FALSE(framed.is_sending(2));
  EXPECT_THROW(framed.try_send(1, "one", 3), Error);
}

// In the middle of a frame the link belongs to its collective.
TEST(FramedLink, AFrameIsNotInterrupted) {
  Ends pair(8);
  EXPECT_EQ(pair.send(2, "too long for the link"), 0u) << "a small frame is sent as a whole";
  EXPECT_TRUE(pair.ends[0].is_sending(2));
  EXPECT_EQ(pair.send(1, "one"), 0u);
  EXPECT_FALSE(pair.ends[0].may_send(1));
  std::string got;
  for (int turn = 0; pair.ends[0].is_sending(2) && turn < 100; ++turn) {
    got += pair.receive(2);
    pair.send(2, "too long for the link");
  }
  EXPECT_EQ(got + pair.receive(2), "too long for the link");
  EXPECT_TRUE(pair.ends[0].may_send(1));
}

TEST(FramedLink, CountsWhatFramesAdd) {
  Ends pair;
  pair.send(1, "one");
  pair.send(1, std::string(300 << 10, 'x'));
  EXPECT_EQ(pair.ends[0].take_frame_bytes(), 3 * sizeof(Frame)) << "the second in two frames of 256 KiB at most";
  EXPECT_EQ(pair.ends[0].take_frame_bytes(), 0u);
}

TEST(FramedLink, FramesThatNoPeerSendsAreRefused) {
  const auto error = [](Frame frame, const std::string& text, uint32_t flip = 0) -> std::string {
    Ends pair;
    try {
      frame.bytes ^= flip;
      pair.inject(frame, text);
      pair.receive(5);
    } catch (const Error& refusal) {
      EXPECT_EQ(refusal.culprit(), 0);
      return refusal.what();
    }
    return "";
  };
  const std::string much(kAhead, 'x');
  for (const auto& what : {error(make_frame(5, 0), ""), error(make_frame(5, 1 << 30), ""),
                           error(make_frame(5, kAhead), much, 1), error({}, "")}) {
    EXPECT_NE(what.find("rank 0 sent has changed on its way"), std::string::npos) << what;
  }
  EXPECT_NE(error(make_frame(6, kAhead + 1), much).find("more of collective #6 than it may while #5 runs"),
            std::string::npos);
  EXPECT_EQ(error(make_frame(6, kAhead), much), "");
  EXPECT_EQ(error(make_frame(12, 1), "x"), "");
  EXPECT_NE(error(make_frame(13, 1), "x").find("#13"), std::string::npos) << "so many are never in flight";
}

// Numbers are compared across the end of their 32 bits.
TEST(FramedLink, NumbersMayBeLarge) {
  Ends pair;
  const uint64_t seq = (uint64_t{1} << 32) - 1;
  pair.inject(make_frame(seq + 1, 3), "two");
  pair.inject(make_frame(seq, 3), "one");
  EXPECT_EQ(pair.receive(seq), "one");
  EXPECT_EQ(pair.receive(seq + 1), "two");
}

// Whatever is sent and received in whatever order, over links with little room: every stream arrives.
TEST(FramedLink, RandomStreamsArrive) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](size_t most) { return random() % most; };
    Ends pair(1 + below(9000), 1 + below(3000));
    constexpr uint64_t kStreams = 40;
    std::vector<std::string> texts(kStreams + 1), got(kStreams + 1);
    std::vector<size_t> sent(kStreams + 1);
    for (uint64_t seq = 1; seq <= kStreams; ++seq) {
      texts[seq].resize(below(20) == 0 ? 100000 : below(5000));
      for (char& one : texts[seq]) one = static_cast<char>(random());
    }
    uint64_t first = 1, reads = 1;
    for (int turn = 0; reads <= kStreams && turn < 1000000; ++turn) {
      for (uint64_t seq = first; seq < std::min(first + kMostInFlight, kStreams + 1); ++seq) {
        if (below(2) == 0) continue;
        const size_t wanted = std::min(texts[seq].size() - sent[seq], 1 + below(40000));
        const size_t n = pair.ends[0].is_sending(seq) ? texts[seq].size() - sent[seq] : wanted;
        if (n > 0) sent[seq] += pair.ends[0].try_send(seq, texts[seq].data() + sent[seq], n);
        if (sent[seq] == texts[seq].size()) pair.ends[0].finish_sending(seq);
      }
      while (first <= kStreams && sent[first] == texts[first].size()) ++first;
      // The receiver calls its collectives when it likes, and may be far behind.
      for (uint64_t seq = reads; seq < std::min(reads + 1 + below(kMostInFlight), kStreams + 1); ++seq) {
        got[seq] += pair.receive(seq, std::min(texts[seq].size() - got[seq].size(), 1 + below(40000)));
      }
      while (reads <= kStreams && got[reads].size() == texts[reads].size()) ++reads;
    }
    ASSERT_EQ(reads, kStreams + 1) << "seed " << seed << " hangs at stream " << reads;
    EXPECT_TRUE(got == texts) << "seed " << seed;
  }
}

// One of a row of collectives on one rank: rank r's elements are r + 1 + the number of the call.
struct Call {
  plan::Plan plan;
  std::vector<float> in;
  std::vector<std::vector<float>> outs;
  std::vector<float> expected;  // by output; negative: not written
  std::unique_ptr<Executor> executor;
};

Call call_of(AlgorithmChoice algorithm, Order order, const plan::Problem& problem, int number) {
  using plan::Collective;
  Call call{plan::make_plan(algorithm, order, problem), {}, {}, {}, nullptr};
  const int world = problem.world, mine = problem.rank + 1 + number;
  call.in.assign(problem.count, static_cast<float>(mine));
  call.outs.assign(world, std::vector<float>(problem.count, -1));
  call.expected.assign(world, -1);
  const auto sum = static_cast<float>(world * (world + 1) / 2 + world * number);
  const bool at_root = problem.rank == problem.root;
  const bool sums = problem.what == Collective::kAllReduce || problem.what == Collective::kReduceScatter;
  if (sums || (problem.what == Collective::kReduce && at_root)) call.expected[0] = sum;
  if (problem.what == Collective::kBroadcast && !at_root) {
    call.expected[0] = static_cast<float>(problem.root + 1 + number);
  }
  const bool gathers = problem.what == Collective::kAllGather || (problem.what == Collective::kGather && at_root);
  for (int r = 0; gathers && r < world; ++r) call.expected[r] = static_cast<float>(r + 1 + number);
  return call;
}

// All plans on links in one row, begun and driven in random order, over links with little room of which one is slow.
TEST(FramedLink, NoPlanWaitsForALaterOne) {
  using enum AlgorithmChoice;
  using plan::Collective;
  struct Kind {
    AlgorithmChoice algorithm;
    Order order;
    Collective what;
    WireType wire;
  };
  const auto [fp32, bf16] = std::pair{WireType::kFp32, WireType::kBf16};
  const Kind kinds[] = {{kDirect, Order::kRank, Collective::kAllReduce, fp32},
                        {kDirect, Order::kRank, Collective::kAllReduce, bf16},
                        {kDirect, Order::kRank, Collective::kReduce, fp32},
                        {kDirect, Order::kRank, Collective::kReduceScatter, fp32},
                        {kDirect, Order::kRank, Collective::kReduceScatter, bf16},
                        {kDirect, Order::kRank, Collective::kBroadcast, fp32},
                        {kDirect, Order::kRank, Collective::kGather, fp32},
                        {kDirect, Order::kRank, Collective::kAllGather, fp32},
                        {kRing, Order::kRank, Collective::kAllReduce, fp32},
                        {kRing, Order::kRotated, Collective::kAllReduce, fp32},
                        {kExchange, Order::kRank, Collective::kAllReduce, fp32},
                        {kTree, Order::kRank, Collective::kAllReduce, fp32},
                        {kServer, Order::kRank, Collective::kAllReduce, fp32},
                        {kHalving, Order::kTree, Collective::kAllReduce, fp32}};
  constexpr int kWorld = 4, kCalls = 40;
  for (unsigned seed = 0; seed < (once_will_do() ? 4u : 30u); ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](size_t most) { return random() % most; };
    int now = 0;
    std::vector<std::vector<Way>> ways(kWorld, std::vector<Way>(kWorld));
    std::vector<std::unique_ptr<FarLink>> links;
    std::vector<Fabric> fabrics(kWorld);
    std::vector<Workspace> workspaces(kWorld);
    std::vector<std::vector<Call>> calls(kWorld);
    std::vector<size_t> begun(kWorld), ended(kWorld);
    const size_t room = 300 + below(9000), slow = below(kWorld * kWorld);
    for (size_t r = 0; r < kWorld; ++r) {
      for (size_t peer = 0; peer < kWorld; ++peer) {
        links.push_back(std::make_unique<FarLink>(now, ways[r][peer], ways[peer][r], room));
        if (r * kWorld + peer == slow) links.back()->slow_down(500);
        fabrics[r].links.push_back(peer == r ? nullptr : links.back().get());
      }
      fabrics[r].frame_links(/*ahead=*/1 + seed * 100);
    }
    for (int number = 0; number < kCalls; ++number) {
      const Kind& kind = kinds[below(std::size(kinds))];
      plan::Problem problem;
      problem.what = kind.what;
      problem.wire = kind.wire;
      problem.world = kWorld;
      problem.root = static_cast<int>(below(kWorld));
      problem.count = static_cast<int64_t>(below(3000));
      problem.segment_bytes = 256;
      for (problem.rank = 0; problem.rank < kWorld; ++problem.rank) {
        calls[problem.rank].push_back(call_of(kind.algorithm, kind.order, problem, number));
      }
    }
    size_t left = kWorld * kCalls;
    for (int turn = 0; left > 0 && turn < 1000000; ++turn, ++now) {
      const auto r = below(kWorld);
      if (begun[r] < kCalls && begun[r] - ended[r] < kMostInFlight && below(3) > 0) {
        Call& next = calls[r][begun[r]++];
        Opening opening;
        opening.seq = begun[r];
        opening.check = [](int, const transport::Header&) {};
        Buffers buffers{std::vector<const void*>(kWorld, next.in.data()), {}};
        for (auto& out : next.outs) buffers.outputs.push_back(out.data());
        HeaderExchange headers(fabrics[r], static_cast<int>(r), kWorld, std::move(opening));
        next.executor =
            std::make_unique<Executor>(next.plan, std::move(buffers), fabrics[r], workspaces[r], std::move(headers));
      }
      for (size_t call = ended[r]; call < begun[r]; ++call) calls[r][call].executor->advance();
      for (; ended[r] < begun[r] && calls[r][ended[r]].executor->done(); --left) calls[r][ended[r]++].executor.reset();
    }
    ASSERT_EQ(left, 0u) << "seed " << seed << " hangs";
    for (size_t r = 0; r < kWorld; ++r) {
      for (const Call& call : calls[r]) {
        for (size_t i = 0; i < call.outs.size(); ++i) {
          const std::vector<float>& out = call.outs[i];
          EXPECT_TRUE(std::all_of(out.begin(), out.end(), [&](float x) { return x == call.expected[i]; }))
              << "seed " << seed << ": " << call.plan.algorithm << " " << plan::name_of(call.plan.what) << " on " << r;
        }
      }
    }
  }
}

}  // namespace
}  // namespace ringdp::collective
