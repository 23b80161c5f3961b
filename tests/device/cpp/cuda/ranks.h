// What ranks over the stand-in run, where it lies in their memory, and how they tell each other of it.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "device/cpp/cuda/stand_in.h"
#include "device/cpp/kernel/host_run.h"
#include "device/runtime/launch.h"

namespace ringdp::gpu::testing {

struct RankCase {
  int world = 2;
  plan::DeviceAlgorithm algorithm = plan::DeviceAlgorithm::kDirect;
  plan::Collective what = plan::Collective::kAllReduce;
  DType dtype = DType::kF32;
  int64_t packs = 37;
  int executor = RD_GPU_SPIN, sharing = RD_GPU_SHARE_AUTO;
  bool one_device = false;  // else each rank takes the next of two
  int launches = 3, blocks = 1;
  uint64_t deadline_ns = 30'000'000'000;
  int64_t segment_bytes = plan::Problem{}.segment_bytes;
};

struct Share {
  rd_gpu_handle handle;
  int fd;
};

class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual std::vector<Share> all(const Share& mine) = 0;  // by rank; descriptors are the receiver's
  virtual void bootstrap() = 0;
};

// Where everything lies in a rank's memory.
struct RankLayout {
  explicit RankLayout(const plan::DevicePlan& plan) {
    const size_t size = size_of(plan.dtype);
    flags = take(sizeof(Flags));
    epoch = take(sizeof(Epoch));
    stage = take(plan.stage_bytes);
    pushed = take(2 * plan.world * plan.pushed_bytes);
    input = take(plan.input * size);
    output = take(plan.output * size);
  }
  size_t flags, epoch, stage, pushed, input, output, bytes = 0;

 private:
  size_t take(size_t wanted) {
    const size_t at = bytes;
    bytes += (wanted + 4095) / 4096 * 4096;
    return at;
  }
};

// The flags of STREAM, of all ranks: host memory that all of them map. One per process.
class StreamFlags {
 public:
  static constexpr size_t kBytes = plan::kMaxDeviceRanks * sizeof(Flags);

  // `fd`: the file that all processes of a group map; -1: memory of this process.
  explicit StreamFlags(int fd = -1) {
    void* const at = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0);
    if (at == MAP_FAILED) throw std::runtime_error("mmap");
    host = static_cast<Flags*>(at);
    void* mapped = nullptr;
    succeed(gpu().host_map(host, kBytes, &mapped));
    device = static_cast<Flags*>(mapped);
  }
  ~StreamFlags() {
    gpu().host_unmap(host);
    munmap(host, kBytes);
  }
  StreamFlags(const StreamFlags&) = delete;
  StreamFlags& operator=(const StreamFlags&) = delete;

  Flags *host = nullptr, *device = nullptr;  // by rank
};

// One rank of a group over the stand-in: shares its memory, runs plans, compares its output with the serial fold.
//
// The same text runs in a thread and in a process of its own; what differs is the Exchange. Made and ended by all ranks
// together; a call that fails throws.

class GpuRank {
 public:
  GpuRank(const RankCase& one, int rank, Exchange& exchange, StreamFlags& flags)
      : case_(one),
        exchange_(exchange),
        plans_(plan::testing::device_plans(one.algorithm, problem())),
        plan_(plans_[rank]),
        layout_(plan_),
        rank_(rank),
        flags_(flags) {
    set_device(device());
    stream_.emplace();
    words_.emplace(sizeof(Expired) + 64);
    share();
    describe();
  }

  ~GpuRank() {
    stream_->synchronize();
    exchange_.bootstrap();
    for (void* const peer : peers_) EXPECT_EQ(gpu().unimport_memory(peer), 0) << gpu().error();
    exchange_.bootstrap();
    EXPECT_EQ(gpu().free(base_), 0) << gpu().error();
  }

  // "" or what is wrong.
  std::string run() {
    for (int launch = 0; launch < case_.launches; ++launch) {
      const Inputs inputs = inputs_of_launch(launch);
      enqueue(inputs[rank_], launch);
      stream_->synchronize();
      if (expired().set != 0) return "rank " + std::to_string(rank_) + " gave up";
      if (!plan::testing::has_output(plan_, problem().root) || output_ == right(inputs)) continue;
      return text_of(plan_) + ": launch " + std::to_string(launch) + " is wrong";
    }
    return "";
  }

  void enqueue(const std::vector<char>& input, int launch) {
    work_.stream_epoch = launch + 1;
    output_.assign(plan_.output * size_of(case_.dtype), 0);
    kept_ = input;
    void* const stream = stream_->handle();
    succeed(gpu().copy(work_.input[rank_], kept_.data(), kept_.size(), stream));
    const int element = static_cast<int>(case_.dtype), reduce = static_cast<int>(op());
    succeed(gpu().run(&work_, sizeof work_, element, reduce, case_.executor, stream));
    succeed(gpu().copy(output_.data(), work_.output[rank_], output_.size(), stream));
  }

  std::vector<char> right(const Inputs& inputs) const { return expected(plan_, inputs, problem().root, divisor()); }

  Inputs inputs_of_launch(int launch) const {
    Inputs inputs;
    for (const plan::DevicePlan& plan : plans_) {
      inputs.emplace_back(plan.input * size_of(plan.dtype));
      fill(inputs.back().data(), plan.dtype, plan.input, launch * 64 + plan.rank);
    }
    return inputs;
  }

