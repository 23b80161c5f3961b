#include "comm/handshake.h"

#include <algorithm>

#include "base/log.h"

namespace ringdp::comm {
namespace {

constexpr int kFirstPauseMs = 2, kLongestPauseMs = 200;
constexpr int kServeMs = 250;

bool greet(transport::SocketView socket, const transport::Hello& mine, const transport::Patience& patience) {
  const transport::HelloFrame frame = transport::encode(mine);
  transport::HelloFrame reply;
  if (!transport::shake_all(socket, patience)) return false;
  // Who refuses a certificate says so before it closes: that can be read also when sending failed.
  transport::send_all(socket, frame.data(), frame.size(), patience);
  if (!transport::recv_all(socket, reply.data(), reply.size(), patience)) return false;
  const auto hello = transport::decode(reply.data(), reply.size());
  return hello && transport::matches(*hello, transport::reply_to(mine));
}

[[noreturn]] void refuse_tls(const Session& session, int peer, const std::string& why) {
  const Settings& own = session.settings;
  throw Error(ErrorKind::kMismatch,
              "rank " + std::to_string(session.rank()) + ": " + why + "; this rank has RINGDP_TLS_CERT=" + own.tls_cert +
                  " and RINGDP_TLS_CA=" + own.tls_ca + ": one authority signs for all ranks, and all name it",
              peer);
}

}  // namespace

transport::Socket introduce(const Session& session, int peer, transport::Channel channel, const Open& open,
                            const Admit& admit, uint32_t stream) {
  const transport::Patience patience =
      session.roll_call.patience("accept a connection", [peer] { return std::vector<int>{peer}; });
  const transport::Hello mine = session.hello(session.rank(), peer, channel, stream);
  for (int pause_ms = kFirstPauseMs;; pause_ms = std::min(2 * pause_ms, kLongestPauseMs)) {
    transport::Socket socket = open(patience);
    if (socket && admit(socket.get(), peer) && greet(socket.view(), mine, patience)) return socket;
    if (const std::string why = socket.view().failure(); !why.empty()) refuse_tls(session, peer, why);
    transport::pause_for(pause_ms, patience);
  }
}

std::vector<transport::Acceptor::Arrival> receive(const Session& session, int listener,
                                                  std::vector<transport::Hello> expected, const Admit& admit,
                                                  const transport::TlsContext* tls) {
  transport::Acceptor acceptor(listener, std::move(expected), admit, tls);
  auto last_look = Deadline::Clock::now();
  while (!acceptor.serve(kServeMs)) {
    // Garbage keeps serve() from waiting, but must not keep this rank from looking around.
    if (Deadline::Clock::now() - last_look < std::chrono::milliseconds(kServeMs)) continue;
    const std::string& why = acceptor.why_refused();
    session.roll_call.look_around("connect" + (why.empty() ? "" : " (refused: " + why + ")"),
                                  [&] { return acceptor.missing(); });
    last_look = Deadline::Clock::now();
  }
  if (acceptor.refused() > 0) {
    const std::string& why = acceptor.why_refused();
    log_line(why.empty() ? LogLevel::kDebug : LogLevel::kWarning, session.roll_call.who(),
             "refused " + std::to_string(acceptor.refused()) + " connections without a valid hello" +
                 (why.empty() ? "" : ", the last: " + why));
  }
  return acceptor.take_arrivals();
}

}  // namespace ringdp::comm
