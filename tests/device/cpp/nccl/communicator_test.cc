// Who can form a group of NCCL: all ranks say the same of the same infos.
#include "device/nccl/communicator.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "device/cpp/nccl/parties.h"

namespace ringdp::gpu {

namespace {

std::vector<NcclPeerInfo> infos(int world) {
  std::vector<NcclPeerInfo> all;
  for (int r = 0; r < world; ++r) {
    all.push_back(nccl_peer_info_without(""));
    all.back().version = 22907;
    all.back().uuid[3] = static_cast<unsigned char>(r);
  }
  return all;
}

TEST(NcclPeerInfo, ADeviceForEachAndOneVersionAreEnough) { EXPECT_EQ(why_not(infos(3)), ""); }

TEST(NcclPeerInfo, ARankWithoutNcclIsNamedWithItsReason) {
  std::vector<NcclPeerInfo> all = infos(3);
  all[2] = nccl_peer_info_without("no NCCL: not here");
  EXPECT_EQ(why_not(all), "rank 2: no NCCL: not here");
}

TEST(NcclPeerInfo, RanksThatShareADeviceAreNamed) {
  std::vector<NcclPeerInfo> all = infos(3);
  all[2].uuid[3] = 1;
  EXPECT_EQ(why_not(all), "ranks 1 and 2 share a device, and NCCL wants one for each");
}

TEST(NcclPeerInfo, SoAreTwoVersions) {
  std::vector<NcclPeerInfo> all = infos(2);
  all[1].version = 23007;
  EXPECT_EQ(why_not(all), "rank 0 has NCCL 22907, and rank 1 has 23007");
}

TEST(NcclPeerInfo, TravelsAsBytesAndAnotherBuildIsNamed) {
  std::vector<NcclPeerInfo> all = infos(2);
  std::vector<std::string> bytes = {to_bytes(all[0]), to_bytes(all[1])};
  EXPECT_EQ(nccl_peer_infos_from(bytes)[1].uuid[3], 1);
  bytes[1].pop_back();
  try {
    nccl_peer_infos_from(bytes);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
    EXPECT_EQ(error.culprit(), 1);
  }
}

}  // namespace

// A rank's part of a group of NCCL: joined under a deadline, groups that always close, errors by name, one end.

namespace {

using testing::fake_nccl;

class Communicator : public ::testing::Test {
 protected:
  Communicator() { testing::reset_nccl(); }

  std::unique_ptr<NcclCommunicator> join(std::chrono::milliseconds patience = std::chrono::seconds(20)) {
    NcclCommunicator::Means means;
    means.functions = &functions_;
    means.memory = memory_;
    means.keeps = std::exchange(keeps_, nullptr);
    means.with_device = with_device_;
    means.still_there = [this] {
      if (gone_) throw Error(ErrorKind::kPeerLost, "rank 1 is gone", 1);
    };
    return NcclCommunicator::join({&testing::nccl_functions(), {}, 1, 3}, means, Deadline::after(patience));
  }
  std::string why_not_joined(std::chrono::milliseconds patience = std::chrono::seconds(20)) {
    try {
      join(patience);
    } catch (const Error& error) {
      return std::string(name_of(error.kind())) + ": " + error.what();
    }
    return "";
  }

