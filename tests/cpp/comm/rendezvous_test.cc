#include "comm/rendezvous.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>

#include "comm/memory_store.h"
#include "comm/rank_threads.h"
#include "transport/tcp/tcp_socket.h"
#include "transport/unix_socket.h"

namespace ringdp::comm {
namespace {

Settings with(TransportChoice transport) {
  Settings settings;
  settings.transport = transport;
  settings.slot_bytes = 4096;
  settings.link_bytes = 4096;
  return settings;
}

Deadline soon() { return Deadline::after(std::chrono::milliseconds(300)); }

// Rank's identity when `hosts` pretended hosts have equal shares of the ranks, in blocks.
transport::HostIdentity identity_on(int rank, int world, int hosts) {
  transport::HostIdentity identity = transport::local_identity();
  identity.network_namespace += static_cast<uint64_t>(rank * hosts / world);
  return identity;
}

// A group whose ranks are threads; holds all meshes until it ends, as a link of a gone rank would break.
struct Group {
  Group(MemoryStore& store, int world, const Settings& settings, int hosts = 1) : meshes(static_cast<size_t>(world)) {
    std::vector<transport::Doorbell> bells(static_cast<size_t>(world));
    run_ranks(world, [&](int rank) {
      meshes[static_cast<size_t>(rank)] = connect_as(identity_on(rank, world, hosts), store, rank, world, settings,
                                                     bells[static_cast<size_t>(rank)], Deadline::never());
    });
  }
  std::vector<Mesh> meshes;
};

constexpr size_t kFlowBytes = 40'000;  // more than a shared-memory link of these tests holds

std::vector<unsigned char> flow(int from, int to) {
  std::vector<unsigned char> bytes(kFlowBytes);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(from * 71 + to * 13 + i % 251);
  return bytes;
}

// One rank's side of one link: what goes out, what has come in.
struct Flow {
  transport::Link& link;
  std::vector<unsigned char> out, in = std::vector<unsigned char>(kFlowBytes);
  size_t sent = 0, got = 0;

  // True once both directions are through.
  bool move() {
    sent += link.try_send(out.data() + sent, out.size() - sent);
    got += link.try_recv(in.data() + got, in.size() - got);
    return sent == out.size() && got == in.size();
  }
};

// Every rank sends its own sequence to every peer at once and checks what comes.
void exchange_on_all_links(std::vector<Mesh>& meshes) {
  run_ranks(static_cast<int>(meshes.size()), [&](int rank) {
    std::map<int, Flow> flows;
    for (Peer& peer : meshes[static_cast<size_t>(rank)].peers) {
      if (peer.link) flows.emplace(peer.rank, Flow{*peer.link, flow(rank, peer.rank)});
    }
    for (bool done = false; !done; std::this_thread::yield()) {
      done = true;
      for (auto& [peer, flow] : flows) done = flow.move() && done;
    }
    for (const auto& [peer, got] : flows) EXPECT_EQ(got.in, flow(peer, rank)) << "from rank " << peer << " at " << rank;
  });
}

// Each end of every control socket hears the other end's rank.
void exchange_on_all_controls(std::vector<Mesh>& meshes) {
  const transport::Patience forever{Deadline::never(), nullptr};
  run_ranks(static_cast<int>(meshes.size()), [&](int rank) {
    for (const Peer& peer : meshes[static_cast<size_t>(rank)].peers) {
      if (peer.rank == rank) continue;
      EXPECT_TRUE(send_all(peer.control.get(), &rank, sizeof rank, forever));
    }
    for (const Peer& peer : meshes[static_cast<size_t>(rank)].peers) {
      if (peer.rank == rank) continue;
      int said = -1;
      EXPECT_TRUE(recv_all(peer.control.get(), &said, sizeof said, forever));
      EXPECT_EQ(said, peer.rank);
    }
  });
}

void expect_arena_of(const Mesh& mesh, const std::vector<int>& locals) {
  EXPECT_EQ(mesh.locals, locals);
  ASSERT_EQ(mesh.arena != nullptr, locals.size() > 1);
  if (!mesh.arena) return;
  EXPECT_EQ(mesh.arena->size(), static_cast<int>(locals.size()));
  EXPECT_EQ(locals[static_cast<size_t>(mesh.arena->index())], mesh.rank);
}

int count_sockets_listening() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    int listening = 0;
    socklen_t size = sizeof listening;
    const int fd = std::stoi(entry.path().filename().string());
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) == 0) count += listening;
  }
  return count;
}

struct Case {
  int world;
  TransportChoice transport;
};

class Rendezvous : public testing::TestWithParam<Case> {};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const int world : {1, 2, 3, 5, 8}) {
    for (const auto transport : {TransportChoice::kAuto, TransportChoice::kShm, TransportChoice::kTcp}) {
      cases.push_back({world, transport});
    }
  }
  return cases;
}

