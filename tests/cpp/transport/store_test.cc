#include "transport/store.h"

#include <gtest/gtest.h>

#include <future>

#include "comm/memory_store.h"
#include "transport/thrown.h"

namespace ringdp::transport {
namespace {

// As one whose server is stopped: no call comes back before it is let go.
class StoppedStore : public comm::MemoryStore {
 public:
  ~StoppedStore() override { ended_.set_value(); }
  bool has(const std::vector<std::string>& keys) override {
    goes_on_.get_future().wait();
    return MemoryStore::has(keys);
  }
  void go_on() { goes_on_.set_value(); }
  std::future<void> end() { return ended_.get_future(); }

 private:
  std::promise<void> goes_on_, ended_;
};

TEST(BoundedStore, IsTheStoreBehindIt) {
  const auto behind = std::make_shared<comm::MemoryStore>();
  BoundedStore store(behind, Deadline::never());
  store.set("a", "1");
  store.set("b", "2");
  EXPECT_EQ(store.add("c", 3), 3);
  EXPECT_TRUE(behind->has({"a", "b", "c"}));
  EXPECT_TRUE(store.has({"a", "b"}));
  EXPECT_FALSE(store.has({"a", "z"}));
  EXPECT_EQ(store.get({"b", "a"}), (std::vector<std::string>{"2", "1"}));
  EXPECT_THROW(store.get({"z"}), std::out_of_range) << "its own errors";
}

TEST(BoundedStore, CanStillBeToldOfAFailureAtTheDeadline) {
  BoundedStore store(std::make_shared<comm::MemoryStore>(), Deadline::after(std::chrono::seconds(0)));
  store.set("failed", "late");
  EXPECT_TRUE(store.has({"failed"}));
}

TEST(BoundedStore, OneThatDoesNotAnswerIsNamedAndLeftToTheCall) {
  auto stopped = std::make_shared<StoppedStore>();
  StoppedStore& behind = *stopped;
  auto end = behind.end();
  {
    BoundedStore store(std::move(stopped), Deadline::after(std::chrono::milliseconds(50)));
    const std::function<void()> calls[] = {[&] { store.has({"card"}); }, [&] { store.add("card", 1); }};
    for (const auto& call : calls) {
      const Error error = thrown(call);
      EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
      EXPECT_NE(std::string(error.what()).find("store has not answered"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("'card'"), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(end.wait_for(std::chrono::seconds(0)), std::future_status::timeout) << "the call still uses it";
  behind.go_on();
  EXPECT_EQ(end.wait_for(std::chrono::seconds(60)), std::future_status::ready);
}

TEST(BoundedStore, AnInterruptEndsACallAndLeavesTheLastWords) {
  struct Interrupt {};
  const auto behind = std::make_shared<comm::MemoryStore>();
  int looks = 0;
  BoundedStore store(behind, Deadline::never(), [&] {
    if (++looks == 2) throw Interrupt();
  });
  EXPECT_FALSE(store.has({"a"}));
  EXPECT_THROW(store.has({"a"}), Interrupt);
  store.set("failed", "interrupted");
  EXPECT_TRUE(behind->has({"failed"}));
  EXPECT_EQ(looks, 2);
}

TEST(BoundedStore, AnInterruptEndsACallThatDoesNotAnswer) {
  struct Interrupt {};
  auto stopped = std::make_shared<StoppedStore>();
  StoppedStore& behind = *stopped;
  auto end = behind.end();
  {
    int looks = 0;
    BoundedStore store(std::move(stopped), Deadline::never(), [&] {
      if (++looks == 2) throw Interrupt();
    });
    EXPECT_THROW(store.has({"a"}), Interrupt);
  }
  behind.go_on();
  EXPECT_EQ(end.wait_for(std::chrono::seconds(60)), std::future_status::ready);
}

}  // namespace
}  // namespace ringdp::transport
