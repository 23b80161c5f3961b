#include "comm/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/threads.h"
#include "transport/shm/local_arenas.h"

namespace ringdp::comm {
namespace {

Deadline unhung() { return Deadline::after(std::chrono::seconds(60)); }  // a guard against hanging

// Work of `steps` advances; may have to be woken by a doorbell before it can move.
class Fake : public Drivable {
 public:
  explicit Fake(int steps, bool blocked = false) : left_(steps), blocked_(blocked) {}
  bool active() const override { return left_ > 0; }
  bool advance() override {
    EXPECT_FALSE(inside_.exchange(true)) << "two threads drive at once";
    const bool move = !blocked_ && left_ > 0;
    if (move) --left_;
    inside_ = false;
    return move;
  }
  void check_time() override { ++time_checks_; }
  void set_asleep(bool asleep, std::vector<pollfd>&) override { asleep_ = asleep; }
  SpinPolicy spin_policy() const override { return {}; }
  void leave_shared_core() override { ++steps_aside_; }

  std::atomic<int> left_;
  std::atomic<bool> blocked_, asleep_{false}, inside_{false};
  std::atomic<int> time_checks_{0}, steps_aside_{0};
};

TEST(Engine, WaitDrivesEveryGroup) {
  Engine engine;
  const auto a = std::make_shared<Fake>(10), b = std::make_shared<Fake>(1000);
  engine.add(a);
  engine.add(b);
  EXPECT_TRUE(engine.wait([&] { return b->left_ == 0; }, unhung()));
  EXPECT_EQ(a->left_, 0);
}

TEST(Engine, KickedWorkIsFinishedByTheProgressThread) {
  Engine engine;
  const auto work = std::make_shared<Fake>(1000);
  engine.add(work);
  engine.kick();
  while (work->left_ > 0) std::this_thread::yield();
  EXPECT_FALSE(engine.any_active());
}

TEST(Engine, ASleepingDriverWakesForNewWorkAndChecksTime) {
  Engine engine;
  const auto stuck = std::make_shared<Fake>(1, true), fresh = std::make_shared<Fake>(0);
  engine.add(stuck);
  engine.add(fresh);
  engine.kick();
  while (!stuck->asleep_) std::this_thread::yield();
  fresh->left_ = 5;
  engine.kick();
  EXPECT_TRUE(engine.wait([&] { return fresh->left_ == 0; }, unhung()));
  while (stuck->time_checks_ == 0) std::this_thread::yield();
  EXPECT_GT(stuck->steps_aside_, 0);
  stuck->blocked_ = false;
  EXPECT_TRUE(engine.wait([&] { return stuck->left_ == 0; }, unhung()));
}

TEST(Engine, WaitGivesUpAtItsDeadlineAndTheWorkGoesOn) {
  Engine engine;
  const auto stuck = std::make_shared<Fake>(1, true);
  engine.add(stuck);
  EXPECT_FALSE(engine.wait([&] { return stuck->left_ == 0; }, Deadline::after(std::chrono::milliseconds(20))));
  stuck->blocked_ = false;
  engine.kick();
  while (stuck->left_ > 0) std::this_thread::yield();
}

TEST(Engine, ManyWaitersShareOneDriver) {
  Engine engine;
  std::vector<std::shared_ptr<Fake>> works;
  for (int i = 0; i < 8; ++i) {
    works.push_back(std::make_shared<Fake>(2000));
    engine.add(works.back());
  }
  std::vector<std::thread> threads;
  for (const auto& work : works) {
    threads.emplace_back([&engine, &work] {
      EXPECT_TRUE(engine.wait([&] { return work->left_ == 0; }, unhung()));
      engine.announce();
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(Engine, RemovedWorkIsNotDriven) {
  Engine engine;
  const auto gone = std::make_shared<Fake>(1);
  engine.add(gone);
  engine.remove(gone.get());
  const auto other = std::make_shared<Fake>(10);
  engine.add(other);
  EXPECT_TRUE(engine.wait([&] { return other->left_ == 0; }, unhung()));
  EXPECT_EQ(gone->left_, 1);
}

// Stays in advance() until it is let go; knows which threads were there.
class Held : public Fake {
 public:
  explicit Held(bool free) : Fake(3), is_free_(free) {}
  bool advance() override {
    drivers_.push_back(std::this_thread::get_id());
    while (!is_free_) std::this_thread::yield();
    return Fake::advance();
  }
  std::atomic<bool> is_free_;
  std::vector<std::thread::id> drivers_;
};

TEST(Engine, EndWaitsUntilTheDriverHoldsNothing) {
  Engine engine;
  auto work = std::make_shared<Held>(false);
  engine.add(work);
  engine.kick();
  while (work.use_count() < 3) std::this_thread::yield();  // the driver has a copy of the list
  engine.end(Deadline::after(std::chrono::milliseconds(20)));
  EXPECT_GT(work->left_, 0) << "a deadline holds";
  engine.remove(work.get());
  work->is_free_ = true;
  const std::weak_ptr<Held> seen = work;
  work.reset();
  engine.end(unhung());
  EXPECT_TRUE(seen.expired());
}

TEST(Engine, AfterItsEndOnlyCallersDrive) {
  Engine engine;
  engine.end(unhung());
  const auto work = std::make_shared<Held>(true);
  engine.add(work);
  engine.kick();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(work->left_, 3);
  EXPECT_TRUE(engine.wait([&] { return work->left_ == 0; }, unhung()));
  for (const auto id : work->drivers_) EXPECT_EQ(id, std::this_thread::get_id());
}

using Cores = std::vector<int>;

TEST(LeaveSharedCore, OnlyWhoSharesACoreMoves) {
  EXPECT_EQ(free_cores({0, 1}, 0, {1}), Cores{});
  EXPECT_EQ(free_cores({0, 1}, 0, {-1}), Cores{});
  EXPECT_EQ(free_cores({0, 1}, 0, {0}), Cores{1});
}

TEST(LeaveSharedCore, CoresOfPeersAndOfOthersAreNotFree) {
  EXPECT_EQ(free_cores({0, 1, 2, 3}, 2, {0, 2}), (Cores{1, 3}));
  EXPECT_EQ(free_cores({0, 2}, 2, {0, 2}), Cores{}) << "there is nowhere to go";
  EXPECT_EQ(free_cores({5, 7}, 6, {6}), (Cores{5, 7}));
}

TEST(LeaveSharedCore, LeavesTheCoreOfAPeer) {
  if (usable_cores().size() < 2) GTEST_SKIP() << "one core";
  const Cores before = usable_cores();
  const auto arenas = transport::make_local_arenas({2, 64, 64, 0});
  bool left = false;  // where a busy machine moves the thread back before we look, another try shows it
  for (int i = 0; i < 1000 && !left; ++i) {
    arenas[1]->arrive();
    const int shared = arenas[0]->core(1);
    move_to({shared});
    leave_shared_core(*arenas[0]);
    left = current_core() != shared && arenas[1]->core(0) != shared;
  }
  EXPECT_TRUE(left);
  EXPECT_EQ(usable_cores(), before);
}

}  // namespace
}  // namespace ringdp::comm
