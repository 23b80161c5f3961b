#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "comm/bootstrap_steps.h"

namespace ringdp::comm {
namespace {

constexpr int kFirstPauseMs = 2, kLongestPauseMs = 200;
constexpr int kLookMs = 250;

bool exchange_hellos(transport::SocketView socket, const transport::Hello& mine, const transport::WaitPolicy& policy) {
  const transport::HelloFrame frame = transport::encode(mine);
  transport::HelloFrame reply;
  if (!transport::send_all(socket, frame.data(), frame.size(), policy)) return false;
  if (!transport::recv_all(socket, reply.data(), reply.size(), policy)) return false;
  const auto hello = transport::decode(reply.data(), reply.size());
  return hello && transport::matches(*hello, transport::reply_to(mine));
}

[[noreturn]] void refuse_tls(const Session& session, const transport::Dialer::Refusal& refusal) {
  const Settings& own = session.settings;
  throw Error(ErrorKind::kMismatch,
              "rank " + std::to_string(session.rank()) + ": " + refusal.why +
                  "; this rank has RINGDP_TLS_CERT=" + own.tls_cert + " and RINGDP_TLS_CA=" + own.tls_ca +
                  ": one authority signs for all ranks, and all name it",
              refusal.rank);
}

// The lower ranks are those that the dialer calls.
void check_progress(const Session& session, const transport::Acceptor& acceptor, const transport::Dialer& dialer) {
  std::vector<int> missing = dialer.missing();
  for (const int rank : acceptor.missing()) missing.push_back(rank);
  const std::string& refused = acceptor.why_refused();
  const std::string obstacle = dialer.obstacle();
  std::string act = "connect";
  if (!refused.empty()) act += " (refused: " + refused + ")";
  if (!obstacle.empty()) act += " (" + obstacle + "; RINGDP_SOCKET_IFNAME chooses the interface)";
  session.store_exchange.check_progress(act, [&] { return missing; });
}

std::vector<transport::Arrival> meet(const Session& session, transport::Acceptor acceptor, transport::Dialer dialer) {
  auto last_look = Deadline::Clock::now();
  std::vector<pollfd> polls;
  while (true) {
    const bool all_came = acceptor.advance(), all_answered = dialer.advance();
    if (dialer.refusal()) refuse_tls(session, *dialer.refusal());
    if (all_came && all_answered) break;
    // Serving garbage must not keep this rank from it.
    if (Deadline::Clock::now() - last_look >= std::chrono::milliseconds(kLookMs)) {
      check_progress(session, acceptor, dialer);
      last_look = Deadline::Clock::now();
    }
    polls.clear();
    acceptor.add_polls(polls);
    dialer.add_polls(polls);
    const int wait_ms = dialer.poll_ms(acceptor.poll_ms(kLookMs));
    if (::poll(polls.data(), polls.size(), wait_ms) < 0 && errno != EINTR) throw_errno("poll");
  }
  if (acceptor.refused() > 0) {
    const std::string& why = acceptor.why_refused();
    log_line(why.empty() ? LogLevel::kDebug : LogLevel::kWarning, session.store_exchange.who(),
             "refused " + std::to_string(acceptor.refused()) + " connections without a valid hello" +
                 (why.empty() ? "" : ", the last: " + why));
  }
  std::vector<transport::Arrival> arrivals = acceptor.take_arrivals();
  for (transport::Arrival& answer : dialer.take_answers()) arrivals.push_back(std::move(answer));
  return arrivals;
}

}  // namespace

transport::Hello Session::hello(int from, int to, transport::Purpose purpose, uint32_t stream) const {
  return {secret.group, store_exchange.generation(), from, to, world(), purpose, secret.token, stream};
}

void throw_malformed(const StoreExchange& store_exchange, const std::string& what, int rank) {
  throw Error(ErrorKind::kInternal,
              "rank " + std::to_string(rank) + " published a malformed " + what + " (store key " +
                  store_exchange.key(what, rank) + "); do all ranks run the same version of ringdp?",
              rank);
}

transport::Socket connect_to_peer(const Session& session, int peer, const Open& open, const Admit& admit) {
  const transport::WaitPolicy policy =
      session.store_exchange.wait_policy("accept a connection", [peer] { return std::vector<int>{peer}; });
  const transport::Hello mine = session.hello(session.rank(), peer, transport::Purpose::kControl);
  for (int pause_ms = kFirstPauseMs;; pause_ms = std::min(2 * pause_ms, kLongestPauseMs)) {
    transport::Socket socket = open(policy);
    if (socket && admit(socket.get(), peer) && exchange_hellos(socket.view(), mine, policy)) return socket;
    transport::pause_for(pause_ms, policy);
  }
}

std::vector<transport::Arrival> accept_peers(const Session& session, int listener,
                                             std::vector<transport::Hello> expected, const Admit& admit) {
  return meet(session, transport::Acceptor(listener, std::move(expected), admit), transport::Dialer({}, nullptr));
}

// There is nothing to check but the token in the hello.
std::vector<transport::Arrival> meet_over_tcp(const Session& session, int listener,
                                              std::vector<transport::Hello> expected,
                                              std::vector<transport::Dialer::Call> calls) {
  const Admit admit = [](int, int) { return true; };
  return meet(session, transport::Acceptor(listener, std::move(expected), admit, session.tls.get()),
              transport::Dialer(std::move(calls), session.tls.get()));
}

}  // namespace ringdp::comm
