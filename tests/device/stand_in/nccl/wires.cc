#include "nccl/wires.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>

namespace stand_in {
namespace {

// In the abstract namespace: nothing is left behind. Ranks in several network namespaces, each of which has its own,
// meet in STAND_IN_NCCL_FOLDER.
socklen_t address_of(const std::string& name, int rank, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  const char* const folder = std::getenv("STAND_IN_NCCL_FOLDER");
  const std::string start = folder == nullptr ? std::string(1, '\0') : folder + std::string("/");
  const std::string whole = start + "stand-in-nccl-" + name + "-" + std::to_string(rank);
  if (whole.size() > sizeof address.sun_path) throw std::length_error("no socket has so long a name: " + whole);
  std::memcpy(address.sun_path, whole.data(), whole.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + whole.size());
}

int connected_to(const std::string& name, int peer, int rank) {
  sockaddr_un address;
  const socklen_t length = address_of(name, peer, address);
  const int wire = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  while (::connect(wire, reinterpret_cast<sockaddr*>(&address), length) != 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ::send(wire, &rank, sizeof rank, MSG_NOSIGNAL);
  return wire;
}

}  // namespace

Wires::Wires(const std::string& name, int rank, int world) : sockets_(static_cast<size_t>(world), -1) {
  sockaddr_un address;
  const socklen_t length = address_of(name, rank, address);
  const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ::bind(listener, reinterpret_cast<sockaddr*>(&address), length);
  ::listen(listener, world);
  for (int peer = 0; peer < rank; ++peer) sockets_[static_cast<size_t>(peer)] = connected_to(name, peer, rank);
  for (int missing = world - 1 - rank; missing > 0; --missing) {
    const int wire = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    int peer = 0;
    ::recv(wire, &peer, sizeof peer, MSG_WAITALL);
    sockets_[static_cast<size_t>(peer)] = wire;
  }
  ::close(listener);
}

Wires::~Wires() {
  for (const int wire : sockets_) {
    if (wire >= 0) ::close(wire);
  }
}

Wires::Progress Wires::move(std::vector<Message>& messages) {
  Progress progress = Progress::kNone;
  std::vector<std::pair<bool, int>> busy;  // direction and peer: what comes later waits
  for (Message& message : messages) {
    const std::pair<bool, int> way(message.sends, message.peer);
    if (std::find(busy.begin(), busy.end(), way) != busy.end()) continue;
    const int wire = sockets_[static_cast<size_t>(message.peer)];
    const ssize_t moved = message.sends ? ::send(wire, message.memory, message.bytes, MSG_DONTWAIT | MSG_NOSIGNAL)
                                        : ::recv(wire, message.memory, message.bytes, MSG_DONTWAIT);
    if (moved > 0) {
      message.memory += moved;
      message.bytes -= static_cast<size_t>(moved);
      if (progress == Progress::kNone) progress = Progress::kSome;
    } else if (moved == 0 || errno != EAGAIN) {
      progress = Progress::kLost;
    }
    if (message.bytes > 0) busy.push_back(way);
  }
  const auto over = [](const Message& message) { return message.bytes == 0; };
  messages.erase(std::remove_if(messages.begin(), messages.end(), over), messages.end());
  return progress;
}

}  // namespace stand_in
