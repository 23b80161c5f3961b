#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <optional>

#include "base/bytes.h"
#include "comm/bootstrap_steps.h"

namespace ringdp::comm {
namespace {

using transport::Segment;

constexpr size_t kNonceBytes = 16;
constexpr std::byte kShared{'S'}, kNothing{'N'};
constexpr size_t kLongestFailure = 400;
constexpr char kVerdict[] = "verdict", kWorked[] = "ok";
constexpr char kNoSharedMemory[] = "another rank cannot share memory";
// How long a rank that has published its socket may refuse connections.
constexpr std::chrono::milliseconds kRefusal{500};

// "I wrote this nonce into your segment", or kNothing when I could not map it.
struct ProbeFrame {
  std::byte mark{};
  std::array<std::byte, kNonceBytes> nonce{};
};
static_assert(sizeof(ProbeFrame) == 1 + kNonceBytes);

// Thrown when memory will certainly not be shared: the ranks only have to agree on that.
struct NoSharedMemory {};

// One rank's side of the exchange; the steps run in the order they are declared.
class Exchange {
 public:
  Exchange(const Session& session, const std::vector<int>& locals, const std::vector<PeerInfo>& infos)
      : session_(session), locals_(locals), cards_(infos) {
    int64_t heap_bytes = INT64_MAX;
    for (const int rank : locals) heap_bytes = std::min(heap_bytes, info_of(rank).heap_bytes);
    result_.layout = segment_layout(session.settings, static_cast<int>(locals.size()), heap_bytes);
    session.store_exchange.on_look([this](const std::vector<int>& missing) { look_for_verdicts(missing); });
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  ~Exchange() { session_.store_exchange.on_look({}); }

  void connect(int listener);
  void make_segment();
  void send_offers(const transport::Doorbell& doorbell);
  void receive_offers();
  void send_probes();
  void check_probes();
  void agree();
  ShmExchange finish(const transport::Doorbell& doorbell);

 private:
  const PeerInfo& info_of(int rank) const { return cards_[static_cast<size_t>(rank)]; }
  transport::WaitPolicy policy_for(int rank) const {
    return session_.store_exchange.wait_policy("share its memory", [rank] { return std::vector<int>{rank}; });
  }
  UniqueFd open(int rank);
  void look_for_verdicts(const std::vector<int>& ranks);
  [[noreturn]] void give_up(const std::string& why);
  [[noreturn]] void lose(int rank);
  void fail(const std::string& what);
  std::byte* probe_area(const Segment& segment, int writer) const;
  int member_of(int rank) const {
    return static_cast<int>(std::find(locals_.begin(), locals_.end(), rank) - locals_.begin());
  }

  const Session& session_;
  const std::vector<int>& locals_;
  const std::vector<PeerInfo>& cards_;
  std::optional<Segment> own_;
  std::map<int, transport::LocalMember> received_;
  std::map<int, Deadline> refused_;  // by rank: until when it may refuse connections
  std::string failure_;              // the first one on this rank
  ShmExchange result_;
};

void Exchange::connect(int listener) {
  const int self = session_.rank();
  // Other processes know neither the socket's name nor the group's token, so it is that rank, and the kernel reports
  // its credentials differently here.
  const Admit admit = [&](int socket, int rank) {
    if (transport::is_process(socket, info_of(rank).identity, info_of(self).identity)) return true;
    give_up("rank " + std::to_string(rank) + "'s unix socket has other credentials than it published");
  };
  std::vector<transport::Hello> expected;
  for (const int rank : locals_) {
    if (rank > self) expected.push_back(session_.hello(rank, self, transport::Purpose::kControl));
    if (rank >= self) continue;
    const Open to_rank = [&](const transport::WaitPolicy&) { return open(rank); };
    result_.controls[rank] = connect_to_peer(session_, rank, to_rank, admit);
  }
  for (auto& arrival : accept_peers(session_, listener, std::move(expected), admit)) {
    result_.controls[arrival.hello.from] = std::move(arrival.socket);
  }
}

// Empty while the rank does not listen. If it has died or failed, the store exchange will throw; otherwise it is on
// another machine (see is_absent() in identity.h).
UniqueFd Exchange::open(int rank) {
  try {
    return transport::connect_unix(info_of(rank).socket_name);
  } catch (const Error&) {
    if (errno != ECONNREFUSED) throw;
  }
  const auto refused = refused_.emplace(rank, Deadline::after(kRefusal)).first->second;
  if (refused.passed()) give_up("nobody listens on rank " + std::to_string(rank) + "'s unix socket");
  return UniqueFd();
}

void Exchange::make_segment() {
  try {
    result_.heap = transport::OwnHeap::acquire(session_.group, result_.layout.heap_bytes, member_of(session_.rank()),
                                               result_.layout.members);
    own_.emplace(Segment::create(result_.layout));
  } catch (const Error& error) {
    fail(std::string("cannot make shared memory: ") + error.what());
  }
}

void Exchange::send_offers(const transport::Doorbell& doorbell) {
  std::vector<int> fds;
  if (own_) fds = {own_->fd(), doorbell.fd()};
  if (own_ && result_.heap.memory()) fds.push_back(result_.heap.memory()->fd());
  for (const auto& [rank, socket] : result_.controls) {
    if (!transport::send_fds(socket.get(), own_ ? kShared : kNothing, fds, policy_for(rank))) lose(rank);
  }
}

void Exchange::receive_offers() {
  for (const auto& [rank, socket] : result_.controls) {
    transport::FdParcel parcel = transport::recv_fds(socket.get(), policy_for(rank));
    if (!parcel.open) lose(rank);
    // That rank's own verdict says why it cannot share memory.
    if (parcel.mark != kShared) continue;
    if (parcel.cut) {
      fail("no room for the descriptors of rank " + std::to_string(rank) +
           ": raise the limit on open files (ulimit -n)");
      continue;
    }
    const size_t wanted = result_.layout.heap_bytes > 0 ? 3 : 2;
    if (parcel.fds.size() != wanted) {
      fail("rank " + std::to_string(rank) + " sent " + std::to_string(parcel.fds.size()) + " descriptors, not " +
           std::to_string(wanted));
      continue;
    }
    try {
      Segment segment = Segment::map(std::move(parcel.fds[0]), result_.layout);
      auto bell = transport::Doorbell::of_peer(std::move(parcel.fds[1]));
      std::shared_ptr<const Segment> heap;
      if (wanted == 3) {
        heap = std::make_shared<const Segment>(Segment::map_heap(std::move(parcel.fds[2]), result_.layout.heap_bytes));
      }
      received_.emplace(rank, transport::LocalMember{std::move(segment), std::move(bell), std::move(heap)});
    } catch (const Error& error) {
      fail("cannot map the memory of rank " + std::to_string(rank) + ": " + error.what());
    }
  }
}

void Exchange::send_probes() {
  for (const auto& [rank, socket] : result_.controls) {
    ProbeFrame frame{kNothing, {}};
    if (const auto found = received_.find(rank); found != received_.end()) {
      frame.mark = kShared;
      transport::fill_random(frame.nonce.data(), kNonceBytes);
      std::memcpy(probe_area(found->second.segment, session_.rank()), frame.nonce.data(), kNonceBytes);
    }
    if (!transport::send_all(socket.get(), &frame, sizeof frame, policy_for(rank))) lose(rank);
  }
}

void Exchange::check_probes() {
  for (const auto& [rank, socket] : result_.controls) {
    ProbeFrame frame;
    if (!transport::recv_all(socket.get(), &frame, sizeof frame, policy_for(rank))) lose(rank);
    if (frame.mark != kShared || !own_) continue;
    std::byte* area = probe_area(*own_, rank);
    if (std::memcmp(area, frame.nonce.data(), kNonceBytes) != 0) {
      fail("what rank " + std::to_string(rank) + " wrote into the mapping did not arrive");
    }
    // Slots start as zeros.
    std::memset(area, 0, kNonceBytes);
  }
}

void Exchange::agree() {
  session_.store_exchange.on_look({});
  session_.store_exchange.publish(kVerdict, failure_.empty() ? kWorked : failure_);
  const std::vector<std::string> verdicts = session_.store_exchange.gather(kVerdict, locals_);
  result_.probe.outcome = transport::Probe::Outcome::kWorked;
  for (size_t i = verdicts.size(); i-- > 0;) {
    if (verdicts[i] == kWorked || verdicts[i] == kNoSharedMemory) continue;
    result_.probe = {transport::Probe::Outcome::kFailed,
                     "rank " + std::to_string(locals_[i]) + ": " + verdicts[i].substr(0, kLongestFailure)};
  }
}

ShmExchange Exchange::finish(const transport::Doorbell& doorbell) {
  if (result_.probe.outcome != transport::Probe::Outcome::kWorked) {
    result_.controls.clear();
    return std::move(result_);
  }
  own_->close_fd();  // the verdicts show that all peers have mapped it
  received_.emplace(session_.rank(), transport::LocalMember{std::move(*own_), doorbell, result_.heap.memory()});
  // A std::map visits ranks in ascending order, which is the order of member numbers.
  for (auto& [rank, member] : received_) result_.members.push_back(std::move(member));
  return std::move(result_);
}

// The reason is published before any socket closes, so that peers do not report this rank as lost.
void Exchange::give_up(const std::string& why) {
  fail(why);
  session_.store_exchange.publish(kVerdict, failure_);
  throw NoSharedMemory{};
}

void Exchange::look_for_verdicts(const std::vector<int>& ranks) {
  for (const int rank : ranks) {
    const auto verdict = session_.store_exchange.peek(kVerdict, rank);
    if (verdict && *verdict != kWorked) give_up(kNoSharedMemory);
  }
}

void Exchange::lose(int rank) {
  look_for_verdicts({rank});
  throw Error(ErrorKind::kPeerLost,
              "rank " + std::to_string(rank) + " (pid " + std::to_string(info_of(rank).identity.pid) +
                  ") closed its socket during the rendezvous; see its own output",
              rank);
}

void Exchange::fail(const std::string& what) {
  if (failure_.empty()) failure_ = what;
}

// Each writer has its own area in the owner's first slot, which no collective uses yet.
std::byte* Exchange::probe_area(const Segment& segment, int writer) const {
  return segment.data() + result_.layout.slot_offset(0) + member_of(writer) * static_cast<int64_t>(kNonceBytes);
}

}  // namespace

int64_t planned_slot_bytes(const Settings& settings) {
  constexpr int64_t kCacheLine = 64;
  return align_up(settings.slot_bytes, kCacheLine);
}

transport::SegmentLayout segment_layout(const Settings& settings, int members, int64_t heap_bytes) {
  const auto stream_bytes = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(settings.link_bytes)));
  // Large enough for the probes of all members, in whole cache lines.
  const int64_t probes = align_up(members * static_cast<int64_t>(kNonceBytes), 64);
  return {members, std::max(planned_slot_bytes(settings), probes), stream_bytes, heap_bytes};
}

