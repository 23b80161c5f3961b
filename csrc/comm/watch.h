// Watches the peers of all groups of a process: which died, failed or left; and the messages on their control sockets.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/unique_fd.h"
#include "comm/peer_state.h"
#include "transport/doorbell.h"
#include "transport/socket.h"

namespace ringdp::comm {

// The control socket of a pair carries heartbeats, failures and goodbyes.
enum class ControlKind : uint8_t { kHeartbeat, kAbort, kGoodbye };

struct ControlMessage {
  ControlKind kind = ControlKind::kHeartbeat;
  ErrorKind error = ErrorKind::kInternal;  // kAbort: what the sender latched
  int32_t culprit = -1;                    // kAbort: group rank at fault
  uint64_t seq = 0;                        // kGoodbye: collectives the sender has finished
  std::string text;     // kAbort: its message; kGoodbye: the exception, if any; cut to kMaxText bytes
  int32_t origin = -1;  // kAbort: the rank that failed first; others forward its message
};

constexpr size_t kMaxText = 1500;
constexpr size_t kMaxLastWords = 200;  // bytes of a goodbye's text that errors quote

std::string encode(const ControlMessage& message);

// Cuts a byte stream into messages. Buffers at most one message, whatever the peer sends.
class ControlParser {
 public:
  // Appends received bytes and returns the complete messages, with printable texts. Error(kInternal) on other bytes.
  std::vector<ControlMessage> feed(const char* bytes, size_t size);

 private:
  std::string pending_;
};

// Best effort and non-blocking: on a full or broken socket the message is lost, and the peer notices the close.
void send_control(transport::SocketView socket, const ControlMessage& message);

enum class Drained { kOpen, kClosed, kUnreachable };  // kUnreachable: the connection timed out
// Reads what has arrived and appends its messages. Never blocks. Error(kInternal) as from feed().
Drained drain_control(transport::SocketView socket, ControlParser& parser, std::vector<ControlMessage>& messages);

// Notified by the watch; a group. Called by the watch thread.
class Watched {
 public:
  virtual ~Watched() = default;
  virtual void peer_aborted(int rank, const ControlMessage& message) = 0;
  virtual void peer_left(int rank, const ControlMessage& goodbye) = 0;
  virtual void peer_lost(int rank, const std::string& how) = 0;  // gone without a goodbye
  virtual void watch_failed(const std::string& why) = 0;         // the watch itself has failed
  virtual std::vector<Loss> losses() const { return {}; }        // any thread
};

// The group owns sockets and descriptors, and the watch keeps the group alive while it looks at them.
struct WatchedPeer {
  int rank = -1;
  transport::SocketView control = -1;
  int pidfd = -1;  // -1: none
  bool heartbeat = false;
};

// One thread. It watches peers on the same host by pidfd and the hang-up of their unix socket, others by their TCP
// control socket: with heartbeats on it, TCP_USER_TIMEOUT breaks it when the network is cut. It never throws.
class Watch {
 public:
  explicit Watch(std::function<void()> tick);  // also called about ten times a second
  ~Watch();                                    // joins the thread

  // Any thread. Error(kInternal) when the kernel refuses to watch that many.
  void add(std::shared_ptr<Watched> group, const std::vector<WatchedPeer>& peers);
  void remove(const Watched* group);
  std::vector<Loss> losses();  // of all groups

 private:
  struct Entry {
    std::shared_ptr<Watched> group;
    WatchedPeer peer;
    ControlParser parser;
  };
  using Entries = std::vector<std::shared_ptr<Entry>>;

  using Test = std::function<bool(const Entry&)>;

  void loop();
  void look_at(int fd);
  void look(Entry& entry, bool process_gone);
  void fail(const std::string& why);
  void forget(const Test& which);  // under mutex_
  Entries snapshot();
  std::vector<std::shared_ptr<Watched>> groups();

  std::function<void()> tick_;
  transport::Doorbell wake_;
  UniqueFd poll_;  // epoll: poll(2) accepts no more descriptors than a process may open
  std::mutex mutex_;
  Entries entries_;
  std::map<int, Entries> by_fd_;  // the descriptors in poll_; groups share pidfds
  std::vector<std::shared_ptr<Watched>> groups_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace ringdp::comm
