#include "base/fork_mutex.h"

#include <gtest/gtest.h>

#include <barrier>
#include <mutex>
#include <thread>

#include "base/of_this_process.h"
#include "forks.h"

namespace ringdp {
namespace {

TEST(ForkMutex, IsFreeInAChildAndWhatItGuardsIsWhole) {
  ForkMutex mutex, other;
  int first = 0, second = 0;
  EXPECT_TRUE(works_in_children([&] {
    const std::lock_guard lock(mutex);
    const bool whole = first == second;
    ++first;
    ++second;
    return whole;
  }));
  EXPECT_TRUE(works_in_children([&] {
    const std::lock_guard lock(other);
    return true;
  }));
}

TEST(OfThisProcess, IsMadeAtFirstUseAndAgainInAChild) {
  static OfThisProcess<std::mutex> mutex;
  EXPECT_EQ(mutex.known(), nullptr);
  std::mutex& own = mutex.get();
  EXPECT_EQ(mutex.known(), &own);
  EXPECT_EQ(&mutex.get(), &own);
  const std::lock_guard lock(own);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool made_again = mutex.known() == nullptr && mutex.get().try_lock() && mutex.known() == &mutex.get();
    ::_exit(made_again ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(mutex.known(), &own);
}

std::barrier both_are_at_it(2);

struct SlowlyMade {
  SlowlyMade() { both_are_at_it.arrive_and_wait(); }
};

TEST(OfThisProcess, ThreadsThatComeAtOnceGetTheSame) {
  static OfThisProcess<SlowlyMade> one;
  SlowlyMade* found = nullptr;
  std::thread other([&] { found = &one.get(); });
  SlowlyMade* const mine = &one.get();
  other.join();
  EXPECT_EQ(found, mine);
  EXPECT_EQ(one.known(), mine);
}

}  // namespace
}  // namespace ringdp
