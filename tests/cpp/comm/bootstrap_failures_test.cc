// How a bootstrap fails: ranks that are missing, disagree or fail, and connections of other processes.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <random>
#include <tuple>

#include "comm/meshes.h"
#include "comm/peer_info.h"
#include "environment.h"
#include "transport/hello.h"
#include "transport/process_fds.h"
#include "transport/tcp/tcp_sockets.h"
#include "transport/unix_socket.h"

namespace ringdp::comm {
namespace {

TEST(BootstrapErrors, AMissingRankIsNamedAtTheDeadline) {
  for (const auto transport : {TransportChoice::kAuto, TransportChoice::kTcp}) {
    MemoryStore store;
    const std::vector<transport::Doorbell> bells(2);
    const auto errors = errors_of_ranks(
        2, [&](int rank) { connect(store, rank, 4, with(transport), bells[static_cast<size_t>(rank)], soon()); });
    for (const auto& error : errors) {
      ASSERT_TRUE(error);
      // Whoever notices second may have been told by the first.
      EXPECT_TRUE(error->kind() == ErrorKind::kTimeout || error->kind() == ErrorKind::kAborted);
      expect_message(*error, {"ranks 2 and 3", "peer_info"});
    }
  }
}

TEST(BootstrapErrors, AMalformedCardNamesRankAndKey) {
  MemoryStore store;
  store.set("1/peer_info/1", "nonsense");
  const transport::Doorbell bell;
  try {
    connect(store, 0, 2, with(TransportChoice::kAuto), bell, Deadline::never());
    FAIL() << "the info is nonsense";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInternal);
    EXPECT_EQ(error.culprit(), 1);
    expect_message(error, {"rank 1", "malformed peer_info", "1/peer_info/1"});
  }
}

// Rank 0 tells the secret of the group, and only rank 0.
TEST(BootstrapErrors, ASecretOfTheWrongRankNamesRankAndKey) {
  for (const int other : {0, 1}) {
    MemoryStore store;
    PeerInfo info{transport::local_identity(), "", shared_settings(with(TransportChoice::kAuto)), {}, 0, 2};
    if (other == 1) info.secret = Secret::random();
    store.set("1/peer_info/" + std::to_string(other), to_text(info));
    const transport::Doorbell bell;
    try {
      connect(store, 1 - other, 2, with(TransportChoice::kAuto), bell, Deadline::never());
      ADD_FAILURE() << "rank " << other;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInternal);
      EXPECT_EQ(error.culprit(), other);
      expect_message(error, {"malformed peer_info", "1/peer_info/" + std::to_string(other)});
    }
  }
}

TEST(BootstrapErrors, DifferentSettingsNameBothSides) {
  MemoryStore store;
  const std::vector<transport::Doorbell> bells(2);
  const auto errors = errors_of_ranks(2, [&](int rank) {
    Settings settings = with(TransportChoice::kAuto);
    settings.slot_bytes *= rank + 1;
    connect(store, rank, 2, settings, bells[static_cast<size_t>(rank)], Deadline::never());
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::kMismatch);
    expect_message(*error, {"rank 0", "rank 1", "slot_bytes=4096", "slot_bytes=8192"});
  }
}

TEST(BootstrapErrors, DifferentWorldSizesNameBothSides) {
  MemoryStore store;
  const std::vector<transport::Doorbell> bells(2);
  const auto errors = errors_of_ranks(2, [&](int rank) {
    connect(store, rank, 3 - rank, with(TransportChoice::kAuto), bells[static_cast<size_t>(rank)], Deadline::never());
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    expect_message(*error, {"rank 1 (pid ", ") was told of 2 ranks, rank 0 (pid ", ") of 3"});
  }
}

TEST(BootstrapErrors, AnotherProtocolIsNamed) {
  MemoryStore store;
  store.set("1/peer_info/1", "ringdp 1000000 2\nof a build to come");
  const transport::Doorbell bell;
  const auto error = errors_of_ranks(1, [&](int) {
                       connect(store, 0, 2, with(TransportChoice::kAuto), bell, Deadline::never());
                     }).front();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::kMismatch);
  EXPECT_EQ(error->culprit(), 1);
  expect_message(*error, {"protocol " + std::to_string(transport::kProtocolVersion), "protocol 1000000"});
}

