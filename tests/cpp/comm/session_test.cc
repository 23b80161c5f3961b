#include "comm/session.h"

#include <gtest/gtest.h>

#include "comm/memory_store.h"
#include "comm/rank_threads.h"

namespace ringdp::comm {
namespace {

TEST(Session, AllRanksHoldTheSecretOfRankZero) {
  MemoryStore store;
  const Settings settings;
  std::vector<transport::HelloFrame> frames(3);
  run_ranks(3, [&](int rank) {
    RollCall roll_call(store, rank, 3, Deadline::never());
    const Session session = Session::begin(roll_call, settings);
    frames[static_cast<size_t>(rank)] = encode(session.hello(2, 1, transport::Channel::kBulk));
  });
  EXPECT_EQ(frames[0], frames[1]);
  EXPECT_EQ(frames[0], frames[2]);
}

TEST(Session, EveryGroupHasItsOwnSecret) {
  MemoryStore store;
  const Settings settings;
  RollCall first(store, 0, 2, Deadline::never()), second(store, 0, 2, Deadline::never());
  const Session a = Session::begin(first, settings), b = Session::begin(second, settings);
  EXPECT_NE(a.token, b.token);
  EXPECT_NE(a.group, b.group);
}

TEST(Session, HelloCarriesTheGroup) {
  MemoryStore store;
  const Settings settings;
  RollCall skipped(store, 0, 4, Deadline::never()), roll_call(store, 0, 4, Deadline::never());
  const Session session = Session::begin(roll_call, settings);
  const transport::Hello hello = session.hello(3, 1, transport::Channel::kControl);
  EXPECT_EQ(hello.from, 3);
  EXPECT_EQ(hello.to, 1);
  EXPECT_EQ(hello.world, 4);
  EXPECT_EQ(hello.generation, 2u);
  EXPECT_EQ(hello.group, session.group);
  EXPECT_EQ(hello.token, session.token);
  EXPECT_EQ(hello.channel, transport::Channel::kControl);
}

TEST(Session, AMalformedSecretNamesRankAndKey) {
  const Settings settings;
  for (const std::string& bad : {std::string(), std::string("zz"), std::string(80, 'g'), std::string(82, 'a')}) {
    MemoryStore store;
    store.set("1/secret/0", bad);
    RollCall roll_call(store, 1, 2, Deadline::never());
    try {
      Session::begin(roll_call, settings);
      FAIL() << "accepted '" << bad << "'";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInternal);
      EXPECT_EQ(error.culprit(), 0);
      expect_message(error, {"rank 0", "secret", "1/secret/0"});
    }
  }
}

}  // namespace
}  // namespace ringdp::comm
