// Hosts tell among themselves, each as often as it likes, over one collective of all ranks.
#include "device/runtime/bootstrap.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/error.h"
#include "device/cpp/runtime/neighbours.h"

namespace ringdp::gpu {

namespace {

// Ranks of several hosts, as threads.
class Assembly {
 public:
  explicit Assembly(const std::vector<int>& hosts, int world) : hosts_(hosts), world_(world), table_(world) {}

  template <class F>
  void together(F&& call) {
    std::vector<std::thread> threads;
    for (int r = 0; r < world_; ++r) {
      threads.emplace_back([this, r, &call] {
        HostAllGather gather([this, r](const std::string& own) { return table_.all_gather(r, own); }, hosts_, r,
                             world_);
        call(r, gather);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  const std::vector<int> hosts_;
  const int world_;
  testing::RoundTable table_;
};

using Texts = std::vector<std::string>;

TEST(HostAllGather, EveryHostHearsItsOwnAsOftenAsItLikes) {
  Assembly assembly({0, 2, 3}, 6);
  std::vector<std::vector<Texts>> heard(6);
  Texts agreed(6);
  assembly.together([&](int rank, HostAllGather& gather) {
    const auto at = static_cast<size_t>(rank);
    const int times = rank < 2 ? 3 : rank == 2 ? 0 : 1;
    for (int k = 0; k < times; ++k) heard[at].push_back(gather.gather(std::to_string(rank) + std::string(1, '\0')));
    agreed[at] = gather.agree("");
    if (agreed[at].empty()) agreed[at] = gather.agree(rank == 2 || rank == 5 ? "no" : "");
  });
  const std::string nil(1, '\0');
  EXPECT_EQ(heard[1], (std::vector<Texts>(3, {"0" + nil, "1" + nil})));
  EXPECT_TRUE(heard[2].empty());
  EXPECT_EQ(heard[4], (std::vector<Texts>{{"3" + nil, "4" + nil, "5" + nil}}));
  EXPECT_EQ(agreed, Texts(6, "rank 2: no"));
}

TEST(HostAllGather, KnowsWhoIsOnTheHost) {
  const auto nobody = [](const std::string&) { return Texts(); };
  EXPECT_EQ(HostAllGather(nobody, {0, 2, 3}, 1, 6).members(), 2);
  EXPECT_EQ(HostAllGather(nobody, {0, 2, 3}, 2, 6).members(), 1);
  EXPECT_EQ(HostAllGather(nobody, {0, 2, 3}, 5, 6).first(), 3);
  EXPECT_EQ(HostAllGather(nobody, {0, 2, 3}, 5, 6).members(), 3);
}

TEST(HostAllGather, WhatIsTooLongIsRefused) {
  HostAllGather gather([](const std::string& own) { return Texts{own}; }, {0}, 0, 1);
  EXPECT_EQ(gather.gather(std::string(HostAllGather::kMostBytes, 'x'))[0].size(), HostAllGather::kMostBytes);
  EXPECT_THROW(gather.gather(std::string(HostAllGather::kMostBytes + 1, 'x')), Error);
}

}  // namespace

}  // namespace ringdp::gpu
