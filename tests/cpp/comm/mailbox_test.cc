#include "comm/mailbox.h"

#include <gtest/gtest.h>

#include <deque>
#include <numeric>
#include <random>

#include "comm/meshes.h"
#include "comm/rank_threads.h"
#include "transport/thrown.h"

namespace ringdp::comm {
namespace {

constexpr Frame kOffer{FrameKind::kOffer, 0x0102030405060708, -5, DType::kBF16, int64_t{1} << 40};

void expect_survives(const Frame& frame) {
  const auto copy = decode(encode(frame));
  ASSERT_TRUE(copy);
  EXPECT_EQ(copy->kind, frame.kind);
  EXPECT_EQ(copy->id, frame.id);
  EXPECT_EQ(copy->tag, frame.tag);
  EXPECT_EQ(copy->dtype, frame.dtype);
  EXPECT_EQ(copy->count, frame.count);
}

TEST(Frame, SurvivesTheWire) {
  expect_survives(kOffer);
  expect_survives({FrameKind::kAccept, 1});
  expect_survives({FrameKind::kData, ~uint64_t{0}});
}

TEST(Frame, WhatCannotBeMeantIsRefused) {
  const auto changed = [](const auto& change) {
    Frame frame = kOffer;
    change(frame);
    return decode(encode(frame)).has_value();
  };
  EXPECT_TRUE(changed([](Frame&) {}));
  EXPECT_FALSE(changed([](Frame& f) { f.kind = static_cast<FrameKind>(0); }));
  EXPECT_FALSE(changed([](Frame& f) { f.kind = static_cast<FrameKind>(4); }));
  EXPECT_FALSE(changed([](Frame& f) { f.id = 0; }));
  EXPECT_FALSE(changed([](Frame& f) { f.count = -1; }));
  EXPECT_FALSE(changed([](Frame& f) { f.dtype = static_cast<DType>(kDTypeCount); }));
  EXPECT_FALSE(changed([](Frame& f) { f.kind = FrameKind::kAccept; })) << "an answer carries no description";
  EXPECT_FALSE(changed([](Frame& f) { f.kind = FrameKind::kData; }));
}

TEST(Frame, RandomBytesAreRefused) {
  std::mt19937_64 random(17);
  for (int round = 0; round < 20000; ++round) {
    FrameBytes bytes;
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    ASSERT_FALSE(decode(bytes)) << "round " << round;
  }
}

TEST(Frame, EveryBitCounts) {
  const FrameBytes good = encode(kOffer);
  for (size_t bit = 0; bit < 8 * kFrameBytes; ++bit) {
    FrameBytes bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_FALSE(decode(bad)) << "bit " << bit;
  }
}

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

// Mailboxes of all ranks of one group, advanced in turn by one thread.
class MailboxTest : public testing::TestWithParam<TransportChoice> {
 protected:
  static constexpr int kWorld = 3;
  using Bytes = std::vector<unsigned char>;

  MailboxTest() : group_(store_, kWorld, with(GetParam())) {
    for (const Mesh& mesh : group_.meshes) {
      std::vector<transport::Link*> links;
      for (const Peer& peer : mesh.peers) links.push_back(peer.messages.get());
      boxes_.emplace_back(mesh.rank, links);
    }
  }

  std::shared_ptr<Message> post(Direction direction, int rank, int peer, int32_t tag, Bytes& bytes) {
    MessageRequest request;
    request.peer = peer;
    request.tag = tag;
    request.count = static_cast<int64_t>(bytes.size());
    request.memory = bytes.data();
    auto message = std::make_shared<Message>(direction, request);
    boxes_[rank].post(message);
    return message;
  }
  auto send(int from, int to, int32_t tag, Bytes& bytes) { return post(Direction::kSend, from, to, tag, bytes); }
  auto receive(int at, int from, int32_t tag, Bytes& bytes) { return post(Direction::kReceive, at, from, tag, bytes); }

  // Messages of all ranks in the order they finished, until there are `count`.
  Mailbox::Messages drive(size_t count) {
    const Deadline limit = Deadline::after(std::chrono::seconds(60));  // a guard against hanging
    Mailbox::Messages finished;
    while (finished.size() < count && !limit.passed()) {
      for (Mailbox& box : boxes_) {
        box.advance();
        for (auto& message : box.take_finished()) finished.push_back(std::move(message));
      }
    }
    EXPECT_EQ(finished.size(), count);
    return finished;
  }

