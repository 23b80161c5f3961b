#include "comm/message.h"

#include <gtest/gtest.h>

namespace ringdp::comm {
namespace {

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