  // By the thread that was left behind.
  static void wait_for_abort() {
    const auto is_aborted = [] {
      const std::lock_guard lock(fake_nccl.mutex);
      return !fake_nccl.calls.empty() && fake_nccl.calls.back() == "abort";
    };
    while (!is_aborted()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  Functions functions_ = testing::functions_with_nccl();
  WithDevice with_device_ = testing::with_device;
  char memory_[64] = {};
  std::shared_ptr<const void> keeps_;
  std::atomic<bool> gone_{false};
};

TEST_F(Communicator, GreetsEverybodyOnce) {
  const auto joined = join();
  EXPECT_EQ(fake_nccl.calls, (std::vector<std::string>{"start", "send 16 to 2", "receive 16 from 0", "send 16 to 0",
                                                       "receive 16 from 2", "end"}));
  EXPECT_EQ(NcclCommunicator::bytes_to_join(3), 64);
}

TEST_F(Communicator, WhatNcclRefusesIsSaid) {
  fake_nccl.refuses_rank = {1};
  EXPECT_EQ(why_not_joined(), "Internal: NCCL: ncclCommInitRank: unhandled system error");
}

TEST_F(Communicator, AGreetingThatFailsEndsIt) {
  fake_nccl.fails = "end";
  EXPECT_EQ(why_not_joined(), "Internal: NCCL: ncclGroupEnd: remote error");
  EXPECT_TRUE(fake_nccl.nothing_is_left());
}

TEST_F(Communicator, ADeviceThatFailsMeanwhileIsTheReason) {
  with_device_ = [](const std::function<void()>&) { throw std::runtime_error("the context is gone"); };
  EXPECT_EQ(why_not_joined(), "Internal: NCCL: the context is gone");
  EXPECT_TRUE(fake_nccl.calls.empty());
}

TEST_F(Communicator, AStreamThatTakesNoCallIsTheReason) {
  keeps_ = std::make_shared<int>(1);
  const std::weak_ptr<const void> kept = keeps_;
  functions_.call = [](void*, void (*)(void*), void*) { return testing::refuse_import(); };
  EXPECT_EQ(why_not_joined(), "Internal: NCCL: importing is refused here");
  EXPECT_TRUE(fake_nccl.nothing_is_left());
  EXPECT_TRUE(kept.expired());
}

TEST_F(Communicator, WhoDoesNotComeBackIsLeftBehind) {
  fake_nccl.blocks = true;
  keeps_ = std::make_shared<int>(1);
  const std::weak_ptr<const void> kept = keeps_;
  EXPECT_NE(why_not_joined(std::chrono::milliseconds(50)).find("joining did not finish in time"), std::string::npos);
  EXPECT_FALSE(kept.expired());  // NCCL may still write there
  fake_nccl.unblock();
  wait_for_abort();
  while (!kept.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(fake_nccl.nothing_is_left());
}

TEST_F(Communicator, AGroupThatFailsMeanwhileIsTheReason) {
  gone_ = true;
  fake_nccl.blocks = true;
  EXPECT_EQ(why_not_joined(), "PeerLost: rank 1 is gone");
  fake_nccl.unblock();
  wait_for_abort();
}

// The waiter leaves when the communicator is there and its thread has not come back yet.
TEST_F(Communicator, WhoLeavesAtTheLastMomentLeavesNothing) {
  std::atomic<bool> has_left{false};
  std::atomic<int> uses{0};
  with_device_ = [&](const std::function<void()>& run) {
    testing::with_device(run);
    if (uses++ > 0) return;
    gone_ = true;
    while (!has_left) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  EXPECT_EQ(why_not_joined(), "PeerLost: rank 1 is gone");
  has_left = true;
  wait_for_abort();
  while (uses < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(fake_nccl.nothing_is_left());
  EXPECT_EQ(fake_nccl.ended_elsewhere, 0);
}

TEST_F(Communicator, ADeviceThatIsBrokenKeepsNobodyFromAborting) {
  const auto joined = join();
  joined->abort_on([](const std::function<void()>&) { throw std::runtime_error("the context is gone"); });
  EXPECT_TRUE(fake_nccl.nothing_is_left());
}

TEST_F(Communicator, AGroupIsClosedWhateverFailsInIt) {
  const auto joined = join();
  fake_nccl.calls.clear();
  fake_nccl.fails = "send";
  EXPECT_EQ(joined->exchange({{true, memory_, 32, 0}, {false, memory_, 32, 2}}, nullptr), "ncclSend: remote error");
  EXPECT_EQ(fake_nccl.calls, (std::vector<std::string>{"start", "send 32 to 0", "receive 32 from 2", "end"}));
}

TEST_F(Communicator, EveryFunctionThatFailsIsNamed) {
  const auto joined = join();
  const std::vector<std::pair<const char*, const char*>> named = {
      {"start", "ncclGroupStart"}, {"send", "ncclSend"}, {"recv", "ncclRecv"}, {"end", "ncclGroupEnd"}};
  for (const auto& [function, name] : named) {
    fake_nccl.fails = function;
    EXPECT_EQ(joined->exchange({{true, memory_, 32, 0}, {true, memory_, 32, 2}, {false, memory_, 32, 2}}, nullptr),
              std::string(name) + ": remote error");
  }
}

TEST_F(Communicator, NoMessagesAreNoGroup) {
  const auto joined = join();
  fake_nccl.calls.clear();
  EXPECT_EQ(joined->exchange({}, nullptr), "");
  EXPECT_TRUE(fake_nccl.calls.empty());
}

TEST_F(Communicator, AnErrorThatComesLaterIsFound) {
  const auto joined = join();
  EXPECT_EQ(joined->failure(), "");
  fake_nccl.fails = "async";
  EXPECT_EQ(joined->failure(), "remote error");
  fake_nccl.in_progress = true;
  EXPECT_EQ(joined->failure(), "");
  fake_nccl.fails = "ask";
  EXPECT_EQ(joined->failure(), "ncclCommGetAsyncError: remote error");
}

TEST_F(Communicator, AnAbortWaitsForWhoIsQueueing) {
  const auto joined = join();
  fake_nccl.calls.clear();
  fake_nccl.blocks = true;
  std::string said = "nothing";
  std::thread queues([&] { said = joined->exchange({{true, memory_, 32, 0}}, nullptr); });
  const auto has_begun = [] {
    const std::lock_guard lock(fake_nccl.mutex);
    return !fake_nccl.calls.empty();
  };
  while (!has_begun()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(joined->failure(), "") << "asked later";
  std::thread aborts([&] { joined->abort(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  fake_nccl.unblock();
  queues.join();
  aborts.join();
  EXPECT_EQ(said, "");
  EXPECT_EQ(fake_nccl.calls, (std::vector<std::string>{"start", "send 32 to 0", "end", "abort"}));
}

TEST_F(Communicator, EndsOnceAndThenNothingIsQueued) {
  const auto joined = join();
  joined->abort();
  fake_nccl.calls.clear();
  joined->abort();
  joined->leave();
  EXPECT_EQ(joined->exchange({{true, memory_, 32, 0}}, nullptr), "");
  EXPECT_EQ(joined->failure(), "");
  EXPECT_TRUE(fake_nccl.calls.empty());
  EXPECT_TRUE(fake_nccl.nothing_is_left());
}

}  // namespace

}  // namespace ringdp::gpu
