#include "comm/bootstrap.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "comm/bootstrap_steps.h"
#include "comm/memory_store.h"
#include "comm/meshes.h"
#include "comm/sessions.h"

namespace ringdp::comm {
namespace {

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

struct World {
  int world;
  TransportChoice transport;
};

class Bootstrap : public testing::TestWithParam<World> {};

std::vector<World> all_cases() {
  std::vector<World> cases;
  for (const int world : {1, 2, 3, 5, 8}) {
    for (const auto transport : {TransportChoice::kAuto, TransportChoice::kShm, TransportChoice::kTcp}) {
      cases.push_back({world, transport});
    }
  }
  return cases;
}

std::string name_case(const testing::TestParamInfo<World>& info) {
  Settings settings;
  settings.transport = info.param.transport;
  return get_field(settings, "transport") + std::to_string(info.param.world);
}

INSTANTIATE_TEST_SUITE_P(Worlds, Bootstrap, testing::ValuesIn(all_cases()), name_case);

TEST_P(Bootstrap, EveryPairIsConnectedAndBytesFlow) {
  const auto [world, transport] = GetParam();
  const bool tcp = transport == TransportChoice::kTcp;
  MemoryStore store;
  Meshes group(store, world, with(transport));
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
      ASSERT_EQ(peer.messages == nullptr, own);
      EXPECT_EQ(!peer.control, own);
      if (own) continue;
      EXPECT_STREQ(peer.link->kind(), tcp ? "tcp" : "shm");
      EXPECT_STREQ(peer.messages->kind(), peer.link->kind());
      EXPECT_EQ(peer.why.substr(0, 5), tcp ? "tcp: " : "shm: ") << peer.why;
      EXPECT_TRUE(peer.pidfd) << "pids are shared on this host, whatever the transport";
    }
  }
  exchange_on_all_links(group.meshes);
  exchange_on_all_controls(group.meshes);
}

TEST(BootstrapHosts, PidfdsOnlyWherePidsAreShared) {
  MemoryStore store;
  std::vector<Mesh> meshes(3);
  std::vector<transport::Doorbell> bells(3);
  run_ranks(3, [&](int rank) {
    transport::HostIdentity identity = transport::local_identity();
    identity.pid_namespace += rank == 2 ? 1 : 0;
    const auto at = static_cast<size_t>(rank);
    meshes[at] = connect_as(identity, store, rank, 3, with(TransportChoice::kTcp), bells[at], Deadline::never());
  });
  EXPECT_TRUE(meshes[0].peers[1].pidfd);
  EXPECT_TRUE(meshes[1].peers[0].pidfd);
  EXPECT_FALSE(meshes[0].peers[2].pidfd);
  EXPECT_FALSE(meshes[2].peers[1].pidfd);
}