  // What mailbox 0 throws when rank 1 writes `frame` while a receive from it waits.
  Error thrown_by(const FrameBytes& frame) {
    Bytes memory(8);
    receive(0, 1, 1, memory);
    EXPECT_EQ(group_.meshes[1].peers[0].messages->try_send(frame.data(), frame.size()), frame.size());
    const Deadline limit = Deadline::after(std::chrono::seconds(60));
    try {
      while (!limit.passed()) boxes_[0].advance();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      return error;
    }
    return Error(ErrorKind::kAborted, "");
  }

  static Bytes pattern(size_t size, int seed) {
    Bytes bytes(size);
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<unsigned char>(seed * 37 + i % 251);
    return bytes;
  }

  MemoryStore store_;
  Meshes group_;
  std::deque<Mailbox> boxes_;
};

INSTANTIATE_TEST_SUITE_P(Transports, MailboxTest, testing::Values(TransportChoice::kShm, TransportChoice::kTcp),
                         [](const auto& p) { return p.param == TransportChoice::kShm ? "shm" : "tcp"; });

TEST_P(MailboxTest, EveryPairExchangesBothWaysAtOnceInAnyOrder) {
  const std::vector<size_t> sizes = {0, 1, 4095, 100'000};  // links hold 4096 bytes
  std::deque<Bytes> memory;
  std::vector<std::pair<Bytes*, Bytes>> expected;
  for (int rank = 0; rank < kWorld; ++rank) {
    for (int peer = 0; peer < kWorld; ++peer) {
      for (size_t i = 0; i < sizes.size() && peer != rank; ++i) {
        const auto tag = static_cast<int32_t>(i);
        send(rank, peer, tag, memory.emplace_back(pattern(sizes[i], rank * 16 + peer * 4 + tag)));
        const auto back = static_cast<int32_t>(sizes.size() - 1 - i);
        Bytes& in = memory.emplace_back(sizes[back]);
        receive(rank, peer, back, in);
        expected.emplace_back(&in, pattern(sizes[back], peer * 16 + rank * 4 + back));
      }
    }
  }
  drive(2 * kWorld * (kWorld - 1) * sizes.size());
  for (const auto& [in, bytes] : expected) EXPECT_EQ(*in, bytes);
  for (Mailbox& box : boxes_) {
    const trace::Totals totals = box.take_totals();
    const size_t peers = kWorld - 1, payload = std::accumulate(sizes.begin(), sizes.end(), size_t{0});
    EXPECT_EQ(totals.wire_bytes_sent, peers * payload);
    EXPECT_EQ(totals.wire_bytes_received, peers * payload);
    EXPECT_EQ(totals.header_bytes_sent, peers * sizes.size() * 3 * kFrameBytes) << "OFFER, DATA and the peer's ACCEPT";
    EXPECT_EQ(totals.collectives, 0u);
    EXPECT_EQ(box.take_totals().wire_bytes_sent, 0u);
  }
}

TEST_P(MailboxTest, NothingMovesBeforeAReceiveIsPosted) {
  Bytes out = pattern(1000, 1), in(1000);
  const auto sent = send(0, 1, 5, out);
  Bytes other = pattern(10, 2), landed(10);
  send(1, 0, 9, other);
  receive(0, 1, 9, landed);
  drive(2);
  EXPECT_EQ(boxes_[0].unfinished(), Mailbox::Messages{sent});
  EXPECT_EQ(boxes_[0].take_totals().wire_bytes_sent, 0u);
  EXPECT_EQ(boxes_[1].waiting_offer(0), "; rank 0 offers uint8 x 1000 with tag 5, which waits for a receive here");
  receive(1, kAnySource, 5, in);
  drive(2);
  EXPECT_EQ(in, out);
}

TEST_P(MailboxTest, AnySourceNamesItsPartner) {
  Bytes from_1 = pattern(50, 1), from_2 = pattern(50, 2), first(50), second(50);
  const auto a = receive(0, kAnySource, 3, first), b = receive(0, kAnySource, 3, second);
  send(1, 0, 3, from_1);
  send(2, 0, 3, from_2);
  drive(4);
  EXPECT_EQ(a->partner() + b->partner(), 3);
  EXPECT_EQ(first, a->partner() == 1 ? from_1 : from_2);
  EXPECT_EQ(second, b->partner() == 1 ? from_1 : from_2);
}

TEST_P(MailboxTest, FramesThatBreakTheProtocolAreRefused) {
  const Error garbage = thrown_by(FrameBytes{});
  EXPECT_EQ(garbage.kind(), ErrorKind::kInternal);
  EXPECT_EQ(garbage.culprit(), 1);
  expect_message(garbage, {"rank 1", "no frame"});
}

TEST_P(MailboxTest, AnswersToNothingAreRefused) {
  const Error accepted = thrown_by(encode({FrameKind::kAccept, 1}));
  EXPECT_EQ(accepted.kind(), ErrorKind::kInternal);
  expect_message(accepted, {"rank 1", "accepted message 1"});
}

TEST_P(MailboxTest, PayloadThatWasNotAcceptedIsRefused) {
  const Error sent = thrown_by(encode({FrameKind::kData, 1}));
  EXPECT_EQ(sent.kind(), ErrorKind::kInternal);
  expect_message(sent, {"rank 1", "sent message 1", "not accepted"});
}

TEST_P(MailboxTest, OffersOutOfOrderAreRefused) {
  const Error skipped = thrown_by(encode({FrameKind::kOffer, 2, 0, DType::kU8, 8}));
  EXPECT_EQ(skipped.kind(), ErrorKind::kInternal);
  expect_message(skipped, {"rank 1", "message 2 in place of 1"});
}

TEST_P(MailboxTest, AMessageIsStrandedOnceItsPeerLeftAndHasBeenQuiet) {
  Bytes in(10), out = pattern(10, 1), late = pattern(10, 2), more(10);
  const auto left_at = Deadline::Clock::now();
  const auto waiting = receive(0, 1, 5, in);
  EXPECT_EQ(boxes_[0].stranded(left_at + std::chrono::hours(1)), nullptr) << "nobody has left";
  boxes_[0].peer_left(2, left_at);
  EXPECT_EQ(boxes_[0].stranded(left_at), nullptr) << "another rank has left";
  boxes_[0].peer_left(1, left_at);
  EXPECT_EQ(boxes_[0].stranded(left_at - std::chrono::nanoseconds(1)), nullptr);
  EXPECT_EQ(boxes_[0].stranded(left_at), waiting.get());
  // Bytes that were under way begin the quiet time anew.
  receive(0, 1, 6, more);
  send(1, 0, 6, late);
  drive(2);
  EXPECT_EQ(more, late);
  EXPECT_EQ(boxes_[0].stranded(left_at), nullptr);
  EXPECT_EQ(boxes_[0].stranded(Deadline::Clock::now()), waiting.get());
}

TEST_P(MailboxTest, AnySourceIsStrandedOnlyWhenAllHaveLeft) {
  Bytes in(10);
  const auto waiting = receive(0, kAnySource, 5, in);
  const auto now = Deadline::Clock::now();
  boxes_[0].peer_left(1, now);
  EXPECT_EQ(boxes_[0].stranded(now), nullptr);
  boxes_[0].peer_left(2, now);
  EXPECT_EQ(boxes_[0].stranded(now), waiting.get());
}

TEST_P(MailboxTest, AbandoningReturnsWhatIsUnfinishedInOrder) {
  Bytes a(1), b(2), c(3);
  const Mailbox::Messages posted = {send(0, 1, 0, a), receive(0, kAnySource, 1, b), send(0, 2, 2, c)};
  EXPECT_EQ(boxes_[0].abandon(), posted);
  EXPECT_TRUE(boxes_[0].unfinished().empty());
  EXPECT_FALSE(boxes_[0].advance());
}

TEST(MailboxOverTcp, ABrokenLinkStrandsItsMessagesAndIsPolledNoMore) {
  MemoryStore store;
  Meshes group(store, 2, with(TransportChoice::kTcp));
  Mailbox box(0, {nullptr, group.meshes[0].peers[1].messages.get()});
  MessageRequest request;
  request.peer = 1;
  const auto waiting = std::make_shared<Message>(Direction::kReceive, request);
  box.post(waiting);
  std::vector<pollfd> polls;
  box.add_polls(polls);
  ASSERT_EQ(polls.size(), 1u);
  EXPECT_EQ(polls[0].events, POLLIN);
  group.meshes[1].peers[0].messages.reset();
  const Deadline limit = Deadline::after(std::chrono::seconds(60));
  while (!box.link_error(1) && !limit.passed()) box.advance();
  ASSERT_TRUE(box.link_error(1));
  EXPECT_EQ(box.link_error(1)->kind(), ErrorKind::kPeerLost);
  EXPECT_EQ(box.stranded(Deadline::Clock::now()), waiting.get());
  polls.clear();
  box.add_polls(polls);
  EXPECT_TRUE(polls.empty());
}

}  // namespace
}  // namespace ringdp::comm