ShmExchange exchange_memory(const Session& session, const std::vector<int>& locals, const std::vector<PeerInfo>& infos,
                            const transport::UnixListener& listener, const transport::Doorbell& doorbell) {
  Exchange exchange(session, locals, infos);
  try {
    exchange.connect(listener.fd.get());
    exchange.make_segment();
    exchange.send_offers(doorbell);
    exchange.receive_offers();
    exchange.send_probes();
    exchange.check_probes();
  } catch (const NoSharedMemory&) {
  }
  exchange.agree();
  return exchange.finish(doorbell);
}

std::vector<int> contiguous_hosts(const std::vector<PeerInfo>& infos) {
  const auto same = [&](size_t a, size_t b) { return transport::same_host(infos[a].identity, infos[b].identity).same; };
  std::vector<int> hosts;
  for (size_t rank = 0; rank < infos.size(); ++rank) {
    if (rank > 0 && same(rank - 1, rank)) continue;
    const auto seen = [&](int first) { return same(static_cast<size_t>(first), rank); };
    if (std::any_of(hosts.begin(), hosts.end(), seen)) return {};  // the ranks of a host are not contiguous
    hosts.push_back(static_cast<int>(rank));
  }
  return hosts;
}

std::vector<int> agree_on_hosts(const Session& session, const std::vector<PeerInfo>& infos, bool mine_shares_memory) {
  const std::vector<int> hosts = contiguous_hosts(infos);
  if (hosts.empty() || hosts.size() == infos.size()) return hosts;
  constexpr char kWhat[] = "shares", kYes[] = "yes";
  session.store_exchange.publish(kWhat, mine_shares_memory ? kYes : "no");
  std::vector<int> ranks(infos.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  const std::vector<std::string> answers = session.store_exchange.gather(kWhat, ranks);
  const bool all = std::all_of(answers.begin(), answers.end(), [&](const std::string& said) { return said == kYes; });
  return all ? hosts : std::vector<int>{};
}

}  // namespace ringdp::comm