TEST(BootstrapErrors, ARankThatDeclinesEndsTheWaitOfTheOthers) {
  MemoryStore store;
  decline(store, 1, 2, "RINGDP_ORDER: 'sideways'");
  const transport::Doorbell bell;
  const auto error = errors_of_ranks(1, [&](int) {
                       connect(store, 0, 2, with(TransportChoice::kAuto), bell, Deadline::never());
                     }).front();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->culprit(), 1);
  expect_message(*error, {"given up by rank 1", "'sideways'"});
}

// As another process on this host, whose pid is not known here.
transport::HostIdentity another_process() {
  transport::HostIdentity identity = transport::local_identity();
  identity.pid += 1;
  identity.pid_namespace += 1;
  return identity;
}

// A rank that is killed once it has published its PeerInfo.
TEST(BootstrapErrors, ARankThatDiesWhileItIsWaitedForIsLost) {
  for (const auto transport : {TransportChoice::kAuto, TransportChoice::kTcp}) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (;;) ::pause();
    }
    MemoryStore store;
    const auto listener = transport::UnixListener::open();
    PeerInfo info{transport::local_identity(),
                  transport == TransportChoice::kAuto ? listener.name : "",
                  shared_settings(with(transport)),
                  {},
                  0,
                  2};
    info.identity.pid = static_cast<uint64_t>(child);
    info.identity.start_time = transport::start_time_of(child);
    store.set("1/peer_info/1", to_text(info));
    const transport::Doorbell bell;
    std::thread killer([&] {
      while (!store.has({"1/peer_info/0"})) std::this_thread::yield();
      ::kill(child, SIGKILL);
    });
    const auto error =
        errors_of_ranks(1, [&](int) { connect(store, 0, 2, with(transport), bell, Deadline::never()); }).front();
    killer.join();
    ::waitpid(child, nullptr, 0);
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::kPeerLost);
    EXPECT_EQ(error->culprit(), 1);
    expect_message(*error, {"rank 1 (pid " + std::to_string(child), "died"});
  }
}

// Tells ranks of each other what they would read on machines that were restored from one snapshot: boot ids and
// namespaces are the same, but the processes and sockets are elsewhere.
class SnapshotStore : public MemoryStore {
 public:
  SnapshotStore(pid_t pid, uint64_t start_time) : pid_(pid), start_time_(start_time) {}
  void set(const std::string& key, const std::string& value) override {
    auto info = peer_info_from_text(value);
    if (!info) return MemoryStore::set(key, value);
    info->identity.pid = static_cast<uint64_t>(pid_);
    info->identity.start_time = start_time_;
    if (!info->socket_name.empty()) info->socket_name = transport::UnixListener::open().name;  // closed at once
    MemoryStore::set(key, to_text(*info));
  }

 private:
  const pid_t pid_;
  const uint64_t start_time_;
};

TEST(BootstrapOfASnapshot, RanksThatAreNotSeenHereAreReachedOverTcp) {
  const Variable no_master("MASTER_ADDR", nullptr);
  const std::string reachable = transport::choose_interface(transport::list_interfaces(), {}).address.host();
  const uint64_t start = transport::start_time_of(::getpid());
  const pid_t ended = ::fork();
  if (ended == 0) ::_exit(0);
  ::waitpid(ended, nullptr, 0);
  // Nobody has the pid here, or another process; or it cannot be told.
  for (const auto& [pid, told, absent] : {std::tuple(ended, start, true), std::tuple(::getpid(), start + 1, true),
                                          std::tuple(::getpid(), uint64_t{0}, false)}) {
    for (const auto transport : {TransportChoice::kAuto, TransportChoice::kTcp}) {
      SnapshotStore store(pid, told);
      Meshes group(store, 2, with(transport));
      for (const Mesh& mesh : group.meshes) {
        const Peer& peer = mesh.peers[static_cast<size_t>(1 - mesh.rank)];
        EXPECT_STREQ(peer.link->kind(), "tcp");
        EXPECT_FALSE(peer.pidfd);
        EXPECT_EQ(peer.same_host, !absent);
        const std::string bound = mesh.address.substr(0, mesh.address.find(' '));
        EXPECT_EQ(bound, absent ? reachable : "127.0.0.1") << "another machine does not reach loopback";
      }
      exchange_on_all_links(group.meshes);
    }
  }
}

