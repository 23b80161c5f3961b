#include "comm/handshake.h"

#include <algorithm>

#include "base/log.h"

namespace ringdp::comm {
namespace {

constexpr int kFirstPauseMs = 2, kLongestPauseMs = 200;
constexpr int kServeMs = 250;

bool greet(int socket, const transport::Hello& mine, const transport::Patience& patience) {
  const transport::HelloFrame frame = transport::encode(mine);
  transport::HelloFrame reply;
  if (!transport::send_all(socket, frame.data(), frame.size(), patience)) return false;
  if (!transport::recv_all(socket, reply.data(), reply.size(), patience)) return false;
  const auto hello = transport::decode(reply.data(), reply.size());
  return hello && transport::matches(*hello, transport::reply_to(mine));
}

}  // namespace

UniqueFd introduce(const Session& session, int peer, transport::Channel channel, const Open& open, const Admit& admit,
                   uint32_t stream) {
  const transport::Patience patience =
      session.roll_call.patience("accept a connection", [peer] { return std::vector<int>{peer}; });
  const transport::Hello mine = session.hello(session.rank(), peer, channel, stream);
  for (int pause_ms = kFirstPauseMs;; pause_ms = std::min(2 * pause_ms, kLongestPauseMs)) {
    UniqueFd socket = open(patience);
    if (socket && admit(socket.get(), peer) && greet(socket.get(), mine, patience)) return socket;
    transport::pause_for(pause_ms, patience);
  }
}

std::vector<transport::Acceptor::Arrival> receive(const Session& session, int listener,
                                                  std::vector<transport::Hello> expected, const Admit& admit) {
  transport::Acceptor acceptor(listener, std::move(expected), admit);
  auto last_look = Deadline::Clock::now();
  while (!acceptor.serve(kServeMs)) {
    // Garbage keeps serve() from waiting, but must not keep this rank from looking around.
    if (Deadline::Clock::now() - last_look < std::chrono::milliseconds(kServeMs)) continue;
    session.roll_call.look_around("connect", [&] { return acceptor.missing(); });
    last_look = Deadline::Clock::now();
  }
  if (acceptor.refused() > 0) {
    log_line(LogLevel::kDebug, session.roll_call.who(),
             "refused " + std::to_string(acceptor.refused()) + " connections without a valid hello");
  }
  return acceptor.take_arrivals();
}

}  // namespace ringdp::comm
