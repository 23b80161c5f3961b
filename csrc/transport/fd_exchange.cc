#include "transport/fd_exchange.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include "base/error.h"

namespace ringdp::transport {
namespace {

constexpr std::byte kGiven{'G'};
constexpr std::chrono::milliseconds kLookEvery{250};
constexpr int kPauseMs = 2;  // where the other side's queue is full

Patience until(Deadline deadline, const std::function<void()>& look) {
  return {deadline, [=] {
            look();
            if (deadline.passed()) throw Error(ErrorKind::kTimeout, "waited in vain for other ranks' descriptors");
          }};
}

[[noreturn]] void lose(int rank) {
  throw Error(ErrorKind::kPeerLost, "rank " + std::to_string(rank) + " went away while descriptors were exchanged", rank);
}

// Whoever has told its name listens until it is gone.
UniqueFd connect_or_lose(int rank, const std::string& name) {
  try {
    return connect_unix(name);
  } catch (const Error&) {
    if (errno == ECONNREFUSED) lose(rank);
    throw;
  }
}

UniqueFd connect_to(int rank, const std::string& name, const FdExchange::Admit& admit, const Patience& patience) {
  if (!is_socket_name(name)) throw Error(ErrorKind::kInternal, "rank " + std::to_string(rank) + " gave no socket's name");
  for (;;) {
    UniqueFd socket = connect_or_lose(rank, name);
    if (socket && admit(socket.get(), rank)) return socket;
    if (socket) lose(rank);
    pause_for(kPauseMs, patience);
    patience.on_idle();
  }
}

// Gives to as many ranks as there are others. Who is none of them is turned away, and stops no clock.
void hand_out(int listener, int own, int rank, int world, const FdExchange::Admit& admit, const Patience& patience) {
  std::vector<bool> served(static_cast<size_t>(world), false);
  auto last_look = Deadline::Clock::now();
  for (int left = world - 1; left > 0;) {
    wait_for(listener, POLLIN, patience);
    if (Deadline::Clock::now() - last_look >= kLookEvery) {
      patience.on_idle();
      last_look = Deadline::Clock::now();
    }
    const UniqueFd socket(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) throw_errno("cannot accept");
    for (int peer = 0; socket && peer < world; ++peer) {
      if (peer == rank || served[static_cast<size_t>(peer)] || !admit(socket.get(), peer)) continue;
      if (!send_fds(socket.get(), kGiven, {own}, patience)) lose(peer);
      served[static_cast<size_t>(peer)] = true;
      --left;
      break;
    }
  }
}

}  // namespace

std::vector<UniqueFd> FdExchange::run(int rank, const std::vector<std::string>& names, int own, const Admit& admit,
                                      Deadline deadline, const std::function<void()>& look) {
  const Patience patience = until(deadline, look);
  const int world = static_cast<int>(names.size());
  std::vector<UniqueFd> sockets(names.size()), received(names.size());
  for (int peer = 0; peer < world; ++peer) {
    const std::string& name = names[static_cast<size_t>(peer)];
    if (peer != rank && !name.empty()) sockets[static_cast<size_t>(peer)] = connect_to(peer, name, admit, patience);
  }
  if (!names[static_cast<size_t>(rank)].empty()) hand_out(listener_.fd.get(), own, rank, world, admit, patience);
  for (int peer = 0; peer < world; ++peer) {
    const UniqueFd& socket = sockets[static_cast<size_t>(peer)];
    if (!socket) continue;
    FdParcel parcel = recv_fds(socket.get(), patience);
    if (parcel.cut) throw_errno("no room for the descriptor of rank " + std::to_string(peer), EMFILE);
    if (!parcel.open || parcel.mark != kGiven || parcel.fds.size() != 1) lose(peer);
    received[static_cast<size_t>(peer)] = std::move(parcel.fds[0]);
  }
  return received;
}

}  // namespace ringdp::transport