// World 3, where two processes are rank 1 and none is rank 2.
auto errors_of_a_duplicate(TransportChoice choice, Deadline deadline) {
  MemoryStore store;
  const std::vector<transport::Doorbell> bells(3);
  return errors_of_ranks(3, [&](int process) {
    const int rank = process == 0 ? 0 : 1;
    while (process == 2 && !store.has({"1/peer_info/1"})) std::this_thread::yield();
    const auto identity = process == 2 ? another_process() : transport::local_identity();
    connect_as(identity, store, rank, 3, with(choice), bells[static_cast<size_t>(process)], deadline);
  });
}

TEST(BootstrapErrors, ARankThatIsThereTwiceIsNamedAtOnce) {
  const auto errors = errors_of_a_duplicate(TransportChoice::kAuto, Deadline::never());
  const std::string own = "pid " + std::to_string(::getpid()), other = "pid " + std::to_string(::getpid() + 1);
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->culprit(), 1);
    expect_message(*error, {"two processes say that they are rank 1", own, other});
  }
}

// Without a socket there is no telling whether the first one is still there, so both wait; but neither is silent.
TEST(BootstrapErrors, ARankThatMayBeThereTwiceIsNamedAtTheDeadline) {
  const auto errors = errors_of_a_duplicate(TransportChoice::kTcp, soon());
  const std::string own = "pid " + std::to_string(::getpid()), other = "pid " + std::to_string(::getpid() + 1);
  for (const auto& error : errors) ASSERT_TRUE(error);
  for (const int process : {0, 1}) {
    expect_message(*errors[static_cast<size_t>(process)],
                   {"rank 2 has not been heard of", "rank 1 has come twice, as " + own, other});
  }
  expect_message(*errors[2], {"rank 0, " + own, "has come no further than generation 1", "this rank was " + own});
}

TEST(BootstrapErrors, ARestartedRankIsNotThereTwice) {
  MemoryStore store;
  { Meshes first(store, 2, with(TransportChoice::kAuto)); }
  const std::vector<transport::Doorbell> bells(2);
  run_ranks(2, [&](int rank) {
    // Threads cannot be another process to the sockets: what the first generation says is changed instead.
    if (rank == 1) {
      PeerInfo before = *peer_info_from_text(store.get({"1/peer_info/1"}).front());
      before.identity = another_process();
      store.set("1/peer_info/1", to_text(before));
    }
    connect(store, rank, 2, with(TransportChoice::kAuto), bells[static_cast<size_t>(rank)], Deadline::never());
  });
}

TEST(BootstrapErrors, TheFailureOfOneRankReachesThoseWhoWaitForIt) {
  MemoryStore store;
  const std::vector<transport::Doorbell> bells(3);
  const auto errors = errors_of_ranks(3, [&](int rank) {
    Settings settings = with(TransportChoice::kTcp);
    if (rank == 1) settings.socket_ifname = "no-such-interface";
    connect(store, rank, 3, settings, bells[static_cast<size_t>(rank)], Deadline::never());
  });
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    ASSERT_TRUE(errors[rank]) << "rank " << rank;
    expect_message(*errors[rank], {"no-such-interface"});
    EXPECT_EQ(errors[rank]->kind(), rank == 1 ? ErrorKind::kInvalidArgument : ErrorKind::kAborted);
  }
}

TEST(BootstrapErrors, ARankOutsideTheWorldIsRefused) {
  MemoryStore store;
  const transport::Doorbell bell;
  for (const auto& [rank, world] : {std::pair{2, 2}, std::pair{-1, 2}, std::pair{0, 0}}) {
    EXPECT_THROW(connect(store, rank, world, Settings{}, bell, Deadline::never()), Error);
  }
}

// A store that tells an attacker where the ranks listen, before any rank can read it.
class LeakyStore : public MemoryStore {
 public:
  explicit LeakyStore(std::function<void(const std::string& key, const std::string& value)> attack)
      : attack_(std::move(attack)) {}
  void set(const std::string& key, const std::string& value) override {
    attack_(key, value);
    MemoryStore::set(key, value);
  }