  const Expired& expired() const { return *static_cast<const Expired*>(words_->host); }
  void abort() { __atomic_store_n(static_cast<uint32_t*>(words_->host) + sizeof(Expired) / 4, 1u, __ATOMIC_RELEASE); }
  TestStream& stream() { return *stream_; }
  const Work& work() const { return work_; }
  Launched launched() const { return {std::make_shared<const plan::DevicePlan>(plan_), work_.stream_epoch}; }
  const std::vector<char>& output() const { return output_; }
  Flags& stream_flags() { return flags_.host[rank_]; }

 private:
  plan::Problem problem() const {
    plan::Problem problem =
        plan::testing::device_problem({case_.algorithm, case_.what}, case_.world, case_.packs, case_.dtype);
    problem.op = op();
    problem.segment_bytes = case_.segment_bytes;
    return problem;
  }
  bool averages() const { return case_.dtype == DType::kF32; }
  ReduceOp op() const { return averages() ? ReduceOp::kAvg : ReduceOp::kSum; }
  double divisor() const { return averages() ? 3 : 0; }
  int device() const { return case_.one_device ? 0 : rank_ % 2; }

  void share() {
    succeed(gpu().alloc(device(), layout_.bytes, case_.sharing, reinterpret_cast<void**>(&base_)));
    Share mine{};
    succeed(gpu().export_memory(base_, &mine.handle, &mine.fd));
    const std::vector<Share> all = exchange_.all(mine);
    for (const Share& share : all) {
      void* peer = nullptr;
      succeed(gpu().import_memory(device(), &share.handle, share.fd, &peer));
      peers_.push_back(static_cast<char*>(peer));
      if (share.fd >= 0) close(share.fd);
    }
  }

  void describe() {
    char* const words = static_cast<char*>(words_->device);
    work_.rank = rank_;
    work_.world = case_.world;
    work_.blocks = case_.blocks;
    work_.steps = static_cast<int32_t>(plan_.steps.size());
    work_.epoch = reinterpret_cast<Epoch*>(base_ + layout_.epoch);
    work_.spans_devices = case_.executor == RD_GPU_STREAM && case_.world > 1 && !case_.one_device;
    work_.deadline_ns = case_.deadline_ns;
    work_.divisor = divisor();
    work_.pushed_bytes = plan_.pushed_bytes;
    work_.expired = reinterpret_cast<Expired*>(words);
    work_.abort = reinterpret_cast<uint32_t*>(words + sizeof(Expired));
    std::copy(plan_.steps.begin(), plan_.steps.end(), work_.step);
    for (int r = 0; r < case_.world; ++r) place(r);
  }

  void place(int r) {
    work_.input[r] = peers_[r] + layout_.input;
    work_.output[r] = peers_[r] + layout_.output;
    work_.stage[r] = peers_[r] + layout_.stage;
    work_.pushed[r] = peers_[r] + layout_.pushed;
    work_.flags[r] =
        case_.executor == RD_GPU_SPIN ? reinterpret_cast<Flags*>(peers_[r] + layout_.flags) : &flags_.device[r];
  }

  const RankCase case_;
  Exchange& exchange_;
  const std::vector<plan::DevicePlan> plans_;
  const plan::DevicePlan& plan_;
  const RankLayout layout_;
  const int rank_;
  StreamFlags& flags_;
  std::optional<TestStream> stream_;
  std::optional<Pinned> words_;
  char* base_ = nullptr;
  std::vector<char*> peers_;
  Work work_ = {};
  std::vector<char> kept_, output_;
};

// Ranks that are threads of this process.

class ThreadExchange final : public Exchange {
 public:
  ThreadExchange(int rank, std::vector<Share>& shares, std::barrier<>& barrier)
      : rank_(rank), shares_(shares), barrier_(barrier) {}
  std::vector<Share> all(const Share& mine) override {
    shares_[rank_] = mine;
    bootstrap();
    std::vector<Share> all = shares_;
    for (Share& share : all) share.fd = share.fd < 0 ? -1 : dup(share.fd);
    bootstrap();
    if (mine.fd >= 0) close(mine.fd);
    return all;
  }
  void bootstrap() override { barrier_.arrive_and_wait(); }

 private:
  const int rank_;
  std::vector<Share>& shares_;
  std::barrier<>& barrier_;
};

// What `body` says of each rank, which is there until all have said it.
using RankBody = std::function<std::string(GpuRank&, int rank)>;
inline std::vector<std::string> run_threads(const RankCase& one, const RankBody& body) {
  std::vector<std::string> said(one.world);
  std::vector<Share> shares(one.world);
  std::barrier barrier(one.world);
  StreamFlags flags;
  std::vector<std::thread> threads;
  for (int r = 0; r < one.world; ++r) {
    threads.emplace_back([&, r] {
      ThreadExchange exchange(r, shares, barrier);
      GpuRank rank(one, r, exchange, flags);
      said[r] = body(rank, r);
      exchange.bootstrap();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return said;
}

inline std::vector<std::string> run_threads(const RankCase& one) {
  return run_threads(one, [](GpuRank& rank, int) { return rank.run(); });
}

// Ranks that are processes of their own: this program again, told by the environment what to run.
//
// A fork alone would inherit the library without its threads.

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
  void bootstrap() override {
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
