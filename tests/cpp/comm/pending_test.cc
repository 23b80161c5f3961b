// Work that is submitted before it may begin keeps its place in the order, up to its deadline; and descriptions of
// work.
#include "comm/pending.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "comm/fleet.h"

namespace ringdp::comm {
namespace {

const auto kShort = std::chrono::milliseconds(20);

TEST(Pending, CollectivesBeginWhenTheirInputsAreThereAndInOrder) {
  expect_no_errors(run_fleet(2, Settings{}, [](int rank, Group& group, Runtime& runtime) {
    std::vector<float> late(100, -1.0f), early(100, 1.0f);
    std::atomic<bool> here{false};
    Request request = all_reduce(late);
    request.ready = [&] { return here.load(); };
    const auto first = group.submit(std::move(request)), second = group.submit(all_reduce(early));
    EXPECT_FALSE(group.wait(*second, Deadline::after(kShort)));
    std::fill(late.begin(), late.end(), static_cast<float>(rank + 1));
    here = true;
    runtime.engine.kick();
    for (const auto& op : {first, second}) ASSERT_TRUE(group.wait(*op, Deadline::after(kLong)));
    EXPECT_EQ(late, std::vector<float>(100, 3.0f));
    EXPECT_EQ(early, std::vector<float>(100, 2.0f));
  }));
}

TEST(Pending, SendsKeepTheirOrderAndReceivesPassThem) {
  expect_no_errors(run_fleet(2, Settings{}, [](int rank, Group& group, Runtime& runtime) {
    std::vector<float> late(10), early(10, 2.0f), back(10, -1.0f);
    if (rank == 1) {
      std::vector<float> answer(10, 7.0f);
      ASSERT_TRUE(group.wait(*group.send(message(answer, 0)), Deadline::after(kLong)));
      for (const float wanted : {1.0f, 2.0f}) {
        ASSERT_TRUE(group.wait(*group.recv(message(back, 0)), Deadline::after(kLong)));
        EXPECT_EQ(back, std::vector<float>(10, wanted));
      }
      return;
    }
    std::atomic<bool> here{false};
    MessageRequest request = message(late, 1);
    request.ready = [&] { return here.load(); };
    const auto first = group.send(std::move(request)), second = group.send(message(early, 1));
    ASSERT_TRUE(group.wait(*group.recv(message(back, 1)), Deadline::after(kLong)));
    EXPECT_EQ(back, std::vector<float>(10, 7.0f));
    EXPECT_FALSE(second->done());
    std::fill(late.begin(), late.end(), 1.0f);
    here = true;
    runtime.engine.kick();
    for (const auto& send : {first, second}) ASSERT_TRUE(group.wait(*send, Deadline::after(kLong)));
  }));
}

TEST(Pending, WhatNeverBeginsEndsAtItsDeadlineAndNamesThisRank) {
  for (const bool is_message : {false, true}) {
    std::string error;
    run_fleet(2, Settings{}, [&](int rank, Group& group, Runtime&) {
      std::vector<float> memory(10, 1.0f);
      if (rank == 1) {
        while (!group.error()) std::this_thread::yield();
        return;
      }
      const auto never = [] { return false; };
      try {
        if (is_message) {
          MessageRequest request = message(memory, 1);
          request.ready = never;
          request.deadline = Deadline::after(kShort);
          group.wait(*group.send(std::move(request)), Deadline::after(kLong));
        } else {
          Request request = all_reduce(memory);
          request.ready = never;
          request.deadline = Deadline::after(kShort);
          group.wait(*group.submit(std::move(request)), Deadline::after(kLong));
        }
      } catch (const Error& thrown) {
        error = thrown.what();
        EXPECT_EQ(thrown.kind(), ErrorKind::kTimeout);
        EXPECT_EQ(thrown.culprit(), 0);
      }
    });
    EXPECT_NE(error.find("the device of this rank"), std::string::npos) << error;
  }
}

MessageRequest request(int peer, int32_t tag, DType dtype, int64_t count) {
  MessageRequest request;
  request.peer = peer;
  request.tag = tag;
  request.dtype = dtype;
  request.count = count;
  return request;
}

TEST(Message, DescribesTheCall) {
  EXPECT_EQ(Message(Direction::kSend, request(1, 7, DType::kF32, 4)).describe(), "send(float32 x 4 to rank 1, tag 7)");
  EXPECT_EQ(Message(Direction::kReceive, request(0, -3, DType::kI64, 0)).describe(),
            "recv(int64 x 0 from rank 0, tag -3)");
  EXPECT_EQ(Message(Direction::kReceive, request(kAnySource, 0, DType::kBool, 1)).describe(),
            "recv(bool x 1 from any rank, tag 0)");
}

TEST(Message, SaysWhatItsPartnerHasNotDone) {
  const Message send(Direction::kSend, request(1, 7, DType::kF32, 4));
  EXPECT_EQ(send.waits_for(), "has not posted a matching receive (tag 7)");
  EXPECT_EQ(send.partner(), 1);
  const Message receive(Direction::kReceive, request(kAnySource, 8, DType::kF32, 4));
  EXPECT_EQ(receive.waits_for(), "has not posted a matching send (tag 8)");
  EXPECT_EQ(receive.partner(), kAnySource);
}

TEST(Message, ItsBytesFollowFromCountAndDtype) {
  for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
    const Message message(Direction::kSend, request(1, 0, static_cast<DType>(dtype), 5));
    EXPECT_EQ(message.bytes(), 5u * static_cast<size_t>(size_of(static_cast<DType>(dtype))));
    EXPECT_FALSE(message.done());
  }
}

}  // namespace
}  // namespace ringdp::comm