 private:
  std::function<void(const std::string&, const std::string&)> attack_;
};

class Attacker {
 public:
  // 200 connections that stay open: most silent, some with garbage, a truncated hello or a giant length in front.
  void attack(const std::function<UniqueFd()>& dial) {
    std::mt19937 random(3);
    for (int i = 0; i < 200; ++i) {
      UniqueFd socket = dial();
      std::vector<unsigned char> bytes(static_cast<size_t>(i % 4 == 0 ? random() % 300 : 0));
      for (auto& byte : bytes) byte = static_cast<unsigned char>(random());
      if (bytes.size() > 8) std::fill_n(bytes.begin(), 8, static_cast<unsigned char>(0xff));
      if (socket && !bytes.empty()) ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      const std::lock_guard<std::mutex> lock(mutex_);
      sockets_.push_back(std::move(socket));
    }
  }
  size_t connections() const { return sockets_.size(); }

 private:
  std::mutex mutex_;
  std::vector<UniqueFd> sockets_;
};

TEST(BootstrapUnderAttack, GarbageAndHalfOpenConnectionsOverTcp) {
  Attacker attacker;
  LeakyStore store([&](const std::string& key, const std::string& value) {
    if (key != "1/address/0" && key != "1/address/1") return;
    const size_t space = value.find(' ');
    const auto address = transport::SocketAddress::parse(value.substr(0, space), std::stoi(value.substr(space + 1)));
    ASSERT_TRUE(address);
    attacker.attack([&] { return transport::connect_tcp(*address); });
  });
  Meshes group(store, 4, with(TransportChoice::kTcp));
  EXPECT_EQ(attacker.connections(), 400u);
  exchange_on_all_links(group.meshes);
}

TEST(BootstrapUnderAttack, GarbageAndHalfOpenConnectionsOverUnixSockets) {
  Attacker attacker;
  LeakyStore store([&](const std::string& key, const std::string& value) {
    if (key != "1/peer_info/0" && key != "1/peer_info/1") return;
    const size_t from = value.find('\n', value.find('\n') + 1) + 1;
    const std::string name = value.substr(from, value.find('\n', from) - from);
    ASSERT_TRUE(transport::is_socket_name(name));
    attacker.attack([&] { return transport::connect_unix(name); });
  });
  Meshes group(store, 4, with(TransportChoice::kShm));
  EXPECT_EQ(attacker.connections(), 400u);
  exchange_on_all_links(group.meshes);
}

// A rank that was told another token by its store: nobody lets it in, and it is named.
class LyingStore : public transport::Store {
 public:
  explicit LyingStore(MemoryStore& truth) : truth_(truth) {}
  void set(const std::string& key, const std::string& value) override { truth_.set(key, value); }
  std::vector<std::string> get(const std::vector<std::string>& keys) override {
    std::vector<std::string> values = truth_.get(keys);
    if (keys.front() != "1/peer_info/0") return values;
    std::optional<PeerInfo> info = peer_info_from_text(values.front());
    EXPECT_TRUE(info && info->secret);
    info->secret->token[0] ^= std::byte{1};
    values.front() = to_text(*info);
    return values;
  }
  int64_t add(const std::string& key, int64_t amount) override { return truth_.add(key, amount); }
  bool has(const std::vector<std::string>& keys) override { return truth_.has(keys); }

 private:
  MemoryStore& truth_;
};

TEST(BootstrapUnderAttack, AWrongTokenIsRefused) {
  for (const auto transport : {TransportChoice::kShm, TransportChoice::kTcp}) {
    MemoryStore store;
    LyingStore lying(store);
    const std::vector<transport::Doorbell> bells(2);
    const auto errors = errors_of_ranks(2, [&](int rank) {
      transport::Store& own = rank == 1 ? static_cast<transport::Store&>(lying) : store;
      connect(own, rank, 2, with(transport), bells[static_cast<size_t>(rank)], soon());
    });
    ASSERT_TRUE(errors[0] && errors[1]);
    EXPECT_TRUE(errors[0]->kind() == ErrorKind::kTimeout || errors[1]->kind() == ErrorKind::kTimeout);
  }
}

}  // namespace
}  // namespace ringdp::comm
