#include "comm/bootstrap.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

#include "comm/bootstrap_steps.h"
#include "comm/peer_info.h"
#include "transport/identity.h"
#include "transport/process_fds.h"
#include "transport/shm/segment.h"
#include "transport/tcp/striped_link.h"
#include "transport/tcp/tcp_link.h"

namespace ringdp::comm {
namespace {

using transport::HostIdentity;
using transport::Via;

// Throws unless two ranks can work together. `theirs` is a PeerInfo that any build may have written.
PeerInfo checked(const StoreExchange& store_exchange, const PeerInfo& own, int other, const std::string& theirs) {
  const std::string me = "rank " + std::to_string(store_exchange.rank()), them = "rank " + std::to_string(other);
  const auto differ = [&](const std::string& what) { return Error(ErrorKind::kMismatch, what, other); };
  const auto protocol = protocol_of_peer_info(theirs);
  if (protocol && *protocol != transport::kProtocolVersion) {
    throw differ("versions of ringdp differ: " + me + " speaks its protocol " +
                 std::to_string(transport::kProtocolVersion) + ", " + them + " protocol " + std::to_string(*protocol) +
                 "; install the same on all hosts");
  }
  const auto info = peer_info_from_text(theirs);
  if (!info || info->secret.has_value() != (other == 0)) throw_malformed(store_exchange, "peer_info", other);
  if (info->world != own.world) {
    throw differ("world sizes differ: " + me + " was told of " + std::to_string(own.world) + " ranks, " + them +
                 " of " + std::to_string(info->world) + "; start all with the same");
  }
  if (info->settings != own.settings) {
    throw differ("settings differ: " + me + " has " + own.settings + ", " + them + " has " + info->settings +
                 "; give all ranks the same");
  }
  return *info;
}

// The first round through the store: the PeerInfo of all ranks, checked.
std::vector<PeerInfo> gather_peer_infos(StoreExchange& store_exchange, const PeerInfo& own) {
  std::vector<int> ranks(static_cast<size_t>(store_exchange.world()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const std::vector<std::string> texts = store_exchange.gather("peer_info", ranks);
  std::vector<PeerInfo> infos;
  for (const int rank : ranks) infos.push_back(checked(store_exchange, own, rank, texts[static_cast<size_t>(rank)]));
  return infos;
}

std::vector<int> ranks_of_host(const std::vector<PeerInfo>& infos, const HostIdentity& host) {
  std::vector<int> ranks;
  for (size_t i = 0; i < infos.size(); ++i) {
    if (transport::same_host(infos[i].identity, host).same) ranks.push_back(static_cast<int>(i));
  }
  return ranks;
}

// The transport between this rank and `peer`; throws when shared memory was required and is impossible.
transport::PairTransport choose_for(const Session& session, const std::vector<PeerInfo>& infos, int peer,
                                    const transport::Probe& probe) {
  const auto self = static_cast<size_t>(session.rank()), other = static_cast<size_t>(peer);
  transport::PairTransport choice =
      transport::choose_transport(session.settings.transport, infos[self].identity, infos[other].identity, probe);
  if (choice.via == Via::kImpossible) {
    throw Error(ErrorKind::kInvalidArgument,
                "transport=shm is impossible between rank " + std::to_string(session.rank()) + " and rank " +
                    std::to_string(peer) + ": " + choice.why + "; use transport=auto or tcp",
                peer);
  }
  return choice;
}

// Fails before any wait when ranks on different hosts are required to share memory.
void check_demand(const Session& session, const std::vector<PeerInfo>& infos, const std::vector<int>& locals) {
  if (session.settings.transport != TransportChoice::kShm) return;
  for (int rank = 0; rank < session.world(); ++rank) {
    if (!std::binary_search(locals.begin(), locals.end(), rank)) choose_for(session, infos, rank, {});
  }
}

// The entries of all ranks, without sockets and reasons.
std::vector<Peer> list_peers(const Session& session, const std::vector<PeerInfo>& infos,
                             const std::vector<int>& locals) {
  const HostIdentity& self = infos[static_cast<size_t>(session.rank())].identity;
  std::vector<Peer> peers(infos.size());
  for (int rank = 0; rank < session.world(); ++rank) {
    const HostIdentity& identity = infos[static_cast<size_t>(rank)].identity;
    Peer& peer = peers[static_cast<size_t>(rank)];
    peer.rank = rank;
    peer.pid = static_cast<int>(identity.pid);
    peer.host = identity.host;
    peer.identity = identity;
    peer.same_host = std::binary_search(locals.begin(), locals.end(), rank);
    if (rank == session.rank()) {
      peer.why = "this rank";
      continue;
    }
    peer.same_host = peer.same_host && !transport::is_absent(identity, self);
    const bool is_known = transport::share_pids(identity, self);
    if (is_known) peer.pidfd = transport::open_pidfd(peer.pid, identity.start_time);
  }
  return peers;
}

void attach_memory(Mesh& mesh, const std::vector<int>& locals, ShmExchange&& local) {
  if (local.probe.outcome != transport::Probe::Outcome::kWorked) return;
  const auto index = std::find(locals.begin(), locals.end(), mesh.rank) - locals.begin();
  auto arena = transport::ShmArena::create(static_cast<int>(index), local.layout, std::move(local.members),
                                           std::move(local.heap));
  for (size_t member = 0; member < locals.size(); ++member) {
    Peer& peer = mesh.peers[static_cast<size_t>(locals[member])];
    if (peer.rank == mesh.rank) continue;
    peer.control = std::move(local.controls[peer.rank]);
    peer.shield = transport::ForkShield({peer.control.get()});
    peer.link = arena->link_to(static_cast<int>(member), transport::Traffic::kCollectives);
    peer.messages = arena->link_to(static_cast<int>(member), transport::Traffic::kMessages);
  }
  mesh.locals = locals;
  mesh.arena = std::move(arena);
}

int connections_across_hosts(const Mesh& mesh, const TcpExchange& tcp) {
  int count = 0;
  for (const auto& [rank, connection] : tcp.connections) {
    if (!mesh.peers[static_cast<size_t>(rank)].same_host) count += static_cast<int>(connection.bulk.size());
  }
  return count;
}

std::unique_ptr<transport::Link> link_over(TcpExchange::Connection& connection, transport::TcpLink::Options each,
                                           transport::StripedLink::Options all) {
  std::vector<std::unique_ptr<transport::Link>> streams;
  for (transport::Socket& socket : connection.bulk) {
    streams.push_back(std::make_unique<transport::TcpLink>(std::move(socket), all.peer_rank, connection.address, each));
  }
  if (streams.size() == 1) return std::move(streams.front());
  return std::make_unique<transport::StripedLink>(std::move(streams), all);
}

transport::ForkShield shield_of(const TcpExchange::Connection& connection) {
  std::vector<int> fds{connection.control.get(), connection.messages.get()};
  for (const transport::Socket& socket : connection.bulk) fds.push_back(socket.get());
  return transport::ForkShield(std::move(fds));
}

void attach_tcp(Mesh& mesh, TcpExchange&& tcp) {
  const int across = connections_across_hosts(mesh, tcp);
  const bool tls = mesh.settings.asks_for_tls();
  const bool checked = mesh.settings.check == Check::kCrc32c && !tls;
  for (auto& [rank, connection] : tcp.connections) {
    Peer& peer = mesh.peers[static_cast<size_t>(rank)];
    peer.shield = shield_of(connection);
    peer.control = std::move(connection.control);
    peer.address = connection.address.substr(0, connection.address.rfind(':'));
    if (tls) peer.why += ", TLS 1.3";
    const Streams& streams = connection.streams;
    if (!streams.why.empty()) peer.why += ", " + streams.why;
    const size_t most_unsent = streams.far && streams.count > 1 ? transport::kMostUnsent : 0;
    const transport::TcpLink::Options bulk{peer.same_host ? 0 : across, checked, mesh.rank, most_unsent};
    const transport::TcpLink::Options messages{0, checked, mesh.rank};
    peer.link = link_over(connection, bulk, {rank, std::chrono::milliseconds(mesh.settings.unreachable_ms)});
    peer.messages =
        std::make_unique<transport::TcpLink>(std::move(connection.messages), rank, connection.address, messages);
  }
  mesh.address = tcp.address;
}

// Settings with which all ranks choose the same plans, although each host may have measured other thresholds.
Settings agree(Settings settings, const std::vector<PeerInfo>& infos) {
  const bool one_host = ranks_of_host(infos, infos[0].identity).size() == infos.size();
  settings.thresholds = infos[0].thresholds;
  if (settings.slot_bytes == 0) {
    settings.slot_bytes = settings.thresholds.slot_bytes(static_cast<int>(infos.size()), one_host);
  }
  return settings;
}

// The ranks whose process was here when it was looked for, and has ended.
std::vector<Loss> ended(const std::vector<Peer>& peers) {
  std::vector<Loss> losses;
  for (const Peer& peer : peers) {
    if (peer.pidfd && transport::has_ended(*peer.pidfd)) losses.push_back({peer.rank, peer.identity, kDied});
  }
  return losses;
}

// Also when all ranks share memory, so that invalid certificates are reported at once.
std::shared_ptr<const transport::TlsContext> tls_of(const Settings& wanted) {
  if (!wanted.asks_for_tls()) return nullptr;
  return std::make_shared<const transport::TlsContext>(wanted.tls_cert, wanted.tls_key, wanted.tls_ca);
}

// Whether every rank of a group between hosts has said where it listens. Equal on all ranks.
bool all_endpoints_known(const std::vector<PeerInfo>& infos) {
  const bool one_host = ranks_of_host(infos, infos[0].identity).size() == infos.size();
  return !one_host && std::all_of(infos.begin(), infos.end(), [](const PeerInfo& info) { return info.endpoint; });
}

// `door`: of this rank, where all endpoints are known.
TcpExchange connect_over_tcp(const Session& session, const std::vector<PeerInfo>& infos, std::optional<TcpDoor> door,
                             const std::vector<int>& peers, bool one_host) {
  std::map<int, TcpEndpoint> endpoints;
  if (door) {
    for (const int rank : peers) endpoints.emplace(rank, *infos[static_cast<size_t>(rank)].endpoint);
  } else {
    door = TcpDoor::open(session.settings, one_host, session.store_exchange.round_trip());
    endpoints = exchange_endpoints(session, door->endpoint, peers);
  }
  return exchange_tcp(session, *door, endpoints);
}

Mesh bootstrap(StoreExchange& store_exchange, const Settings& wanted, const HostIdentity& self,
               const transport::Doorbell& doorbell, const Losses& losses, const std::string& name) {
  store_exchange.set_losses(losses);
  const auto tls = tls_of(wanted);
  const int world = store_exchange.world();
  const bool may_share = wanted.transport != TransportChoice::kTcp && world > 1;
  std::optional<transport::UnixListener> listener;
  if (may_share) listener = transport::UnixListener::open();
  const bool may_use_tcp = wanted.transport != TransportChoice::kShm && world > 1;
  std::optional<TcpDoor> door;
  if (may_use_tcp) door = TcpDoor::reopened(wanted, store_exchange.round_trip());
  const PeerInfo own{self,
                     listener ? listener->name : "",
                     shared_settings(wanted),
                     wanted.thresholds,
                     may_share ? transport::reservable_heap(wanted.heap_bytes, world) : 0,
                     world,
                     store_exchange.rank() == 0 ? std::optional(Secret::random()) : std::nullopt,
                     door ? std::optional(door->endpoint) : std::nullopt};
  store_exchange.publish_info(own);
  const std::vector<PeerInfo> infos = gather_peer_infos(store_exchange, own);
  if (!all_endpoints_known(infos)) door.reset();
  const Settings settings = agree(wanted, infos);
  const Session session{store_exchange, settings, *infos[0].secret, tls, name};
  const std::vector<int> locals = ranks_of_host(infos, self);
  check_demand(session, infos, locals);

  Mesh mesh;
  mesh.rank = session.rank();
  mesh.world = session.world();
  mesh.settings = settings;
  mesh.generation = session.store_exchange.generation();
  mesh.locals = {session.rank()};
  mesh.peers = list_peers(session, infos, locals);
  store_exchange.set_losses([&] {
    std::vector<Loss> all = losses ? losses() : std::vector<Loss>{};
    for (Loss& loss : ended(mesh.peers)) all.push_back(std::move(loss));
    return all;
  });

  transport::Probe probe;
  if (may_share && locals.size() > 1) {
    ShmExchange local = exchange_memory(session, locals, infos, *listener, doorbell);
    probe = local.probe;
    attach_memory(mesh, locals, std::move(local));
  }
  listener.reset();
  if (may_share && locals.size() < infos.size()) {
    mesh.hosts = agree_on_hosts(session, infos, mesh.arena || locals.size() == 1);
  }

  std::vector<int> over_tcp;
  for (Peer& peer : mesh.peers) {
    if (peer.rank == mesh.rank) continue;
    const transport::PairTransport choice = choose_for(session, infos, peer.rank, probe);
    peer.why = choice.why;
    if (choice.via == Via::kTcp) over_tcp.push_back(peer.rank);
  }
  if (!over_tcp.empty()) {
    attach_tcp(mesh, connect_over_tcp(session, infos, std::move(door), over_tcp, mesh.is_on_one_host()));
  }
  return mesh;
}

// `who` is called when a failure of it can be published to the other ranks.
Mesh connect_by(const std::function<HostIdentity()>& who, transport::Store& store, int rank, int world,
                const Settings& settings, const transport::Doorbell& doorbell, Deadline deadline, const Losses& losses,
                const std::string& name) {
  if (world < 1 || rank < 0 || rank >= world) {
    throw Error(ErrorKind::kInvalidArgument,
                "rank " + std::to_string(rank) + " is not one of a world of " + std::to_string(world));
  }
  StoreExchange store_exchange(store, rank, world, deadline);
  try {
    return bootstrap(store_exchange, settings, who(), doorbell, losses, name);
  } catch (const Error& error) {
    const Error named = store_exchange.with_names(error);
    store_exchange.give_up(named);
    throw named;
  } catch (...) {  // what interrupted the wait
    store_exchange.give_up(Error(ErrorKind::kAborted, "interrupted by a signal", rank));
    throw;
  }
}

}  // namespace

bool Mesh::is_on_one_host() const {
  return std::all_of(peers.begin(), peers.end(), [](const Peer& peer) { return peer.same_host; });
}

bool Mesh::shares_one_arena() const { return arena && arena->size() == world; }

Mesh connect(transport::Store& store, int rank, int world, const Settings& settings,
             const transport::Doorbell& doorbell, Deadline deadline, const Losses& losses, const std::string& name) {
  return connect_by(transport::local_identity, store, rank, world, settings, doorbell, deadline, losses, name);
}

Mesh connect_as(const HostIdentity& self, transport::Store& store, int rank, int world, const Settings& settings,
                const transport::Doorbell& doorbell, Deadline deadline, const Losses& losses) {
  return connect_by([&] { return self; }, store, rank, world, settings, doorbell, deadline, losses, "");
}

void decline(transport::Store& store, int rank, int world, const std::string& why) noexcept {
  try {
    StoreExchange(store, rank, world, Deadline::never()).give_up(Error(ErrorKind::kInvalidArgument, why));
  } catch (const std::exception&) {
    // The store is unreachable, too: the other ranks have their deadline.
  }
}

}  // namespace ringdp::comm