TEST(BootstrapHosts, SharedMemoryInsideAHostTcpBetweenHosts) {
  constexpr int kWorld = 5;
  MemoryStore store;
  Meshes group(store, kWorld, with(TransportChoice::kAuto), 2);
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

// Every rank has measured something else.
TEST(BootstrapHosts, ThresholdsAreThoseOfRankZero) {
  constexpr int kWorld = 3;
  const auto measured_by = [](int rank) {
    Settings settings = with(TransportChoice::kAuto);
    for (const auto& f : kThresholdFields) settings.thresholds.*f.member = 5000 + rank;
    return settings;
  };
  MemoryStore store;
  std::vector<Mesh> meshes(kWorld);
  std::vector<transport::Doorbell> bells(kWorld);
  run_ranks(kWorld, [&](int rank) {
    const auto at = static_cast<size_t>(rank);
    meshes[at] =
        connect_as(identity_on(rank, kWorld, 2), store, rank, kWorld, measured_by(rank), bells[at], Deadline::never());
  });
  for (const Mesh& mesh : meshes) EXPECT_EQ(to_text(mesh.settings.thresholds), to_text(measured_by(0).thresholds));
}

TEST(BootstrapHosts, AnOpenSlotIsTheSameEverywhere) {
  for (const auto& [world, hosts] : {std::pair{2, 1}, {3, 1}, {2, 2}, {4, 2}, {5, 2}}) {
    Settings settings = with(TransportChoice::kAuto);
    settings.slot_bytes = 0;
    settings.thresholds.slot_bytes_of_two = 8192;
    settings.thresholds.slot_bytes_of_more = 16384;
    settings.thresholds.slot_bytes_across_hosts = 32768;
    MemoryStore store;
    const Meshes group(store, world, settings, hosts);
    for (const Mesh& mesh : group.meshes) {
      const int64_t slot = settings.thresholds.slot_bytes(world, hosts == 1);
      EXPECT_EQ(mesh.settings.slot_bytes, slot) << world << " ranks on " << hosts;
      EXPECT_EQ(mesh.arena ? mesh.arena->slot_bytes() : mesh.settings.slot_bytes, mesh.settings.slot_bytes);
    }
  }
}

TEST(BootstrapHosts, OneRankPerHostHasNoArena) {
  MemoryStore store;
  Meshes group(store, 3, with(TransportChoice::kAuto), 3);
  for (const Mesh& mesh : group.meshes) expect_arena_of(mesh, {mesh.rank});
  exchange_on_all_links(group.meshes);
}

TEST(BootstrapHosts, ForcedSharedMemoryBetweenHostsIsRefusedByAll) {
  MemoryStore store;
  const std::vector<transport::Doorbell> bells(3);
  const auto errors = errors_of_ranks(3, [&](int rank) {
    connect_as(identity_on(rank, 3, 3), store, rank, 3, with(TransportChoice::kShm), bells[static_cast<size_t>(rank)],
               Deadline::never());
  });
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    ASSERT_TRUE(errors[rank]) << "rank " << rank;
    EXPECT_EQ(errors[rank]->kind(), ErrorKind::kInvalidArgument);
    expect_message(*errors[rank],
                   {"transport=shm", "rank " + std::to_string(rank) + " and rank ", "network namespaces differ"});
  }
}

TEST(BootstrapLife, ListenersAreClosedAndEverythingIsClosedOnExec) {
  for (const auto transport : {TransportChoice::kAuto, TransportChoice::kTcp}) {
    const int before = count_sockets_listening();
    MemoryStore store;
    Meshes group(store, 3, with(transport));
    EXPECT_EQ(count_sockets_listening(), before);
    for (const Mesh& mesh : group.meshes) {
      for (const Peer& peer : mesh.peers) {
        if (peer.rank == mesh.rank) continue;
        std::vector<int> fds = {peer.control.get()};
        for (const auto* link : {peer.link.get(), peer.messages.get()}) {
          std::vector<pollfd> polls;
          link->add_polls(POLLIN, polls);
          for (const pollfd& entry : polls) fds.push_back(entry.fd);
        }
        if (peer.pidfd) fds.push_back(peer.pidfd->get());
        for (const int fd : fds) EXPECT_TRUE(::fcntl(fd, F_GETFD) & FD_CLOEXEC);
        EXPECT_TRUE(::fcntl(peer.control.get(), F_GETFL) & O_NONBLOCK);
      }
    }
  }
}

// Also counts the descriptor that reads the directory, like every other call.
int64_t open_fds() {
  const std::filesystem::directory_iterator fds("/proc/self/fd");
  return std::distance(begin(fds), end(fds));
}

TEST(BootstrapLife, NothingIsLeftBehind) {
  MemoryStore store;
  { Meshes warm_up(store, 3, with(TransportChoice::kAuto)); }
  const auto before = open_fds();
  for (const auto transport : {TransportChoice::kAuto, TransportChoice::kTcp}) {
    Meshes group(store, 3, with(transport));
    EXPECT_GT(open_fds(), before);
  }
  EXPECT_EQ(open_fds(), before);
}

