// Every rank has everybody's descriptor afterwards; strangers get none.
#include "transport/fd_exchange.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>

#include "base/error.h"

namespace ringdp::transport {
namespace {

using namespace std::chrono_literals;

ino_t inode_of(int fd) {
  struct stat facts {};
  EXPECT_EQ(::fstat(fd, &facts), 0);
  return facts.st_ino;
}

struct Ranks {
  explicit Ranks(int world) : received(world) {
    for (int r = 0; r < world; ++r) {
      exchanges.push_back(std::make_unique<FdExchange>());
      names.push_back(exchanges.back()->name());
      int ends[2];
      EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
      own.emplace_back(ends[0]);
      ::close(ends[1]);
    }
  }
  void run(const FdExchange::Admit& admit = [](int, int) { return true; }) {
    std::vector<std::thread> threads;
    for (size_t r = 0; r < names.size(); ++r) {
      threads.emplace_back([this, r, &admit] {
        received[r] = exchanges[r]->run(static_cast<int>(r), names, own[r].get(), admit, Deadline::after(20s));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<std::unique_ptr<FdExchange>> exchanges;
  std::vector<std::string> names;
  std::vector<UniqueFd> own;
  std::vector<std::vector<UniqueFd>> received;
};

TEST(FdExchange, EverybodyGetsEverybodys) {
  Ranks ranks(4);
  ranks.run();
  for (size_t r = 0; r < 4; ++r) {
    for (size_t peer = 0; peer < 4; ++peer) {
      ASSERT_EQ(static_cast<bool>(ranks.received[r][peer]), peer != r);
      if (peer == r) continue;
      EXPECT_EQ(inode_of(ranks.received[r][peer].get()), inode_of(ranks.own[peer].get()));
    }
  }
}

TEST(FdExchange, WhoHasNoNameGivesNothing) {
  Ranks ranks(3);
  ranks.names[1].clear();
  ranks.run();
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_FALSE(ranks.received[r][1]);
    EXPECT_EQ(static_cast<bool>(ranks.received[r][2]), r != 2);
  }
}

TEST(FdExchange, AStrangerIsTurnedAwayAndDelaysNobody) {
  Ranks ranks(2);
  ranks.names[1].clear();
  const UniqueFd stranger = connect_unix(ranks.names[0]);  // the first that rank 0 accepts
  std::atomic<bool> turned_away{false};
  ranks.run([&](int, int rank) { return rank != 1 || turned_away.exchange(true); });
  EXPECT_TRUE(turned_away);
  EXPECT_EQ(inode_of(ranks.received[1][0].get()), inode_of(ranks.own[0].get()));
}

TEST(FdExchange, ARankThatDoesNotComeIsATimeout) {
  Ranks ranks(2);
  try {
    ranks.exchanges[0]->run(0, ranks.names, ranks.own[0].get(), [](int, int) { return true; }, Deadline::after(300ms));
    FAIL() << "rank 1 never ran";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
  }
}

TEST(FdExchange, StrangersThatKeepComingAreNoReasonToWaitBeyondTheDeadline) {
  Ranks ranks(2);
  std::atomic<bool> over{false};
  std::thread strangers([&] {
    while (!over) connect_unix(ranks.names[0]);
  });
  std::vector<std::string> names = ranks.names;
  names[1].clear();
  try {
    ranks.exchanges[0]->run(0, names, ranks.own[0].get(), [](int, int) { return false; }, Deadline::after(300ms));
    ADD_FAILURE() << "rank 1 never ran";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
  }
  over = true;
  strangers.join();
}

TEST(FdExchange, WhoIsGoneBeforeItIsReachedIsLost) {
  Ranks ranks(2);
  ranks.exchanges[1].reset();
  try {
    ranks.exchanges[0]->run(0, ranks.names, ranks.own[0].get(), [](int, int) { return true; }, Deadline::after(20s));
    FAIL() << "nobody listens";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
    EXPECT_EQ(error.culprit(), 1);
  }
}

TEST(FdExchange, WhatIsKnownMeanwhileEndsIt) {
  Ranks ranks(2);
  const auto look = [] { throw Error(ErrorKind::kPeerLost, "rank 1 died", 1); };
  try {
    ranks.exchanges[0]->run(0, ranks.names, ranks.own[0].get(), [](int, int) { return true; }, Deadline::after(20s), look);
    FAIL() << "rank 1 never ran";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rank 1 died");
  }
}

TEST(FdExchange, WhoIsAnotherProcessThanExpectedIsLost) {
  Ranks ranks(2);
  try {
    ranks.exchanges[0]->run(0, ranks.names, ranks.own[0].get(), [](int, int) { return false; }, Deadline::after(20s));
    FAIL() << "nobody is who he says";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
    EXPECT_EQ(error.culprit(), 1);
  }
}

}  // namespace
}  // namespace ringdp::transport
