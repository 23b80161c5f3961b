// Test support: whole meshes, made by ranks that are threads of this process, and bytes through everything in them.
#pragma once
#include <gtest/gtest.h>

#include <map>
#include <thread>
#include <vector>

#include "comm/bootstrap.h"
#include "comm/memory_store.h"
#include "comm/rank_threads.h"
#include "transport/socket.h"

namespace ringdp::comm {

inline Settings with(TransportChoice transport) {
  Settings settings;
  settings.transport = transport;
  settings.slot_bytes = 4096;
  settings.link_bytes = 4096;
  return settings;
}

inline Deadline soon() { return Deadline::after(std::chrono::milliseconds(300)); }

// Rank's identity when `hosts` pretended hosts have equal shares of the ranks, in blocks.
inline transport::HostIdentity identity_on(int rank, int world, int hosts) {
  transport::HostIdentity identity = transport::local_identity();
  identity.network_namespace += static_cast<uint64_t>(rank * hosts / world);
  return identity;
}

// A group whose ranks are threads; holds all meshes until it ends, as a link of a gone rank would break.
struct Meshes {
  Meshes(MemoryStore& store, int world, const Settings& settings, int hosts = 1) : meshes(static_cast<size_t>(world)) {
    std::vector<transport::Doorbell> bells(static_cast<size_t>(world));
    run_ranks(world, [&](int rank) {
      meshes[static_cast<size_t>(rank)] = connect_as(identity_on(rank, world, hosts), store, rank, world, settings,
                                                     bells[static_cast<size_t>(rank)], Deadline::never());
    });
  }
  std::vector<Mesh> meshes;
};

constexpr size_t kFlowBytes = 40'000;  // more than a shared-memory link of these tests holds

inline std::vector<unsigned char> flow(int from, int to) {
  std::vector<unsigned char> bytes(kFlowBytes);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(from * 71 + to * 13 + i % 251);
  return bytes;
}

inline std::vector<unsigned char> message_flow(int from, int to) { return flow(from + 100, to); }

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

// Every rank sends its own sequences to every peer at once, on both links, and checks what comes.
inline void exchange_on_all_links(std::vector<Mesh>& meshes) {
  run_ranks(static_cast<int>(meshes.size()), [&](int rank) {
    std::map<int, Flow> flows, messages;
    for (Peer& peer : meshes[static_cast<size_t>(rank)].peers) {
      if (peer.rank == rank) continue;
      flows.emplace(peer.rank, Flow{*peer.link, flow(rank, peer.rank)});
      messages.emplace(peer.rank, Flow{*peer.messages, message_flow(rank, peer.rank)});
    }
    for (bool done = false; !done; std::this_thread::yield()) {
      done = true;
      for (auto& [peer, flow] : flows) done = flow.move() && done;
      for (auto& [peer, flow] : messages) done = flow.move() && done;
    }
    for (const auto& [peer, got] : flows) EXPECT_EQ(got.in, flow(peer, rank)) << "from rank " << peer << " at " << rank;
    for (const auto& [peer, got] : messages) EXPECT_EQ(got.in, message_flow(peer, rank)) << peer << " to " << rank;
  });
}

// Each end of every control socket hears the other end's rank.
inline void exchange_on_all_controls(std::vector<Mesh>& meshes) {
  const transport::WaitPolicy forever{Deadline::never(), nullptr};
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

}  // namespace ringdp::comm
