// Hosts tell among themselves, each as often as it likes, over one collective of all ranks.
#include "gpu/host_telling.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/error.h"
#include "gpu/round_table.h"

namespace ringdp::gpu {
namespace {

// Ranks of several hosts, as threads.
class Assembly {
 public:
  explicit Assembly(const std::vector<int>& hosts, int world)
      : hosts_(hosts), world_(world), table_(world) {}

  template <class F>
  void together(F&& call) {
    std::vector<std::thread> threads;
    for (int r = 0; r < world_; ++r) {
      threads.emplace_back([this, r, &call] {
        HostTelling telling([this, r](const std::string& own) { return table_.tell_all(r, own); }, hosts_, r, world_);
        call(r, telling);
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

TEST(HostTelling, EveryHostHearsItsOwnAsOftenAsItLikes) {
  Assembly assembly({0, 2, 3}, 6);
  std::vector<std::vector<Texts>> heard(6);
  Texts agreed(6);
  assembly.together([&](int rank, HostTelling& telling) {
    const auto at = static_cast<size_t>(rank);
    const int times = rank < 2 ? 3 : rank == 2 ? 0 : 1;
    for (int k = 0; k < times; ++k) heard[at].push_back(telling.tell(std::to_string(rank) + std::string(1, '\0')));
    agreed[at] = telling.agree("");
    if (agreed[at].empty()) agreed[at] = telling.agree(rank == 2 || rank == 5 ? "no" : "");
  });
  const std::string nil(1, '\0');
  EXPECT_EQ(heard[1], (std::vector<Texts>(3, {"0" + nil, "1" + nil})));
  EXPECT_TRUE(heard[2].empty());
  EXPECT_EQ(heard[4], (std::vector<Texts>{{"3" + nil, "4" + nil, "5" + nil}}));
  EXPECT_EQ(agreed, Texts(6, "rank 2: no"));
}

TEST(HostTelling, KnowsWhoIsOnTheHost) {
  const auto nobody = [](const std::string&) { return Texts(); };
  EXPECT_EQ(HostTelling(nobody, {0, 2, 3}, 1, 6).members(), 2);
  EXPECT_EQ(HostTelling(nobody, {0, 2, 3}, 2, 6).members(), 1);
  EXPECT_EQ(HostTelling(nobody, {0, 2, 3}, 5, 6).first(), 3);
  EXPECT_EQ(HostTelling(nobody, {0, 2, 3}, 5, 6).members(), 3);
}

TEST(HostTelling, WhatIsTooLongIsRefused) {
  HostTelling telling([](const std::string& own) { return Texts{own}; }, {0}, 0, 1);
  EXPECT_EQ(telling.tell(std::string(HostTelling::kMostBytes, 'x'))[0].size(), HostTelling::kMostBytes);
  EXPECT_THROW(telling.tell(std::string(HostTelling::kMostBytes + 1, 'x')), Error);
}

}  // namespace
}  // namespace ringdp::gpu
