#include "comm/rendezvous.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

#include "comm/card.h"
#include "comm/hosts.h"
#include "comm/local_exchange.h"
#include "comm/session.h"
#include "comm/tcp_exchange.h"
#include "transport/catalog.h"
#include "transport/pidfd.h"
#include "transport/shm/address_space.h"
#include "transport/tcp/striped_link.h"
#include "transport/tcp/tcp_link.h"

namespace ringdp::comm {
namespace {

using transport::HostIdentity;
using transport::Via;

// Throws unless two ranks can work together. `theirs` is a card in the words of whatever build wrote it.
Card checked(const Session& session, const Card& own, int other, const std::string& theirs) {
  const std::string me = "rank " + std::to_string(session.rank()), them = "rank " + std::to_string(other);
  const auto differ = [&](const std::string& what) { return Error(ErrorKind::kMismatch, what, other); };
  const auto protocol = protocol_of_card(theirs);
  if (protocol && *protocol != transport::kProtocolVersion) {
    throw differ("versions of ringdp differ: " + me + " speaks its protocol " +
                 std::to_string(transport::kProtocolVersion) + ", " + them + " protocol " + std::to_string(*protocol) +
                 "; install the same on all hosts");
  }
  const auto card = card_from_text(theirs);
  if (!card) throw_malformed(session.roll_call, "card", other);
  if (card->world != own.world) {
    throw differ("world sizes differ: " + me + " was told of " + std::to_string(own.world) + " ranks, " + them +
                 " of " + std::to_string(card->world) + "; start all with the same");
  }
  if (card->settings != own.settings) {
    throw differ("settings differ: " + me + " has " + own.settings + ", " + them + " has " + card->settings +
                 "; give all ranks the same");
  }
  return *card;
}

// Round 1: the cards of all ranks, checked.
std::vector<Card> gather_cards(const Session& session, const Card& own) {
  std::vector<int> ranks(static_cast<size_t>(session.world()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const std::vector<std::string> texts = session.roll_call.gather("card", ranks);
  std::vector<Card> cards;
  for (const int rank : ranks) cards.push_back(checked(session, own, rank, texts[static_cast<size_t>(rank)]));
  return cards;
}

std::vector<int> ranks_of_host(const std::vector<Card>& cards, const HostIdentity& host) {
  std::vector<int> ranks;
  for (size_t i = 0; i < cards.size(); ++i) {
    if (transport::same_host(cards[i].identity, host).same) ranks.push_back(static_cast<int>(i));
  }
  return ranks;
}

// The transport of the pair (own rank, peer); throws when shared memory was demanded in vain.
transport::Choice choose_for(const Session& session, const std::vector<Card>& cards, int peer,
                             const transport::Probe& probe) {
  const auto self = static_cast<size_t>(session.rank()), other = static_cast<size_t>(peer);
  transport::Choice choice =
      transport::choose(session.settings.transport, cards[self].identity, cards[other].identity, probe);
  if (choice.via == Via::kImpossible) {
    throw Error(ErrorKind::kInvalidArgument,
                "transport=shm is impossible between rank " + std::to_string(session.rank()) + " and rank " +
                    std::to_string(peer) + ": " + choice.why + "; use transport=auto or tcp",
                peer);
  }
  return choice;
}

// Fails before anything is waited for when ranks of different hosts were told to share memory.
void check_demand(const Session& session, const std::vector<Card>& cards, const std::vector<int>& locals) {
  if (session.settings.transport != TransportChoice::kShm) return;
  for (int rank = 0; rank < session.world(); ++rank) {
    if (!std::binary_search(locals.begin(), locals.end(), rank)) choose_for(session, cards, rank, {});
  }
}

// The entries of all ranks, still without sockets and reasons. Pidfds are opened before the handshakes: the peer's later
// answer proves that the pid still was its own.
std::vector<Peer> list_peers(const Session& session, const std::vector<Card>& cards, const std::vector<int>& locals) {
  std::vector<Peer> peers(cards.size());
  for (int rank = 0; rank < session.world(); ++rank) {
    const HostIdentity& identity = cards[static_cast<size_t>(rank)].identity;
    Peer& peer = peers[static_cast<size_t>(rank)];
    peer.rank = rank;
    peer.pid = static_cast<int>(identity.pid);
    peer.host = identity.host;
    peer.identity = identity;
    peer.same_host = std::binary_search(locals.begin(), locals.end(), rank);
    if (rank == session.rank()) {
      peer.why = "this rank";
    } else if (transport::share_pids(cards[static_cast<size_t>(session.rank())].identity, identity)) {
      peer.pidfd = transport::open_pidfd(peer.pid);
    }
  }
  return peers;
}

void attach_memory(Mesh& mesh, const std::vector<int>& locals, LocalExchange&& local) {
  if (local.probe.outcome != transport::Probe::Outcome::kWorked) return;
  const auto index = std::find(locals.begin(), locals.end(), mesh.rank) - locals.begin();
  auto arena = transport::ShmArena::create(static_cast<int>(index), local.layout, std::move(local.members));
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

std::unique_ptr<transport::Link> link_over(std::vector<transport::Socket> sockets, int rank, const std::string& address,
                                           transport::TcpLink::Options options) {
  std::vector<std::unique_ptr<transport::Link>> streams;
  for (transport::Socket& socket : sockets) {
    streams.push_back(std::make_unique<transport::TcpLink>(std::move(socket), rank, address, options));
  }
  if (streams.size() == 1) return std::move(streams.front());
  return std::make_unique<transport::StripedLink>(std::move(streams));
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
    if (connection.bulk.size() > 1) peer.why += ", " + std::to_string(connection.bulk.size()) + " streams";
    const transport::TcpLink::Options bulk{peer.same_host ? 0 : across, checked, mesh.rank};
    const transport::TcpLink::Options messages{0, checked, mesh.rank};
    peer.link = link_over(std::move(connection.bulk), rank, connection.address, bulk);
    peer.messages =
        std::make_unique<transport::TcpLink>(std::move(connection.messages), rank, connection.address, messages);
  }
  mesh.address = tcp.address;
}

// With these no two ranks can choose differently, whatever was measured on their hosts.
Settings agree(Settings settings, const std::vector<Card>& cards) {
  const bool one_host = ranks_of_host(cards, cards[0].identity).size() == cards.size();
  settings.thresholds = cards[0].thresholds;
  if (settings.slot_bytes == 0) {
    settings.slot_bytes = settings.thresholds.slot_bytes(static_cast<int>(cards.size()), one_host);
  }
  return settings;
}

// Of ranks that have said who they are and whose pids mean the same here.
std::vector<Loss> ended(const std::vector<Peer>& peers, const HostIdentity& self) {
  std::vector<Loss> losses;
  for (const Peer& peer : peers) {
    if (!transport::share_pids(peer.identity, self)) continue;
    const bool gone = peer.pidfd ? transport::has_ended(*peer.pidfd) : !transport::exists(peer.pid);
    if (gone) losses.push_back({peer.rank, peer.identity, kDied});
  }
  return losses;
}

// Also where all share memory: who asks for it with files that do not do is told at once.
std::shared_ptr<const transport::TlsContext> tls_of(const Settings& wanted) {
  if (!wanted.asks_for_tls()) return nullptr;
  return std::make_shared<const transport::TlsContext>(wanted.tls_cert, wanted.tls_key, wanted.tls_ca);
}

Mesh meet(RollCall& roll_call, const Settings& wanted, const HostIdentity& self, const transport::Doorbell& doorbell,
          const Losses& losses) {
  roll_call.heed(losses);
  const auto tls = tls_of(wanted);
  const int world = roll_call.world();
  const bool may_share = wanted.transport != TransportChoice::kTcp && world > 1;
  std::optional<transport::UnixListener> listener;
  if (may_share) listener = transport::UnixListener::open();
  const Card own{self, listener ? listener->name : "", shared_settings(wanted), wanted.thresholds,
                 may_share ? transport::reservable_heap(wanted.heap_bytes, world) : 0, world};
  roll_call.introduce(own);
  const Session begun = Session::begin(roll_call, wanted);
  const std::vector<Card> cards = gather_cards(begun, own);
  const Settings settings = agree(wanted, cards);
  const Session session{begun.roll_call, settings, begun.group, begun.token, tls};
  const std::vector<int> locals = ranks_of_host(cards, self);
  check_demand(session, cards, locals);

  Mesh mesh;
  mesh.rank = session.rank();
  mesh.world = session.world();
  mesh.settings = settings;
  mesh.generation = session.roll_call.generation();
  mesh.locals = {session.rank()};
  mesh.peers = list_peers(session, cards, locals);
  roll_call.heed([&] {
    std::vector<Loss> all = losses ? losses() : std::vector<Loss>{};
    for (Loss& loss : ended(mesh.peers, self)) all.push_back(std::move(loss));
    return all;
  });

  transport::Probe probe;
  if (may_share && locals.size() > 1) {
    LocalExchange local = exchange_memory(session, locals, cards, *listener, doorbell);
    probe = local.probe;
    attach_memory(mesh, locals, std::move(local));
  }
  listener.reset();
  if (may_share && locals.size() < cards.size()) {
    mesh.hosts = agree_on_hosts(session, cards, mesh.arena || locals.size() == 1);
  }

  std::vector<int> over_tcp;
  for (Peer& peer : mesh.peers) {
    if (peer.rank == mesh.rank) continue;
    const transport::Choice choice = choose_for(session, cards, peer.rank, probe);
    peer.why = choice.why;
    if (choice.via == Via::kTcp) over_tcp.push_back(peer.rank);
  }
  if (!over_tcp.empty()) attach_tcp(mesh, exchange_tcp(session, over_tcp, locals.size() == cards.size()));
  return mesh;
}

// `who`: this process, asked once the others can be told that it cannot say.
Mesh connect_by(const std::function<HostIdentity()>& who, transport::Store& store, int rank, int world,
                const Settings& settings, const transport::Doorbell& doorbell, Deadline deadline,
                const Losses& losses) {
  if (world < 1 || rank < 0 || rank >= world) {
    throw Error(ErrorKind::kInvalidArgument,
                "rank " + std::to_string(rank) + " is not one of a world of " + std::to_string(world));
  }
  RollCall roll_call(store, rank, world, deadline);
  try {
    return meet(roll_call, settings, who(), doorbell, losses);
  } catch (const Error& error) {
    const Error named = roll_call.named(error);
    roll_call.give_up(named);
    throw named;
  }
}

}  // namespace

Mesh connect(transport::Store& store, int rank, int world, const Settings& settings,
             const transport::Doorbell& doorbell, Deadline deadline, const Losses& losses) {
  return connect_by(transport::local_identity, store, rank, world, settings, doorbell, deadline, losses);
}

Mesh connect_as(const HostIdentity& self, transport::Store& store, int rank, int world, const Settings& settings,
                const transport::Doorbell& doorbell, Deadline deadline, const Losses& losses) {
  return connect_by([&] { return self; }, store, rank, world, settings, doorbell, deadline, losses);
}

void decline(transport::Store& store, int rank, int world, const std::string& why) noexcept {
  try {
    RollCall(store, rank, world, Deadline::never()).give_up(Error(ErrorKind::kInvalidArgument, why));
  } catch (const std::exception&) {
    // The store cannot be told either: the others have their deadline.
  }
}

}  // namespace ringdp::comm