std::string name_case(const testing::TestParamInfo<Case>& info) {
  Settings settings;
  settings.transport = info.param.transport;
  return get_field(settings, "transport") + std::to_string(info.param.world);
}

INSTANTIATE_TEST_SUITE_P(Worlds, Rendezvous, testing::ValuesIn(all_cases()), name_case);

TEST_P(Rendezvous, EveryPairIsConnectedAndBytesFlow) {
  const auto [world, transport] = GetParam();
  const bool tcp = transport == TransportChoice::kTcp;
  MemoryStore store;
  Group group(store, world, with(transport));
  std::vector<int> everyone;
  for (int rank = 0; rank < world; ++rank) everyone.push_back(rank);
  for (const Mesh& mesh : group.meshes) {
    EXPECT_EQ(mesh.world, world);
    EXPECT_EQ(mesh.generation, 1u);
    expect_arena_of(mesh, tcp ? std::vector<int>{mesh.rank} : everyone);
    EXPECT_EQ(mesh.address, tcp && world > 1 ? "127.0.0.1 (lo)" : "");
    ASSERT_EQ(mesh.peers.size(), everyone.size());
    for (const Peer& peer : mesh.peers) {
      const bool own = peer.rank == mesh.rank;
      EXPECT_EQ(peer.pid, ::getpid());
      EXPECT_EQ(peer.host, transport::local_identity().host);
      EXPECT_TRUE(peer.same_host);
      ASSERT_EQ(peer.link == nullptr, own);
      EXPECT_EQ(!peer.control, own);
      if (own) continue;
      EXPECT_STREQ(peer.link->kind(), tcp ? "tcp" : "shm");
      EXPECT_EQ(peer.why.substr(0, 5), tcp ? "tcp: " : "shm: ") << peer.why;
      EXPECT_EQ(static_cast<bool>(peer.pidfd), !tcp) << "only a unix socket vouches for a pid";
    }
  }
  exchange_on_all_links(group.meshes);
  exchange_on_all_controls(group.meshes);
}

TEST(RendezvousHosts, SharedMemoryInsideAHostTcpBetweenHosts) {
  constexpr int kWorld = 5;
  MemoryStore store;
  Group group(store, kWorld, with(TransportChoice::kAuto), 2);
  const std::vector<std::vector<int>> locals = {{0, 1, 2}, {3, 4}};
  for (const Mesh& mesh : group.meshes) {
    const auto& own = locals[mesh.rank < 3 ? 0 : 1];
    expect_arena_of(mesh, own);
    EXPECT_FALSE(mesh.address.empty());
    for (const Peer& peer : mesh.peers) {
      if (peer.rank == mesh.rank) continue;
      const bool local = std::count(own.begin(), own.end(), peer.rank) > 0;
      EXPECT_EQ(peer.same_host, local);
      EXPECT_STREQ(peer.link->kind(), local ? "shm" : "tcp");
      EXPECT_EQ(peer.why == "tcp: network namespaces differ", !local) << peer.why;
    }
  }
  exchange_on_all_links(group.meshes);
  exchange_on_all_controls(group.meshes);
}

TEST(RendezvousHosts, OneRankPerHostHasNoArena) {
  MemoryStore store;
  Group group(store, 3, with(TransportChoice::kAuto), 3);
  for (const Mesh& mesh : group.meshes) expect_arena_of(mesh, {mesh.rank});
  exchange_on_all_links(group.meshes);
}

TEST(RendezvousHosts, ForcedSharedMemoryBetweenHostsIsRefusedByAll) {
  MemoryStore store;
  const std::vector<transport::Doorbell> bells(3);
  const auto errors = errors_of_ranks(3, [&](int rank) {
    connect_as(identity_on(rank, 3, 3), store, rank, 3, with(TransportChoice::kShm), bells[static_cast<size_t>(rank)],
               Deadline::never());
  });
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    ASSERT_TRUE(errors[rank]) << "rank " << rank;
    EXPECT_EQ(errors[rank]->kind(), ErrorKind::kInvalidArgument);
    expect_message(*errors[rank], {"transport=shm", "rank " + std::to_string(rank) + " and rank ",
                                   "network namespaces differ"});
  }
}

TEST(RendezvousLife, ListenersAreClosedAndEverythingIsClosedOnExec) {
  for (const auto transport : {TransportChoice::kAuto, TransportChoice::kTcp}) {
    const int before = count_sockets_listening();
    MemoryStore store;
    Group group(store, 3, with(transport));
    EXPECT_EQ(count_sockets_listening(), before);
    for (const Mesh& mesh : group.meshes) {
      for (const Peer& peer : mesh.peers) {
        if (peer.rank == mesh.rank) continue;
        std::vector<int> fds = {peer.control.get()};
        if (peer.link->poll_fd() >= 0) fds.push_back(peer.link->poll_fd());
        if (peer.pidfd) fds.push_back(peer.pidfd.get());
        for (const int fd : fds) EXPECT_TRUE(::fcntl(fd, F_GETFD) & FD_CLOEXEC);
        EXPECT_TRUE(::fcntl(peer.control.get(), F_GETFL) & O_NONBLOCK);
      }
    }
  }
}

