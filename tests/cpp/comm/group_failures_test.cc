#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "base/error.h"
#include "comm/fleet.h"
#include "comm/peer_state.h"

namespace ringdp::comm {
namespace {

class Faults : public ::testing::TestWithParam<const char*> {
 protected:
  Settings settings() const { return with({{"transport", GetParam()}}); }
};

TEST_P(Faults, ReduceOpMismatchIsNamedOnEveryRank) {
  const auto errors = run_fleet(3, settings(), [](int rank, Group& group, Runtime&) {
    std::vector<float> data(1000, 1);
    run_op(group, all_reduce(data, rank == 1 ? ReduceOp::kMax : ReduceOp::kSum));
    ADD_FAILURE() << "rank " << rank << " got a result";
  });
  expect_all(errors, {"Mismatch", "reduce op", "rank 1", "MAX", "SUM"});
}

TEST_P(Faults, SizeDtypeAndCollectiveMismatchesAreNamed) {
  const auto differ = [&](const std::function<void(Request&)>& change, const std::vector<std::string>& words) {
    const auto errors = run_fleet(3, settings(), [&](int rank, Group& group, Runtime&) {
      std::vector<float> data(1000, 1);
      Request request = all_reduce(data);
      if (rank == 2) change(request);
      run_op(group, std::move(request));
      ADD_FAILURE() << "rank " << rank << " got a result";
    });
    expect_all(errors, words);
  };
  differ([](Request& r) { r.desc.count = 999; }, {"Mismatch", "element count", "999", "1000"});
  differ([](Request& r) { r.desc.dtype = DType::kI32; }, {"Mismatch", "dtype", "int32", "float32"});
  differ([](Request& r) { r.desc.what = plan::Collective::kBroadcast; },
         {"Mismatch", "collective", "broadcast", "all_reduce"});
}

TEST_P(Faults, RankThatNeverCallsIsNamedAtTheDeadline) {
  const auto errors = run_fleet(3, settings(), [](int rank, Group& group, Runtime&) {
    std::vector<float> data(10, 1);
    Request request = all_reduce(data);
    request.deadline = Deadline::after(std::chrono::milliseconds(300));
    if (rank == 2) {
      while (!group.error()) std::this_thread::yield();  // it is told by the others
      throw *group.error();
    }
    run_op(group, std::move(request));
  });
  expect_all(errors, {"Timeout", "rank 2", "has not called it"});
}

TEST_P(Faults, LeavingEarlyIsNamed) {
  const auto errors = run_fleet(3, settings(), [](int rank, Group& group, Runtime&) {
    std::vector<float> data(10, 1);
    run_op(group, all_reduce(data));
    if (rank == 1) {
      group.leave();
      throw Error(ErrorKind::kPeerLost, "rank 1 has left the group");
    }
    run_op(group, all_reduce(data));
  });
  expect_all(errors, {"PeerLost", "rank 1"});
}

TEST_P(Faults, AllWhoHaveLeftAreNamedAsOneMayHaveLeftBecauseOfAnother) {
  const auto errors = run_fleet(3, settings(), [](int rank, Group& group, Runtime&) {
    if (rank != 0) return;
    for (const int other : {1, 2})
      group.peer_left(other, {ControlKind::kGoodbye});  // nothing but what they say themselves
    std::vector<float> data(10, 1);
    run_op(group, all_reduce(data));
  });
  expect_all({errors[0]}, {"PeerLost", "rank 1 (pid", "; rank 2 (pid", "they will never call"});
}

TEST_P(Faults, LastWordsAreQuotedToThoseWhoWaitAndThoseWhoComeLater) {
  const std::string here = process_of(transport::local_identity());
  const auto errors = run_fleet(3, settings(), [&](int rank, Group& group, Runtime&) {
    std::vector<float> data(10, 1);
    run_op(group, all_reduce(data));
    if (rank == 2) {
      group.leave("ValueError: no data\nmore " + std::string(1000, 'x'));
      return;
    }
    while (rank == 1 && !group.error()) std::this_thread::yield();  // rank 0 tells it
    run_op(group, all_reduce(data));
    ADD_FAILURE() << "rank " << rank << " got a result";
  });
  for (const int rank : {0, 1}) {
    EXPECT_NE(errors[rank].find("rank 2 (" + here), std::string::npos) << errors[rank];
    const std::string said = " has left the group with \"ValueError: no data\" after 1 collectives";
    EXPECT_NE(errors[rank].find(said), std::string::npos) << errors[rank];
  }
}

TEST_P(Faults, LastWordsAreCut) {
  const auto errors = run_fleet(2, settings(), [&](int rank, Group& group, Runtime&) {
    std::vector<float> data(10, 1);
    if (rank == 1) return group.leave(std::string(1000, 'x'));
    run_op(group, all_reduce(data));
  });
  EXPECT_NE(errors[0].find(" with \"" + std::string(kMaxLastWords, 'x') + "\" after"), std::string::npos) << errors[0];
}

TEST_P(Faults, EveryRankIsToldWhatItWasDoing) {
  const auto errors = run_fleet(2, settings(), [&](int rank, Group& group, Runtime&) {
    std::vector<float> data(10, 1);
    if (rank == 0) {
      const auto first = group.submit(all_reduce(data)), second = group.submit(all_reduce(data));
      group.fail(Error(ErrorKind::kPeerLost, "rank 1 went away", 1));
      EXPECT_THROW(group.wait(*first, Deadline::after(kLong)), Error);
      run_op(group, barrier());
    }
    while (!group.error()) std::this_thread::yield();
    run_op(group, all_reduce(data));
  });
  const std::string here = process_of(transport::local_identity());
  EXPECT_NE(errors[0].find("rank 1 (" + here), std::string::npos) << errors[0];
  EXPECT_NE(errors[0].find("went away (this rank called barrier() #3, 0 bytes)"), std::string::npos) << errors[0];
  EXPECT_NE(errors[1].find("rank 0 (" + here), std::string::npos) << errors[1];
  const std::string called = "(this rank called all_reduce(SUM, float32 x 10) #1, 40 bytes)";
  EXPECT_NE(errors[1].find(called), std::string::npos) << errors[1];
}

std::string error_of(const Pending& work) {
  try {
    std::rethrow_exception(work.error());
  } catch (const Error& error) {
    return error.what();
  }
}

TEST_P(Faults, EachCollectiveSaysWhichItIs) {
  run_fleet(2, settings(), [&](int rank, Group& group, Runtime&) {
    std::vector<float> data(10, 1);
    while (rank == 1 && !group.error()) std::this_thread::yield();
    if (rank == 1) return;
    const auto first = group.submit(all_reduce(data)), second = group.submit(barrier());
    group.fail(Error(ErrorKind::kPeerLost, "rank 1 went away", 1));
    EXPECT_THROW(group.wait(*second, Deadline::after(kLong)), Error);
    for (const auto& [op, said] : {std::pair(first, "(this rank was in all_reduce(SUM, float32 x 10) #1, 40 bytes)"),
                                   std::pair(second, "(this rank had queued barrier() #2, 0 bytes)")}) {
      EXPECT_NE(error_of(*op).find(said), std::string::npos) << error_of(*op);
    }
  });
}

TEST_P(Faults, WordsThatNameNoRankOfTheGroupHarmNobody) {
  const auto errors = run_fleet(2, settings(), [&](int rank, Group& group, Runtime&) {
    if (rank == 0) group.peer_aborted(1, {ControlKind::kAbort, ErrorKind::kPeerLost, 1 << 30, 0, "foreign", 1 << 30});
    run_op(group, barrier());
  });
  EXPECT_NE(errors[0].find("rank 1 (" + process_of(transport::local_identity())), std::string::npos) << errors[0];
}

TEST_P(Faults, AbortEndsWorkEverywhereAndFirstErrorWins) {
  const auto errors = run_fleet(3, settings(), [](int rank, Group& group, Runtime&) {
    std::vector<float> data(10, 1);
    if (rank == 0) {
      group.fail(Error(ErrorKind::kAborted, "told to stop"));
      group.fail(Error(ErrorKind::kInternal, "a later reason"));
    }
    run_op(group, all_reduce(data));
  });
  expect_all(errors, {"Aborted", "told to stop"});
}

TEST_P(Faults, LeavingWithWorkInFlightAbortsIt) {
  const auto errors = run_fleet(2, settings(), [](int rank, Group& group, Runtime&) {
    std::vector<float> data(10, 1);
    const auto op = group.submit(all_reduce(data));
    if (rank == 0) {
      group.leave();
      EXPECT_TRUE(op->done());
    }
    group.wait(*op, Deadline::after(std::chrono::seconds(60)));
  });
  // Either both finished before rank 0 left, or rank 0 was aborted and rank 1 lost it: never one without a word.
  if (!errors[0].empty()) {
    EXPECT_NE(errors[0].find("Aborted"), std::string::npos) << errors[0];
  }
}

// Keeps the driver busy, for as long as it is told to.
class Busy : public Drivable {
 public:
  bool active() const override { return !done_; }
  bool advance() override {
    began_ = true;
    while (!may_go_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    done_ = true;
    return true;
  }
  void check_time() override {}
  void set_asleep(bool, std::vector<pollfd>&) override {}
  SpinPolicy spin_policy() const override { return {}; }
  void leave_shared_core() override {}

  std::atomic<bool> began_{false}, may_go_{false}, done_{false};
};

TEST_P(Faults, WorkThatOutlivesItsGroupEndsToo) {
  std::atomic<bool> is_over{false};
  run_fleet(2, settings(), [&](int rank, Group& group, Runtime& runtime) {
    while (rank == 1 && !is_over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (rank == 1) return;
    std::vector<float> data(10, 1);
    const auto op = group.submit(all_reduce(data));
    const auto busy = std::make_shared<Busy>();
    runtime.engine.add(busy);
    runtime.engine.kick();
    while (!busy->began_) std::this_thread::yield();
    group.leave();
    EXPECT_FALSE(op->done());
    busy->may_go_ = true;
    EXPECT_THROW(group.wait(*op, Deadline::after(std::chrono::seconds(20))), Error);
    runtime.engine.remove(busy.get());
    is_over = true;
  });
}

// The exit status of a forked child in which the group refuses a call and says no goodbye in the parent's name: 0.
int status_of_child(Group& group) {
  const pid_t child = ::fork();
  if (child == 0) {
    bool refused = false;
    try {
      group.submit(barrier());
    } catch (const Error&) {
      refused = true;
    }
    group.leave();
    ::_exit(refused ? 0 : 1);
  }
  int status = -1;
  return ::waitpid(child, &status, 0) == child ? status : -1;
}

TEST_P(Faults, ARankThatCannotWatchItsPeersTellsAll) {
  expect_all(run_fleet(3, settings(),
                       [](int rank, Group& group, Runtime&) {
                         if (rank == 1) static_cast<Watched&>(group).watch_failed("epoll_wait: Bad file descriptor");
                         std::vector<float> data(10, 1);
                         run_op(group, all_reduce(data));
                       }),
             {"Internal", "peers of process group fleet cannot be watched any more (epoll_wait: Bad file descriptor)"});
}

TEST_P(Faults, AForkedChildIsRefusedAndHarmsNobody) {
  std::mutex turn;  // a child hangs that was forked while another thread held a lock of the sanitizer's allocator
  std::barrier all_have_forked(2);
  expect_no_errors(run_fleet(2, settings(), [&](int, Group& group, Runtime&) {
    {
      const std::lock_guard lock(turn);
      EXPECT_EQ(status_of_child(group), 0);
    }
    all_have_forked.arrive_and_wait();
    std::vector<float> data(10, 1);
    run_op(group, all_reduce(data));
    EXPECT_EQ(data[0], 2.0f);
  }));
}

INSTANTIATE_TEST_SUITE_P(Transports, Faults, ::testing::Values("shm", "tcp"),
                         [](const auto& p) { return std::string(p.param); });

TEST(GroupNames, AMissingRankIsNamedInTheGroupAndInTheJob) {
  MemoryStore store;
  Runtime runtime;
  try {
    Group::create(runtime, store, {"pair", 0, 2, Settings{}, {4, 7}}, Deadline::after(std::chrono::milliseconds(20)));
    FAIL() << "rank 7 never came";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
    EXPECT_EQ(error.culprit(), 1);
    EXPECT_NE(std::string(error.what()).find("(rank 1 of this group is rank 7 of the job)"), std::string::npos)
        << error.what();
  }
}

// Tensors in heaps after a failure stay shared if every peer has stopped. A peer that is suspended in the middle of its
// pass needs a process of its own: tests/faults/test_death.py.

constexpr int64_t kElements = 1'000'003;

// Whether the page at `at` belongs to a segment.
bool is_shared(const void* at) {
  FILE* maps = std::fopen("/proc/self/maps", "r");
  char line[512];
  bool shared = false;
  while (std::fgets(line, sizeof line, maps)) {
    uintptr_t begin = 0, end = 0;
    if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &begin, &end) != 2) continue;
    const auto place = reinterpret_cast<uintptr_t>(at);
    if (begin <= place && place < end) shared = std::strstr(line, "ringdp-heap") != nullptr;
  }
  std::fclose(maps);
  return shared;
}

Request all_reduce_at(float* tensor, Deadline deadline) {
  Request request;
  request.desc.what = plan::Collective::kAllReduce;
  request.desc.dtype = DType::kF32;
  request.desc.count = kElements;
  request.buffers = {{tensor}, {tensor}};
  request.deadline = deadline;
  return request;
}

// `absent` never calls the all-reduce; with `abort` it fails the group instead of letting the others time out.
void expect_shared_after_failure(int absent, bool abort) {
  const Settings settings = with({{"heap_bytes", "67108864"}});
  const auto errors = run_fleet(3, settings, [&](int rank, Group& group, Runtime&) {
    const auto heap = group.heap();
    auto* const tensor = reinterpret_cast<float*>(heap->take(kElements * 4));
    std::fill_n(tensor, kElements, 1.0f);
    if (rank == absent) {
      if (abort) group.fail(Error(ErrorKind::kAborted, "enough"));
      while (!group.error()) std::this_thread::yield();
      throw *group.error();
    }
    const auto deadline = Deadline::after(std::chrono::milliseconds(abort ? 60'000 : 300));
    try {
      group.wait(*group.submit(all_reduce_at(tensor, deadline)), Deadline::never());
      ADD_FAILURE() << "rank " << rank << " got a result";
    } catch (const Error&) {
      EXPECT_TRUE(is_shared(tensor)) << "rank " << rank;
      EXPECT_EQ(std::count(tensor, tensor + kElements, 1.0f), kElements) << "nobody began";
      throw;
    }
  });
  const char* const words = abort ? "enough" : "has not called it";
  for (const std::string& error : errors) EXPECT_NE(error.find(words), std::string::npos) << error;
}

TEST(GroupFence, PeersThatHaveStoppedNeedNone) {
  for (const int absent : {0, 2}) {
    expect_shared_after_failure(absent, true);
    expect_shared_after_failure(absent, false);
  }
}

}  // namespace
}  // namespace ringdp::comm
