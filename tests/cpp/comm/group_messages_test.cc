#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>

#include "comm/fleet.h"

namespace ringdp::comm {
namespace {

class GroupMessages : public ::testing::TestWithParam<const char*> {
 protected:
  Settings settings() const {
    return with({{"transport", GetParam()}, {"link_bytes", "4096"}, {"slot_bytes", "4096"}});
  }
};

void wait(Group& group, const Pending& work) { ASSERT_TRUE(group.wait(work, Deadline::after(kLong))); }

MessageRequest within(std::chrono::milliseconds time, MessageRequest request) {
  request.deadline = Deadline::after(time);
  return request;
}

std::vector<float> values(size_t count, int from, int to, int32_t tag) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(from * 1000 + to * 100 + tag * 10 + i % 7);
  return values;
}

TEST_P(GroupMessages, ARingOfBlockingCallsTurns) {
  for (const int world : {2, 5}) {
    expect_no_errors(run_fleet(world, settings(), [world](int rank, Group& group, Runtime&) {
      const int next = (rank + 1) % world, previous = (rank + world - 1) % world;
      for (const size_t count : {0, 1, 50'000}) {
        std::vector<float> out = values(count, rank, next, 0), in(count);
        const auto send = [&] { wait(group, *group.send(message(out, next))); };
        if (rank % 2 == 0) send();
        wait(group, *group.recv(message(in, previous)));
        if (rank % 2 == 1) send();
        EXPECT_EQ(in, values(count, previous, rank, 0));
      }
    }));
  }
}

TEST_P(GroupMessages, ABatchToAllFromAllWorksInAnyOrder) {
  constexpr int kWorld = 4, kTags = 5;
  expect_no_errors(run_fleet(kWorld, settings(), [](int rank, Group& group, Runtime& runtime) {
    struct Call {
      Direction direction;
      int peer;
      int32_t tag;
      std::vector<float> memory;
    };
    const auto count = [](int32_t tag) { return static_cast<size_t>(tag) * 1500; };
    std::vector<Call> calls;
    for (int peer = 0; peer < kWorld; ++peer) {
      for (int32_t tag = 0; tag < kTags && peer != rank; ++tag) {
        calls.push_back({Direction::kSend, peer, tag, values(count(tag), rank, peer, tag)});
        calls.push_back({Direction::kReceive, peer, tag, std::vector<float>(count(tag))});
      }
    }
    std::shuffle(calls.begin(), calls.end(), std::mt19937(rank));
    std::atomic<size_t> finished{0};
    for (Call& call : calls) {
      MessageRequest request = message(call.memory, call.peer, call.tag);
      request.ending.on_done = [&](std::exception_ptr error) {
        EXPECT_EQ(error, nullptr);
        ++finished;
      };
      call.direction == Direction::kSend ? group.send(std::move(request)) : group.recv(std::move(request));
    }
    // Nobody waits for a message: the progress thread alone must finish them.
    while (finished < calls.size()) std::this_thread::yield();
    for (const Call& call : calls) {
      if (call.direction == Direction::kReceive) {
        EXPECT_EQ(call.memory, values(count(call.tag), call.peer, rank, call.tag));
      }
    }
    run_op(group, barrier());
    EXPECT_FALSE(runtime.engine.any_active());
  }));
}

TEST_P(GroupMessages, AnySourceHearsEveryRankAndSaysWhom) {
  constexpr int kWorld = 4;
  expect_no_errors(run_fleet(kWorld, settings(), [](int rank, Group& group, Runtime&) {
    std::vector<float> memory = values(3, rank, 0, 9);
    if (rank != 0) return wait(group, *group.send(message(memory, 0, 9)));
    std::vector<int> heard;
    for (int i = 1; i < kWorld; ++i) {
      const auto received = group.recv(message(memory, kAnySource, 9));
      wait(group, *received);
      EXPECT_EQ(memory, values(3, received->partner(), 0, 9));
      heard.push_back(received->partner());
    }
    std::sort(heard.begin(), heard.end());
    EXPECT_EQ(heard, (std::vector<int>{1, 2, 3}));
  }));
}

TEST_P(GroupMessages, RunBesideCollectivesAndAreCountedApart) {
  constexpr size_t kCount = 5000;
  expect_no_errors(run_fleet(2, settings(), [](int rank, Group& group, Runtime&) {
    std::vector<float> sum(10'000, 1), out = values(kCount, rank, 1 - rank, 1), in(kCount);
    const auto received = group.recv(message(in, 1 - rank, 1));
    const auto first = group.submit(all_reduce(sum));
    wait(group, *first);
    const auto sent = group.send(message(out, 1 - rank, 1));
    wait(group, *received);
    wait(group, *sent);
    EXPECT_EQ(in, values(kCount, 1 - rank, rank, 1));
    EXPECT_EQ(sum[9999], 2.0f);
    EXPECT_EQ(group.sequence(), 1u);
    // What the same collective costs without messages is the measure.
    const trace::Totals both = group.counters();
    run_op(group, all_reduce(sum));
    const trace::Totals all = group.counters();
    EXPECT_EQ(both.collectives, 1u);
    EXPECT_EQ(2 * both.wire_bytes_sent - all.wire_bytes_sent, kCount * sizeof(float));
    EXPECT_EQ(2 * both.wire_bytes_received - all.wire_bytes_received, kCount * sizeof(float));
    EXPECT_EQ(2 * both.header_bytes_sent - all.header_bytes_sent, 3 * kFrameBytes) << "OFFER, ACCEPT, DATA";
  }));
}

TEST_P(GroupMessages, TheEpilogueRunsBeforeItIsDone) {
  expect_no_errors(run_fleet(2, settings(), [](int rank, Group& group, Runtime&) {
    std::vector<float> memory = values(5, 0, 1, 0), copy;
    MessageRequest request = message(memory, 1 - rank);
    if (rank == 0) return wait(group, *group.send(std::move(request)));
    std::fill(memory.begin(), memory.end(), 0.0f);
    request.ending.epilogue = [&] { copy = memory; };
    wait(group, *group.recv(std::move(request)));
    EXPECT_EQ(copy, values(5, 0, 1, 0));
  }));
}

TEST_P(GroupMessages, AnEpilogueThatFailsFailsTheGroup) {
  const auto errors = run_fleet(2, settings(), [](int rank, Group& group, Runtime&) {
    std::vector<float> memory(5, 0);
    MessageRequest request = message(memory, 1 - rank);
    if (rank == 0) {
      wait(group, *group.send(std::move(request)));
    } else {
      request.ending.epilogue = [] { throw std::runtime_error("no memory for the copy"); };
      EXPECT_THROW(wait(group, *group.recv(std::move(request))), std::runtime_error);
    }
    run_op(group, barrier());
  });
  expect_all(errors, {"Internal", "recv(", "no memory for the copy"});
}

TEST_P(GroupMessages, TwoBlockedSendersEndAtTheDeadlineAndSayWhy) {
  const auto errors = run_fleet(2, settings(), [](int rank, Group& group, Runtime&) {
    std::vector<float> out(4);
    wait(group, *group.send(within(std::chrono::milliseconds(300), message(out, 1 - rank, 3))));
    ADD_FAILURE() << "nobody received";
  });
  expect_all(errors, {"Timeout", "send(float32 x 4 to rank", "has not posted a matching receive (tag 3)",
                      "offers float32 x 4 with tag 3, which waits for a receive here"});
}

TEST_P(GroupMessages, AReceiveOfTheWrongTagEndsAtTheDeadline) {
  const auto errors = run_fleet(2, settings(), [](int rank, Group& group, Runtime&) {
    std::vector<float> memory(4);
    const auto limit = std::chrono::milliseconds(rank == 0 ? 300 : 60'000);
    const MessageRequest request = within(limit, message(memory, rank == 0 ? kAnySource : 0, 3 + rank));
    wait(group, rank == 0 ? *group.recv(request) : *group.send(request));
  });
  expect_all(errors, {"Timeout", "recv(float32 x 4 from any rank, tag 3)", "no rank has posted a matching send (tag 3)",
                      "rank 1 offers float32 x 4 with tag 4"});
}

TEST_P(GroupMessages, ADifferentSizeOrDtypeIsNamedOnEveryRank) {
  const auto differ = [&](const std::function<void(MessageRequest&)>& change, const std::vector<std::string>& words) {
    expect_all(run_fleet(3, settings(),
                         [&](int rank, Group& group, Runtime&) {
                           std::vector<float> memory(4);
                           MessageRequest request = message(memory, 1 - rank, 7);
                           if (rank == 2) request.peer = 0, request.tag = 1;  // waits for a message that never comes
                           if (rank == 1) change(request);
                           wait(group, rank == 0 ? *group.send(std::move(request)) : *group.recv(std::move(request)));
                           ADD_FAILURE() << "rank " << rank << " went on";
                         }),
               words);
  };
  differ([](MessageRequest& r) { r.count = 3; },
         {"Mismatch", "element count", "send(float32 x 4 to rank 1, tag 7)", "recv(float32 x 3 from rank 0, tag 7)"});
  differ([](MessageRequest& r) { r.dtype = DType::kI32; }, {"Mismatch", "dtype", "recv(int32 x 4 from rank 0, tag 7)"});
}

TEST_P(GroupMessages, BytesOfARankThatLeavesStillArrive) {
  expect_no_errors(run_fleet(2, settings(), [](int rank, Group& group, Runtime&) {
    std::vector<float> memory = rank == 1 ? values(200'000, 1, 0, 0) : std::vector<float>(200'000);
    wait(group, rank == 1 ? *group.send(message(memory, 0)) : *group.recv(message(memory, 1)));
    if (rank == 1) return group.leave();
    EXPECT_EQ(memory, values(200'000, 1, 0, 0));
  }));
}

TEST_P(GroupMessages, WaitingForARankThatLeftIsNamed) {
  for (const int source : {1, kAnySource}) {
    const auto errors = run_fleet(2, settings(), [source](int rank, Group& group, Runtime&) {
      std::vector<float> memory(4);
      if (rank == 1) {
        group.leave();
        throw Error(ErrorKind::kPeerLost, "has left the group, as told");
      }
      wait(group, *group.recv(message(memory, source, 2)));
      ADD_FAILURE() << "nobody sent";
    });
    expect_all(errors, {"PeerLost", "has left the group"});
    EXPECT_NE(errors[0].find(source == 1 ? "rank 1 (pid " : "every other rank"), std::string::npos) << errors[0];
  }
}

TEST_P(GroupMessages, OneRankLeavingHarmsNoMessageOfOthers) {
  expect_no_errors(run_fleet(3, settings(), [](int rank, Group& group, Runtime&) {
    if (rank == 2) return group.leave();
    std::vector<float> memory = values(100, 0, 1, 0);
    for (int round = 0; round < 20; ++round) {
      MessageRequest request = message(memory, rank == 0 ? 1 : kAnySource, round);
      wait(group, rank == 0 ? *group.send(std::move(request)) : *group.recv(std::move(request)));
    }
  }));
}

TEST_P(GroupMessages, ALostPeerEndsThem) {
  const auto errors = run_fleet(2, settings(), [](int rank, Group& group, Runtime&) {
    std::vector<float> memory(4);
    const auto received = group.recv(message(memory, 1 - rank));
    if (rank == 0) group.peer_lost(1, "died: its process is gone");
    wait(group, *received);
  });
  expect_all(errors, {"PeerLost", "rank 1", "died"});
}

TEST_P(GroupMessages, LeavingAbortsWhatIsInFlight) {
  run_fleet(2, settings(), [](int rank, Group& group, Runtime&) {
    std::vector<float> memory(4);
    std::atomic<bool> told{false};
    MessageRequest request = message(memory, 1 - rank);
    request.ending.on_done = [&](std::exception_ptr error) { told = error != nullptr; };
    const auto received = group.recv(std::move(request));
    if (rank == 0) group.leave();
    try {
      wait(group, *received);
      ADD_FAILURE() << "nobody sent";
    } catch (const Error& error) {
      EXPECT_TRUE(error.kind() == ErrorKind::kAborted || error.kind() == ErrorKind::kPeerLost) << error.what();
    }
    while (!told) std::this_thread::yield();
    EXPECT_THROW(group.send(message(memory, 1 - rank)), Error);
  });
}

TEST_P(GroupMessages, CallsThatMakeNoSenseAreRefusedAndHarmNothing) {
  expect_no_errors(run_fleet(2, settings(), [](int rank, Group& group, Runtime&) {
    std::vector<float> memory(4);
    const auto expect_refused = [&](const std::function<void()>& call, const char* word) {
      try {
        call();
        ADD_FAILURE() << "accepted: " << word;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
      }
    };
    expect_refused([&] { group.send(message(memory, rank)); }, "itself");
    expect_refused([&] { group.recv(message(memory, rank)); }, "itself");
    expect_refused([&] { group.send(message(memory, 2)); }, "rank 2 is no rank of this group of 2");
    expect_refused([&] { group.recv(message(memory, -2)); }, "rank -2");
    expect_refused([&] { group.send(message(memory, kAnySource)); }, "rank -1");
    MessageRequest negative = message(memory, 1 - rank);
    negative.count = -4;
    expect_refused([&] { group.send(negative); }, "-4 elements");
    run_op(group, barrier());
  }));
}

TEST(GroupOfOne, HasNobodyToHearFrom) {
  expect_no_errors(run_fleet(1, Settings{}, [](int, Group& group, Runtime&) {
    std::vector<float> memory(4);
    EXPECT_THROW(group.recv(message(memory, kAnySource)), Error);
  }));
}

INSTANTIATE_TEST_SUITE_P(Transports, GroupMessages, ::testing::Values("shm", "tcp"),
                         [](const auto& p) { return std::string(p.param); });

}  // namespace
}  // namespace ringdp::comm
