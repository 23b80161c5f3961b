// Watches the peers of all groups of a process beside the data path: who died, who failed, who left.
//
// One thread. Same-host peers by pidfd and the unix socket's hang-up, others by the TCP control socket's (heartbeats
// keep TCP_USER_TIMEOUT honest, so a cut network shows as a broken socket). It never throws; it tells the group.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "comm/control.h"
#include "comm/loss.h"
#include "transport/doorbell.h"

namespace ringdp::comm {

class Watched {
 public:
  virtual ~Watched() = default;
  virtual void peer_aborted(int rank, const ControlMessage& message) = 0;
  virtual void peer_left(int rank, const ControlMessage& goodbye) = 0;
  virtual void peer_lost(int rank, const std::string& how) = 0;  // gone without goodbye
  virtual void unwatched(const std::string& why) = 0;            // the watch itself has failed
  virtual std::vector<Loss> losses() const { return {}; }        // any thread
};

// Sockets and descriptors stay owned by the group, which the watch keeps alive while it looks at them.
struct WatchedPeer {
  int rank = -1;
  transport::SocketView control = -1;
  int pidfd = -1;  // -1: none
  bool heartbeat = false;
};

class Watch {
 public:
  explicit Watch(std::function<void()> tick);  // also called about ten times a second
  ~Watch();                                    // joins the thread

  // Error(kInternal) when the kernel will not watch that many.
  void add(std::shared_ptr<Watched> group, const std::vector<WatchedPeer>& peers);
  void remove(const Watched* group);
  std::vector<Loss> losses();  // of all groups that are there

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
  UniqueFd poll_;  // epoll: poll(2) takes no more descriptors than a process may have open
  std::mutex mutex_;
  Entries entries_;
  std::map<int, Entries> by_fd_;  // what poll_ looks at; groups share pidfds
  std::vector<std::shared_ptr<Watched>> groups_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace ringdp::comm
