// Ranks that are processes of their own: this program again, told by the environment what to run.
//
// A fork alone would inherit the library without its threads.
#pragma once
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <tuple>

#include "gpu/cuda/gpu_rank.h"

namespace ringdp::gpu::testing {

// What a rank is born with: descriptors of the group's stream flags and of a socket to each peer (-1: itself).
struct Birth {
  RankCase one;
  int rank = 0, flags = -1;
  int peers[plan::kMaxDeviceRanks];
};
constexpr char kBirth[] = "STAND_IN_BIRTH";  // a descriptor of a file that holds one

inline void send_share(int socket, const Share& share) {
  struct iovec data = {const_cast<Share*>(&share), sizeof share};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (share.fd >= 0) {
    message.msg_control = room;
    message.msg_controllen = sizeof room;
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    *header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    std::memcpy(CMSG_DATA(header), &share.fd, sizeof(int));
  }
  if (sendmsg(socket, &message, MSG_NOSIGNAL) != sizeof share) throw std::runtime_error("a peer is gone");
}

inline Share receive_share(int socket) {
  Share share{};
  struct iovec data = {&share, sizeof share};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof room;
  if (recvmsg(socket, &message, 0) != sizeof share) throw std::runtime_error("a peer is gone");
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header != nullptr) std::memcpy(&share.fd, CMSG_DATA(header), sizeof(int));
  return share;
}

class ProcessExchange final : public Exchange {
 public:
  explicit ProcessExchange(const Birth& birth) : birth_(birth) {}
  std::vector<Share> all(const Share& mine) override {
    std::vector<Share> all;
    for (int r = 0; r < birth_.one.world; ++r) {
      if (r != birth_.rank) send_share(birth_.peers[r], mine);
    }
    for (int r = 0; r < birth_.one.world; ++r) all.push_back(r == birth_.rank ? mine : receive_share(birth_.peers[r]));
    return all;
  }
  void meet() override {
    const Share nothing{{}, -1};
    all(nothing);
  }

 private:
  const Birth birth_;
};

// All ranks of a group. In the child nothing of this program but the test `name` runs.
class Processes {
 public:
  Processes(const RankCase& one, const char* name) {
    const int flags = memfd_create("stream-flags", MFD_CLOEXEC);
    if (ftruncate(flags, StreamFlags::kBytes) != 0) throw std::runtime_error("ftruncate");
    std::vector<Birth> births(one.world);
    for (int a = 0; a < one.world; ++a) {
      births[a].one = one;
      births[a].rank = a;
      births[a].flags = flags;
      for (int b = 0; b < a; ++b) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) throw std::runtime_error("socketpair");
        births[a].peers[b] = pair[0];
        births[b].peers[a] = pair[1];
      }
    }
    for (const Birth& birth : births) pids_.push_back(born(birth, name));
    for (const Birth& birth : births) {
      for (int r = 0; r < one.world; ++r) {
        if (r != birth.rank) close(birth.peers[r]);
      }
    }
    close(flags);
  }
  ~Processes() {
    for (const pid_t pid : pids_) kill(pid, SIGKILL);
    for (const pid_t pid : pids_) waitpid(pid, nullptr, 0);
  }
  // By rank; 0 where the test passed.
  std::vector<int> statuses() {
    std::vector<int> statuses;
    for (const pid_t pid : pids_) {
      int status = -1;
      waitpid(pid, &status, 0);
      statuses.push_back(status);
    }
    pids_.clear();
    return statuses;
  }

 private:
  static pid_t born(const Birth& birth, const char* name) {
    const int file = memfd_create("birth", MFD_CLOEXEC);
    if (pwrite(file, &birth, sizeof birth, 0) != sizeof birth) throw std::runtime_error("pwrite");
    const std::string filter = std::string("--gtest_filter=") + name;
    const std::string told = std::string(kBirth) + "=" + std::to_string(file);
    std::vector<char*> environment;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      if (std::strncmp(*entry, "GTEST_", 6) != 0) environment.push_back(*entry);
    }
    environment.insert(environment.end(), {const_cast<char*>(told.c_str()), nullptr});
    char* const arguments[] = {const_cast<char*>("rank"), const_cast<char*>(filter.c_str()),
                               const_cast<char*>("--gtest_brief=1"), nullptr};
    std::vector<int> descriptors = {file, birth.flags};
    for (int r = 0; r < birth.one.world; ++r) descriptors.push_back(r == birth.rank ? file : birth.peers[r]);
    const pid_t pid = fork();
    if (pid == 0) {
      for (const int fd : descriptors) fcntl(fd, F_SETFD, 0);  // it keeps these only
      execve("/proc/self/exe", arguments, environment.data());
      _exit(127);
    }
    close(file);
    return pid;
  }
  std::vector<pid_t> pids_;
};

// In the child: what it was born with. In the parent: nothing.
inline std::optional<Birth> birth_of_this_process() {
  const char* const told = getenv(kBirth);
  if (told == nullptr) return std::nullopt;
  Birth birth;
  if (pread(atoi(told), &birth, sizeof birth, 0) != sizeof birth) throw std::runtime_error("pread");
  return birth;
}

}  // namespace ringdp::gpu::testing