TEST(RendezvousLife, NothingIsLeftBehind) {
  const auto open_fds = [] {
    const std::filesystem::directory_iterator fds("/proc/self/fd");
    return std::distance(begin(fds), end(fds));
  };
  MemoryStore store;
  { Group warm_up(store, 3, with(TransportChoice::kAuto)); }
  const auto before = open_fds();
  for (const auto transport : {TransportChoice::kAuto, TransportChoice::kTcp}) {
    Group group(store, 3, with(transport));
    EXPECT_GT(open_fds(), before);
  }
  EXPECT_EQ(open_fds(), before);
}

TEST(RendezvousLife, TheSameStoreServesASecondGeneration) {
  MemoryStore store;
  Group first(store, 3, with(TransportChoice::kAuto));
  Group second(store, 3, with(TransportChoice::kTcp));
  for (const Mesh& mesh : second.meshes) EXPECT_EQ(mesh.generation, 2u);
  exchange_on_all_links(second.meshes);
  exchange_on_all_links(first.meshes);
}

TEST(RendezvousErrors, AMissingRankIsNamedAtTheDeadline) {
  for (const auto transport : {TransportChoice::kAuto, TransportChoice::kTcp}) {
    MemoryStore store;
    const std::vector<transport::Doorbell> bells(2);
    const auto errors = errors_of_ranks(2, [&](int rank) {
      connect(store, rank, 4, with(transport), bells[static_cast<size_t>(rank)], soon());
    });
    for (const auto& error : errors) {
      ASSERT_TRUE(error);
      // Whoever notices second may have been told by the first.
      EXPECT_TRUE(error->kind() == ErrorKind::kTimeout || error->kind() == ErrorKind::kAborted);
      expect_message(*error, {"ranks 2 and 3", "card"});
    }
  }
}

TEST(RendezvousErrors, AMalformedCardNamesRankAndKey) {
  MemoryStore store;
  store.set("1/card/1", "nonsense");
  const transport::Doorbell bell;
  try {
    connect(store, 0, 2, with(TransportChoice::kAuto), bell, Deadline::never());
    FAIL() << "the card is nonsense";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInternal);
    EXPECT_EQ(error.culprit(), 1);
    expect_message(error, {"rank 1", "malformed card", "1/card/1"});
  }
}

TEST(RendezvousErrors, DifferentSettingsNameBothSides) {
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

TEST(RendezvousErrors, TheFailureOfOneRankReachesThoseWhoWaitForIt) {
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

TEST(RendezvousErrors, ARankOutsideTheWorldIsRefused) {
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

TEST(RendezvousUnderAttack, GarbageAndHalfOpenConnectionsOverTcp) {
  Attacker attacker;
  LeakyStore store([&](const std::string& key, const std::string& value) {
    if (key != "1/address/0" && key != "1/address/1") return;
    const size_t space = value.find(' ');
    const auto address = transport::SocketAddress::parse(value.substr(0, space), std::stoi(value.substr(space + 1)));
    ASSERT_TRUE(address);
    attacker.attack([&] { return transport::connect_tcp(*address, {Deadline::never(), nullptr}); });
  });
  Group group(store, 4, with(TransportChoice::kTcp));
  EXPECT_EQ(attacker.connections(), 400u);
  exchange_on_all_links(group.meshes);
}

TEST(RendezvousUnderAttack, GarbageAndHalfOpenConnectionsOverUnixSockets) {
  Attacker attacker;
  LeakyStore store([&](const std::string& key, const std::string& value) {
    if (key != "1/card/0" && key != "1/card/1") return;
    const size_t from = value.find('\n') + 1;
    const std::string name = value.substr(from, value.find('\n', from) - from);
    ASSERT_TRUE(transport::is_socket_name(name));
    attacker.attack([&] { return transport::connect_unix(name); });
  });
  Group group(store, 4, with(TransportChoice::kShm));
  EXPECT_EQ(attacker.connections(), 400u);
  exchange_on_all_links(group.meshes);
}

// A rank that was told another token by its store: nobody lets it in, and it is named.
class LyingStore : public transport::Store {
 public:
  explicit LyingStore(MemoryStore& truth) : truth_(truth) {}
  void set(const std::string& key, const std::string& value) override { truth_.set(key, value); }
  std::string get(const std::string& key, Deadline deadline) override {
    std::string value = truth_.get(key, deadline);
    if (key == "1/secret/0") value.back() = value.back() == '0' ? '1' : '0';
    return value;
  }
  int64_t add(const std::string& key, int64_t amount) override { return truth_.add(key, amount); }
  bool has(const std::string& key) override { return truth_.has(key); }

 private:
  MemoryStore& truth_;
};

TEST(RendezvousUnderAttack, AWrongTokenIsRefused) {
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
