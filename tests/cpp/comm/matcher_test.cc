#include "comm/matcher.h"

#include <gtest/gtest.h>

#include <deque>

#include "comm/rank_threads.h"
#include "transport/thrown.h"

namespace ringdp::comm {
namespace {

constexpr int kRanks = 4;

class MatcherTest : public testing::Test {
 protected:
  Message& receive(int source, int32_t tag, DType dtype = DType::kF32, int64_t count = 4) {
    MessageRequest request;
    request.peer = source;
    request.tag = tag;
    request.dtype = dtype;
    request.count = count;
    return messages_.emplace_back(Direction::kReceive, request);
  }
  static Offer offer(int from, uint64_t id, int32_t tag) {
    return {from, {FrameKind::kOffer, id, tag, DType::kF32, 4}};
  }

  // The id of the offer that a new receive takes; 0: none.
  uint64_t post(int source, int32_t tag) {
    const auto taken = matcher_.post(receive(source, tag));
    return taken ? taken->frame.id : 0;
  }

  std::deque<Message> messages_;
  Matcher matcher_{0, kRanks};
};

TEST_F(MatcherTest, OffersOfOneSourceAndTagGoInOrder) {
  for (uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(matcher_.offer(offer(1, id, 7)), nullptr);
  EXPECT_EQ(matcher_.offer(offer(1, 4, 8)), nullptr);
  EXPECT_EQ(post(1, 8), 4u);
  for (uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(post(1, 7), id);
  EXPECT_EQ(post(1, 7), 0u) << "all are taken";
}

TEST_F(MatcherTest, ReceivesOfOneSourceAndTagGoInOrder) {
  Message& first = receive(1, 7);
  Message& other_tag = receive(1, 8);
  Message& other_source = receive(2, 7);
  Message& second = receive(1, 7);
  for (Message* each : {&first, &other_tag, &other_source, &second}) EXPECT_FALSE(matcher_.post(*each));
  EXPECT_EQ(matcher_.offer(offer(1, 1, 7)), &first);
  EXPECT_EQ(matcher_.offer(offer(1, 2, 7)), &second);
  EXPECT_EQ(matcher_.offer(offer(2, 1, 7)), &other_source);
  EXPECT_EQ(matcher_.offer(offer(1, 3, 8)), &other_tag);
  EXPECT_EQ(matcher_.offer(offer(3, 1, 7)), nullptr);
}

TEST_F(MatcherTest, AnySourceTakesTheOldestOfAllAndGivesWayToOlderReceives) {
  EXPECT_EQ(matcher_.offer(offer(3, 1, 7)), nullptr);
  EXPECT_EQ(matcher_.offer(offer(1, 1, 7)), nullptr);
  const auto taken = matcher_.post(receive(kAnySource, 7));
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->from, 3);
  EXPECT_FALSE(matcher_.awaits_any_source());
  Message& named = receive(2, 7);
  Message& any = receive(kAnySource, 7);
  EXPECT_FALSE(matcher_.post(named));
  EXPECT_EQ(post(1, 7), 1u);
  EXPECT_FALSE(matcher_.post(any));
  EXPECT_TRUE(matcher_.awaits_any_source());
  EXPECT_EQ(matcher_.offer(offer(2, 1, 7)), &named);
  EXPECT_EQ(matcher_.offer(offer(2, 2, 7)), &any);
  EXPECT_FALSE(matcher_.awaits_any_source());
}

TEST_F(MatcherTest, DifferencesNameBothCallsWhicheverCameFirst) {
  const auto check = [&](const Error& error, const char* differing) {
    EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
    EXPECT_EQ(error.culprit(), 1);
    expect_message(error, {differing, "rank 1 called send(float32 x 4 to rank 0, tag 7)", "rank 0 called recv("});
  };
  matcher_.offer(offer(1, 1, 7));
  check(transport::thrown([&] { matcher_.post(receive(1, 7, DType::kF32, 5)); }), "(element count)");
  matcher_.post(receive(kAnySource, 9, DType::kI32, 4));
  const Error late = transport::thrown([&] { matcher_.offer(offer(2, 1, 9)); });
  EXPECT_EQ(late.kind(), ErrorKind::kMismatch);
  expect_message(late, {"(dtype)", "rank 2 called send(", "recv(int32 x 4 from any rank, tag 9)"});
}

TEST_F(MatcherTest, OffersBeyondTheLimitAreRefusedPerSource) {
  for (uint64_t id = 1; id <= Matcher::kMostOffers; ++id) ASSERT_EQ(matcher_.offer(offer(1, id, 7)), nullptr);
  EXPECT_EQ(matcher_.offer(offer(2, 1, 7)), nullptr);
  const Error error = transport::thrown([&] { matcher_.offer(offer(1, Matcher::kMostOffers + 1, 7)); });
  EXPECT_EQ(error.kind(), ErrorKind::kInternal);
  expect_message(error, {"rank 1", std::to_string(Matcher::kMostOffers), "tag 7"});
}

TEST_F(MatcherTest, ATakenOfferMakesRoom) {
  for (uint64_t id = 1; id <= Matcher::kMostOffers; ++id) matcher_.offer(offer(1, id, 7));
  EXPECT_EQ(post(1, 7), 1u);
  EXPECT_EQ(matcher_.offer(offer(1, Matcher::kMostOffers + 1, 7)), nullptr);
}

TEST_F(MatcherTest, NamesAnOfferThatWaits) {
  EXPECT_EQ(matcher_.waiting_offer(kAnySource), "");
  matcher_.offer(offer(2, 1, 5));
  EXPECT_EQ(matcher_.waiting_offer(1), "");
  const std::string text = "; rank 2 offers float32 x 4 with tag 5, which waits for a receive here";
  EXPECT_EQ(matcher_.waiting_offer(2), text);
  EXPECT_EQ(matcher_.waiting_offer(kAnySource), text);
}

}  // namespace
}  // namespace ringdp::comm
