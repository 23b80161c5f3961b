#include <algorithm>
#include <array>
#include <cstring>

#include "base/log.h"
#include "comm/bootstrap_steps.h"

namespace ringdp::comm {
namespace {

constexpr size_t kSecretBytes = sizeof(uint64_t) + transport::kTokenBytes;

constexpr int kFirstPauseMs = 2, kLongestPauseMs = 200;
constexpr int kServeMs = 250;

bool exchange_hellos(transport::SocketView socket, const transport::Hello& mine, const transport::WaitPolicy& policy) {
  const transport::HelloFrame frame = transport::encode(mine);
  transport::HelloFrame reply;
  if (!transport::finish_handshake(socket, policy)) return false;
  // A side that refuses a certificate sends an alert before it closes, which can be read even if sending failed.
  transport::send_all(socket, frame.data(), frame.size(), policy);
  if (!transport::recv_all(socket, reply.data(), reply.size(), policy)) return false;
  const auto hello = transport::decode(reply.data(), reply.size());
  return hello && transport::matches(*hello, transport::reply_to(mine));
}

[[noreturn]] void refuse_tls(const Session& session, int peer, const std::string& why) {
  const Settings& own = session.settings;
  throw Error(ErrorKind::kMismatch,
              "rank " + std::to_string(session.rank()) + ": " + why +
                  "; this rank has RINGDP_TLS_CERT=" + own.tls_cert + " and RINGDP_TLS_CA=" + own.tls_ca +
                  ": one authority signs for all ranks, and all name it",
              peer);
}

}  // namespace

Session Session::begin(StoreExchange& store_exchange, const Settings& settings) {
  std::array<std::byte, kSecretBytes> secret;
  if (store_exchange.rank() == 0) {
    transport::fill_random(secret.data(), secret.size());
    store_exchange.publish("secret", transport::to_hex(secret.data(), secret.size()));
  } else if (!transport::from_hex(store_exchange.gather("secret", {0}).front(), secret.data(), secret.size())) {
    throw_malformed(store_exchange, "secret", 0);
  }
  Session session{store_exchange, settings};
  std::memcpy(&session.group, secret.data(), sizeof session.group);
  std::memcpy(session.token.data(), secret.data() + sizeof session.group, transport::kTokenBytes);
  return session;
}

transport::Hello Session::hello(int from, int to, transport::Purpose purpose, uint32_t stream) const {
  return {group, store_exchange.generation(), from, to, world(), purpose, token, stream};
}

void throw_malformed(const StoreExchange& store_exchange, const std::string& what, int rank) {
  throw Error(ErrorKind::kInternal,
              "rank " + std::to_string(rank) + " published a malformed " + what + " (store key " +
                  store_exchange.key(what, rank) + "); do all ranks run the same version of ringdp?",
              rank);
}

transport::Socket connect_to_peer(const Session& session, int peer, transport::Purpose purpose, const Open& open,
                                  const Admit& admit, uint32_t stream) {
  const transport::WaitPolicy policy =
      session.store_exchange.wait_policy("accept a connection", [peer] { return std::vector<int>{peer}; });
  const transport::Hello mine = session.hello(session.rank(), peer, purpose, stream);
  for (int pause_ms = kFirstPauseMs;; pause_ms = std::min(2 * pause_ms, kLongestPauseMs)) {
    transport::Socket socket = open(policy);
    if (socket && admit(socket.get(), peer) && exchange_hellos(socket.view(), mine, policy)) return socket;
    if (const std::string why = socket.view().failure(); !why.empty()) refuse_tls(session, peer, why);
    transport::pause_for(pause_ms, policy);
  }
}

std::vector<transport::Acceptor::Arrival> accept_peers(const Session& session, int listener,
                                                       std::vector<transport::Hello> expected, const Admit& admit,
                                                       const transport::TlsContext* tls) {
  transport::Acceptor acceptor(listener, std::move(expected), admit, tls);
  auto last_look = Deadline::Clock::now();
  while (!acceptor.serve(kServeMs)) {
    // Serving garbage must not keep this rank from checking its own progress.
    if (Deadline::Clock::now() - last_look < std::chrono::milliseconds(kServeMs)) continue;
    const std::string& why = acceptor.why_refused();
    session.store_exchange.check_progress("connect" + (why.empty() ? "" : " (refused: " + why + ")"),
                                          [&] { return acceptor.missing(); });
    last_look = Deadline::Clock::now();
  }
  if (acceptor.refused() > 0) {
    const std::string& why = acceptor.why_refused();
    log_line(why.empty() ? LogLevel::kDebug : LogLevel::kWarning, session.store_exchange.who(),
             "refused " + std::to_string(acceptor.refused()) + " connections without a valid hello" +
                 (why.empty() ? "" : ", the last: " + why));
  }
  return acceptor.take_arrivals();
}

}  // namespace ringdp::comm
