#include "transport/unix_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>

#include "base/error.h"

namespace ringdp::transport {
namespace {

const WaitPolicy kUnbounded{Deadline::never(), nullptr};

struct Connection {
  Connection() : listener(UnixListener::open()), near(connect_unix(listener.name)) {
    far.reset(::accept4(listener.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    EXPECT_TRUE(near);
    EXPECT_TRUE(far);
  }
  UnixListener listener;
  UniqueFd near, far;
};

bool is_close_on_exec(int fd) { return (::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0; }

ino_t inode(int fd) {
  struct stat status {};
  EXPECT_EQ(::fstat(fd, &status), 0);
  return status.st_ino;
}

TEST(UnixSocket, NamesAreRandomAndRecognised) {
  const UnixListener a = UnixListener::open(), b = UnixListener::open();
  EXPECT_NE(a.name, b.name);
  EXPECT_TRUE(is_socket_name(a.name));
  for (const std::string& bad : {std::string(), std::string("-"), a.name + "0", a.name.substr(1), a.name + "\n",
                                 std::string("/tmp/x"), std::string(5000, 'a')}) {
    EXPECT_FALSE(is_socket_name(bad)) << bad;
  }
}

TEST(UnixSocket, SocketsDoNotBlockAndAreClosedOnExec) {
  const Connection c;
  for (const int fd : {c.listener.fd.get(), c.near.get()}) {
    EXPECT_TRUE(is_close_on_exec(fd));
    EXPECT_TRUE(::fcntl(fd, F_GETFL) & O_NONBLOCK);
  }
}

TEST(UnixSocket, ANameNobodyListensOnIsAnError) {
  std::string name;
  {
    const UnixListener listener = UnixListener::open();
    name = listener.name;
  }
  EXPECT_THROW(connect_unix(name), Error);
}

TEST(UnixSocket, AFullQueueMeansTryAgain) {
  UnixListener listener = UnixListener::open();
  ASSERT_EQ(::listen(listener.fd.get(), 0), 0);
  std::vector<UniqueFd> queued;
  for (int i = 0; i < 16; ++i) {
    queued.push_back(connect_unix(listener.name));
    if (!queued.back()) return;
  }
  FAIL() << "16 connections fit into a queue of none";
}

TEST(UnixSocket, CredentialsAreThoseOfTheOtherProcess) {
  const Connection c;
  const HostIdentity self = local_identity();
  EXPECT_TRUE(is_process(c.near.get(), self, self));
  EXPECT_TRUE(is_process(c.far.get(), self, self));

  HostIdentity other_user = self, other_pid = self, other_namespace = self;
  other_user.uid += 1;
  other_pid.pid += 1;
  other_namespace.pid += 1;
  other_namespace.pid_namespace += 1;
  EXPECT_FALSE(is_process(c.far.get(), other_user, self));
  EXPECT_FALSE(is_process(c.far.get(), other_pid, self));
  EXPECT_TRUE(is_process(c.far.get(), other_namespace, self)) << "pids of another namespace cannot be compared";
}

TEST(UnixSocket, AnotherProcessDoesNotPassForThisOne) {
  const UnixListener listener = UnixListener::open();
  const pid_t child = ::fork();
  if (child == 0) {
    const UniqueFd socket = connect_unix(listener.name);
    char byte = 0;
    ::fcntl(socket.get(), F_SETFL, 0);
    ::_exit(::recv(socket.get(), &byte, 1, 0) == 0 ? 0 : 1);
  }
  pollfd entry{listener.fd.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&entry, 1, 60'000), 1);
  UniqueFd accepted(::accept4(listener.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const HostIdentity self = local_identity();
  EXPECT_FALSE(is_process(accepted.get(), self, self));
  HostIdentity expected = self;
  expected.pid = static_cast<uint64_t>(child);
  EXPECT_TRUE(is_process(accepted.get(), expected, self));
  accepted.reset();
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(UnixSocket, PassesDescriptors) {
  const Connection c;
  const UniqueFd bell(::eventfd(0, EFD_CLOEXEC)), file(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(send_fds(c.near.get(), std::byte{'S'}, {bell.get(), file.get()}, kUnbounded));
  ASSERT_EQ(::send(c.near.get(), "tail", 4, 0), 4);
  const FdParcel parcel = recv_fds(c.far.get(), kUnbounded);
  ASSERT_TRUE(parcel.open);
  EXPECT_EQ(parcel.mark, std::byte{'S'});
  ASSERT_EQ(parcel.fds.size(), 2u);
  for (const UniqueFd& fd : parcel.fds) EXPECT_TRUE(is_close_on_exec(fd.get()));
  EXPECT_EQ(inode(parcel.fds[1].get()), inode(file.get()));
  ASSERT_EQ(::eventfd_write(parcel.fds[0].get(), 5), 0);
  eventfd_t count = 0;
  ASSERT_EQ(::eventfd_read(bell.get(), &count), 0);
  EXPECT_EQ(count, 5u) << "the same object, not a copy";
  char tail[4];
  EXPECT_TRUE(recv_all(c.far.get(), tail, sizeof tail, kUnbounded)) << "the parcel takes one byte, not more";
}

TEST(UnixSocket, AParcelMayBeEmptyButNotOverfull) {
  const Connection c;
  ASSERT_TRUE(send_fds(c.near.get(), std::byte{'N'}, {}, kUnbounded));
  const FdParcel parcel = recv_fds(c.far.get(), kUnbounded);
  EXPECT_TRUE(parcel.open);
  EXPECT_EQ(parcel.mark, std::byte{'N'});
  EXPECT_TRUE(parcel.fds.empty());
  EXPECT_THROW(send_fds(c.near.get(), std::byte{'N'}, std::vector<int>(kMostFds + 1, c.near.get()), kUnbounded), Error);
}

TEST(UnixSocket, DescriptorsForWhichThereIsNoRoomAreReported) {
  const Connection c;
  const UniqueFd bell(::eventfd(0, EFD_CLOEXEC));
  ASSERT_TRUE(send_fds(c.near.get(), std::byte{'S'}, {bell.get()}, kUnbounded));
  rlimit usual{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &usual), 0);
  const int lowest_free = UniqueFd(::dup(bell.get())).get();
  const rlimit none{static_cast<rlim_t>(lowest_free), usual.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const FdParcel parcel = recv_fds(c.far.get(), kUnbounded);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
  EXPECT_TRUE(parcel.open && parcel.cut && parcel.fds.empty());
}

TEST(UnixSocket, AGonePeerIsReported) {
  Connection c;
  c.far.reset();
  EXPECT_FALSE(recv_fds(c.near.get(), kUnbounded).open);
  EXPECT_FALSE(send_fds(c.near.get(), std::byte{'S'}, {}, kUnbounded));
}

TEST(UnixSocket, ReceivingEndsAtTheDeadline) {
  const Connection c;
  try {
    recv_fds(c.far.get(), {Deadline::after(std::chrono::milliseconds(10)), nullptr});
    FAIL() << "nothing was sent";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
  }
}

// After an exchange every rank has the descriptors of all ranks, and other processes have none.

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
    ranks.exchanges[0]->run(
        0, ranks.names, ranks.own[0].get(), [](int, int) { return true; }, Deadline::after(300ms));
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
    ranks.exchanges[0]->run(
        0, names, ranks.own[0].get(), [](int, int) { return false; }, Deadline::after(300ms));
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
    ranks.exchanges[0]->run(
        0, ranks.names, ranks.own[0].get(), [](int, int) { return true; }, Deadline::after(20s));
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
    ranks.exchanges[0]->run(
        0, ranks.names, ranks.own[0].get(), [](int, int) { return true; }, Deadline::after(20s), look);
    FAIL() << "rank 1 never ran";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rank 1 died");
  }
}

TEST(FdExchange, ADescriptorForWhichThereIsNoRoomIsReported) {
  Ranks ranks(2);
  ranks.names[1].clear();
  rlimit usual{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &usual), 0);
  std::thread giver([&] {
    const auto leave_no_room = [&](int accepted, int) {  // the lowest number that was free
      const rlimit none{static_cast<rlim_t>(accepted), usual.rlim_max};
      return ::setrlimit(RLIMIT_NOFILE, &none) == 0;
    };
    ranks.exchanges[0]->run(0, ranks.names, ranks.own[0].get(), leave_no_room, Deadline::after(20s));
  });
  try {
    ranks.exchanges[1]->run(
        1, ranks.names, ranks.own[1].get(), [](int, int) { return true; }, Deadline::after(20s));
    ADD_FAILURE() << "there was room";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).rfind("no room for the descriptor of rank 0", 0), 0u) << error.what();
  }
  giver.join();
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
}

TEST(FdExchange, WhoIsAnotherProcessThanExpectedIsLost) {
  Ranks ranks(2);
  try {
    ranks.exchanges[0]->run(
        0, ranks.names, ranks.own[0].get(), [](int, int) { return false; }, Deadline::after(20s));
    FAIL() << "nobody is who he says";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
    EXPECT_EQ(error.culprit(), 1);
  }
}

}  // namespace
}  // namespace ringdp::transport
