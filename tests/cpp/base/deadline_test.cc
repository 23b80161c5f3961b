// Points far in the past and far in the future, so that no test depends on how fast it runs.
#include "base/deadline.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>

namespace ringdp {
namespace {

using std::chrono::hours;
using std::chrono::nanoseconds;
using std::chrono::seconds;

TEST(Deadline, PassesWhenItsTimeHasCome) {
  EXPECT_TRUE(Deadline::after(nanoseconds(0)).passed());
  EXPECT_TRUE(Deadline::after(seconds(-5)).passed());
  EXPECT_FALSE(Deadline::after(hours(1)).passed());
}

TEST(Deadline, LiesTheDurationAfterNow) {
  const auto before = Deadline::Clock::now();
  const Deadline deadline = Deadline::after(hours(1));
  const auto after = Deadline::Clock::now();
  EXPECT_GE(deadline.at(), before + hours(1));
  EXPECT_LE(deadline.at(), after + hours(1));
}

TEST(Deadline, NeverDoesNotPassAndDoesNotOverflow) {
  EXPECT_FALSE(Deadline::never().passed());
  EXPECT_EQ(Deadline::never().poll_ms(), 1000);
  EXPECT_EQ(Deadline::after(nanoseconds::max()).at(), Deadline::never().at());
}

TEST(Deadline, PollTimeIsCappedAndNeverNegative) {
  EXPECT_EQ(Deadline::after(hours(1)).poll_ms(7), 7);
  EXPECT_EQ(Deadline::after(hours(-1)).poll_ms(7), 0);
}

// Rounded down, the last fraction of a millisecond would be spent in polls that do not wait.
TEST(Deadline, PollTimeIsWhatIsLeftRoundedUp) {
  const Deadline deadline = Deadline::after(hours(1));
  const auto before = Deadline::Clock::now();
  const int poll = deadline.poll_ms(std::numeric_limits<int>::max());
  const auto after = Deadline::Clock::now();
  EXPECT_GE(std::chrono::milliseconds(poll), deadline.at() - after);
  EXPECT_LT(std::chrono::milliseconds(poll - 1), deadline.at() - before);
}

TEST(Deadline, EarlierIsTheFirstOfTwoInEitherOrder) {
  const Deadline soon = Deadline::after(hours(1)), late = Deadline::after(hours(2));
  EXPECT_EQ(earlier(soon, late).at(), soon.at());
  EXPECT_EQ(earlier(late, soon).at(), soon.at());
  EXPECT_EQ(earlier(Deadline::never(), soon).at(), soon.at());
}

TEST(SecondsSince, CountsFromTheStartInSeconds) {
  EXPECT_GE(seconds_since(Deadline::Clock::now() - hours(1)), 3600);
  EXPECT_LE(seconds_since(Deadline::Clock::now() + hours(1)), 3600);
  EXPECT_LT(seconds_since(Deadline::Clock::now() + hours(1)), 0);
}

}  // namespace
}  // namespace ringdp