// A DataLoader's worker: it must not stand in for a rank that is gone.
TEST(BootstrapLife, AForkedChildHoldsNoSocket) {
  for (const auto transport : {TransportChoice::kShm, TransportChoice::kTcp}) {
    MemoryStore store;
    Settings settings = with(transport);
    settings.tcp_streams = 3;
    Meshes group(store, 2, settings);
    int told[2];
    ASSERT_EQ(::pipe2(told, O_CLOEXEC), 0);
    const UniqueFd reading(told[0]), writing(told[1]);
    char byte = 0;
    const pid_t child = ::fork();
    if (child == 0 && ::write(writing.get(), &byte, 1) == 1) {
      for (;;) ::pause();
    }
    ASSERT_EQ(::read(reading.get(), &byte, 1), 1);
    group.meshes[0] = Mesh{};
    const Peer& gone = group.meshes[1].peers[0];
    EXPECT_EQ(::recv(gone.control.get(), &byte, 1, MSG_DONTWAIT), 0);
    for (auto* const link : {gone.link.get(), gone.messages.get()}) {
      if (transport == TransportChoice::kTcp) {
        EXPECT_THROW(link->try_recv(&byte, 1), Error);
      }
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
}

// All ranks are this process, so it pays for each end: one control socket per ordered pair of ranks.
TEST(BootstrapLife, AHundredGroupsCostOneSocketPerPeerEach) {
  constexpr int kWorld = 4, kGroups = 100;
  Settings settings = with(TransportChoice::kShm);
  settings.heap_bytes = 0;  // sixteen mappings of a heap per group: more address space than the thread sanitizer has
  std::vector<transport::Doorbell> bells(kWorld);
  MemoryStore store;
  std::vector<std::vector<Mesh>> groups(kGroups);
  std::vector<int64_t> fds;
  for (auto& group : groups) {
    group.resize(kWorld);
    run_ranks(kWorld, [&](int rank) {
      const auto at = static_cast<size_t>(rank);
      group[at] = connect(store, rank, kWorld, settings, bells[at], Deadline::never());
    });
    fds.push_back(open_fds());
  }
  for (size_t i = 1; i < fds.size(); ++i) EXPECT_EQ(fds[i] - fds[i - 1], kWorld * (kWorld - 1)) << "group " << i;
  exchange_on_all_links(groups.front());
  exchange_on_all_links(groups.back());
}

TEST(BootstrapLife, TheSameStoreServesASecondGeneration) {
  MemoryStore store;
  Meshes first(store, 3, with(TransportChoice::kAuto));
  Meshes second(store, 3, with(TransportChoice::kTcp));
  for (const Mesh& mesh : second.meshes) EXPECT_EQ(mesh.generation, 2u);
  exchange_on_all_links(second.meshes);
  exchange_on_all_links(first.meshes);
}

// One rank per letter; equal letters are one host.
std::vector<PeerInfo> infos_of(const std::string& hosts) {
  std::vector<PeerInfo> infos;
  for (const char host : hosts) {
    PeerInfo info;
    info.identity = transport::local_identity();
    info.identity.boot_id = host;
    infos.push_back(info);
  }
  return infos;
}

TEST(Hosts, AreKnownByTheirFirstRank) {
  EXPECT_EQ(contiguous_hosts(infos_of("a")), (std::vector<int>{0}));
  EXPECT_EQ(contiguous_hosts(infos_of("aaaa")), (std::vector<int>{0}));
  EXPECT_EQ(contiguous_hosts(infos_of("aabbb")), (std::vector<int>{0, 2}));
  EXPECT_EQ(contiguous_hosts(infos_of("abc")), (std::vector<int>{0, 1, 2}));
}

TEST(Hosts, ScatteredRanksHaveNone) {
  EXPECT_TRUE(contiguous_hosts(infos_of("aba")).empty());
  EXPECT_TRUE(contiguous_hosts(infos_of("aabba")).empty());
}

// What rank 0 hears when rank `without` (or nobody: -1) has no shared memory.
std::vector<int> agreed(int without) {
  MemoryStore store;
  const Settings settings;
  const std::vector<PeerInfo> infos = infos_of("aab");
  std::vector<std::vector<int>> hosts(infos.size());
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      StoreExchange store_exchange(store, rank, 3, Deadline::after(std::chrono::seconds(30)));
      const Session session = session_of(store_exchange, settings);
      hosts[rank] = agree_on_hosts(session, infos, rank != without);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(hosts[0], hosts[1]);
  EXPECT_EQ(hosts[0], hosts[2]);
  return hosts[0];
}

TEST(Hosts, CountOnlyWhereEveryHostSharesMemory) {
  EXPECT_EQ(agreed(-1), (std::vector<int>{0, 2}));
  for (int without = 0; without < 3; ++without) EXPECT_TRUE(agreed(without).empty()) << "rank " << without;
}

}  // namespace
}  // namespace ringdp::comm
