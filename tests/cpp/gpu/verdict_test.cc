// What ranks say after mapping is understood alike by all; what is no verdict reaches nobody.
#include "gpu/verdict.h"

#include <gtest/gtest.h>

namespace ringdp::gpu {
namespace {

TEST(Verdict, WhomEachReachesAndTheFirstFailureAreKnown) {
  char memory = 0;
  const Verdict good = verdict_on({&memory, &memory, &memory}, "");
  const Verdict bad = verdict_on({&memory, nullptr, &memory}, "memory of rank 1: refused");
  const Verdicts all = verdicts_from({to_bytes(good), to_bytes(bad), to_bytes(bad)});
  EXPECT_EQ(all.reached, (std::vector<uint32_t>{7, 5, 5}));
  EXPECT_EQ(all.first_failure, "rank 1: memory of rank 1: refused");
}

TEST(Verdict, ALongSentenceIsCut) {
  const Verdicts all = verdicts_from({to_bytes(verdict_on({nullptr}, std::string(1000, 'x')))});
  EXPECT_EQ(all.first_failure, "rank 0: " + std::string(251, 'x'));
}

TEST(Verdict, OtherBytesReachNobody) { EXPECT_EQ(verdicts_from({"nonsense"}).reached, std::vector<uint32_t>{0}); }

TEST(Verdict, SocketsAreOfThoseWhoseMemoryNeedsThem) {
  std::vector<Card> cards(2);
  cards[0].socket[0] = cards[1].socket[0] = 's';
  cards[1].memory.needs_fd = 1;
  EXPECT_EQ(sockets_of(cards), (std::vector<std::string>{"", "s"}));
}

}  // namespace
}  // namespace ringdp::gpu
