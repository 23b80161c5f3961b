// Hosts that share memory within themselves, NCCL between: who does so, what is queued, who aborts with whom.
#include "device/nccl/host_share.h"

#include <gtest/gtest.h>

#include "device/cpp/nccl/parties.h"
#include "device/runtime/check_work.h"

namespace ringdp::gpu {
namespace {

using testing::devices;
using testing::fake_nccl;
using testing::Parties;
using Met = std::vector<std::unique_ptr<NcclRanks>>;

plan::Problem sum_of(int64_t count, int rank) {
  plan::Problem asked;
  asked.world = 3;
  asked.rank = rank;
  asked.count = count;
  return asked;
}

// Ranks 0 and 1 on one host, rank 2 on another.
class HostShareTest : public ::testing::Test {
 protected:
  HostShareTest() { parties_.link_settings.hosts = {0, 2}; }

  Met bootstrap() {
    Met met = parties_.bootstrap();
    fake_nccl.calls.clear();
    devices.runs.clear();
    return met;
  }
  static Launched launch(NcclRanks& ranks, int rank) {
    const plan::Problem whole = sum_of(8, rank);
    DeviceRanks::Piece piece;
    piece.problem = problem_of(whole, {0, whole.count});
    piece.deadline_ns = 1000;
    return ranks.launch(piece, ranks.choose(whole), nullptr);
  }
  static void end(Met& met) {
    for (const auto& one : met) one->teardown();
    met.clear();
    EXPECT_TRUE(devices.all_is_given_back());
    EXPECT_TRUE(fake_nccl.nothing_is_left());
  }

  Parties parties_{3};
};

TEST_F(HostShareTest, SumsGoByHierarchyAndSayIt) {
  Met met = bootstrap();
  for (const auto& one : met) {
    EXPECT_NE(one->description().find("which share memory within each of 2 hosts; all_reduces by hierarchy ("),
              std::string::npos)
        << one->description();
    EXPECT_EQ(one->sharing(), nullptr) << "not all ranks";
  }
  EXPECT_EQ(met[0]->choose(sum_of(8, 0)).algorithm, plan::DeviceAlgorithm::kHierarchy);
  end(met);
}

TEST_F(HostShareTest, APieceIsTwoMeetingsAroundFoldsAndMessagesWithAWordEach) {
  Met met = bootstrap();
  const Launched launched = launch(*met[0], 0);
  EXPECT_EQ(fake_nccl.calls, (std::vector<std::string>{"start", "send 32 to 2", "send 16 to 2", "end", "start",
                                                       "receive 32 from 2", "receive 16 from 2", "end"}));
  ASSERT_EQ(devices.runs.size(), 3u);  // meeting, fold, meeting
  for (const auto& [run, executor] : devices.runs) {
    EXPECT_EQ(executor, RD_GPU_SPIN);
    EXPECT_NO_THROW(check_work(run, DType::kF32));
  }
  EXPECT_EQ(devices.runs[0].first.world, 2);
  for (const int meeting : {0, 2}) {
    const Work& run = devices.runs[static_cast<size_t>(meeting)].first;
    EXPECT_EQ(run.aborts[0], run.abort) << "who gives up makes all give up";
    EXPECT_NE(run.aborts[1], nullptr);
    EXPECT_NE(run.aborts[1], run.abort);
  }
  EXPECT_EQ(devices.runs[1].first.abort, devices.runs[2].first.abort);
  ASSERT_NE(launched.plan, nullptr);
  EXPECT_EQ(launched.epoch, 2u);
  EXPECT_GT(devices.runs[2].first.deadline_ns, devices.runs[0].first.deadline_ns)
      << "who is late there waits for another host";
  end(met);
}

TEST_F(HostShareTest, FoldsReadTheOthersOfTheHostWhereTheyAre) {
  Met met = bootstrap();
  launch(*met[0], 0);
  const Work& fold = devices.runs[1].first;
  ASSERT_EQ(fold.steps, 1);
  EXPECT_EQ(fold.input[0] + fold.step[0].from.offset * 4, met[0]->window());
  EXPECT_EQ(fold.input[0] + fold.step[0].addend.offset * 4, met[1]->window());
  end(met);
}

// Before each round of messages, which its own word goes with, and before a meeting that follows what has come.
TEST_F(HostShareTest, WordsAreLookedAtOnceARound) {
  Met met = bootstrap();
  launch(*met[2], 2);  // receives, then sends
  EXPECT_EQ(devices.aborts_passed_on, 2);
  launch(*met[0], 0);  // sends, then receives, then meets
  EXPECT_EQ(devices.aborts_passed_on, 2 + 3);
  EXPECT_TRUE(devices.poisoned.empty());
  end(met);
}

TEST_F(HostShareTest, GivingUpIsOfTheWholeHost) {
  Met met = bootstrap();
  met[0]->abort();
  EXPECT_TRUE(met[0]->aborted());
  EXPECT_TRUE(met[1]->aborted());
  EXPECT_FALSE(met[2]->aborted());
  met[2]->abort();
  EXPECT_TRUE(met[2]->aborted());
  end(met);
}

TEST_F(HostShareTest, WhatOneHostCannotNoneDoesAndAllSayWhy) {
  parties_.why_not_on_host = [](int rank) { return rank < 2 ? "no heap here" : ""; };
  Met met = bootstrap();
  for (const auto& one : met) {
    EXPECT_EQ(one->why_not(), "");
    EXPECT_NE(one->description().find("which share no memory; sums by direct ("), std::string::npos);
    EXPECT_NE(one->description().find("; no hierarchy on devices: rank 0: no heap here"), std::string::npos);
  }
  EXPECT_EQ(met[2]->choose(sum_of(8, 2)).algorithm, plan::DeviceAlgorithm::kDirect);
  end(met);
}

// A stream goes on to these, too, after a meeting that was aborted.
TEST_F(HostShareTest, OtherCollectivesBringAWordOfEachPeer) {
  Met met = bootstrap();
  plan::Problem asked = sum_of(32, 0);
  asked.what = plan::Collective::kAllGather;
  asked.dtype = DType::kU8;
  DeviceRanks::Piece piece;
  piece.problem = problem_of(asked, {0, asked.count});
  met[0]->launch(piece, met[0]->choose(asked), nullptr);
  int words = 0;
  for (const std::string& call : fake_nccl.calls) words += call.find(" 16 ") != std::string::npos;
  EXPECT_EQ(words, 4) << "to two peers and from them";
  EXPECT_EQ(devices.aborts_passed_on, 2) << "one's own before the round, and what two tell behind it";
  end(met);
}

TEST_F(HostShareTest, WithoutACommonEndNoHostShares) {
  devices.fails = "host_map";
  Met met = bootstrap();
  devices.fails = "";
  for (const auto& one : met) {
    EXPECT_NE(one->description().find("; no hierarchy on devices: rank 0: CUDA: host_map fails here"),
              std::string::npos)
        << one->description();
  }
  end(met);
}

TEST_F(HostShareTest, MemoryThatCannotBeMappedIsAReasonToo) {
  devices.refuses_import = [](int device, const rd_gpu_handle&) { return device == 1; };
  Met met = bootstrap();
  devices.refuses_import = [](int, const rd_gpu_handle&) { return false; };
  for (const auto& one : met) {
    EXPECT_NE(one->description().find("; no hierarchy on devices: rank "), std::string::npos) << one->description();
    EXPECT_NE(one->description().find("importing is refused here"), std::string::npos);
  }
  end(met);
}

}  // namespace
}  // namespace ringdp::gpu
