// The table of thresholds: defaults within bounds, and the text that ranks exchange.
#include "base/thresholds.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ringdp {
namespace {

// Every field its own value.
Thresholds distinct() {
  Thresholds thresholds;
  int64_t value = 5000;
  for (const auto& f : kThresholdFields) thresholds.*f.member = ++value;
  return thresholds;
}

TEST(Thresholds, DefaultsAreWithinTheirBounds) {
  for (const auto& f : kThresholdFields) {
    EXPECT_GE(Thresholds{}.*f.member, f.low) << f.field;
    EXPECT_LE(Thresholds{}.*f.member, f.high) << f.field;
  }
}

TEST(Thresholds, OneRankCountsAsTwo) {
  const Thresholds limits = distinct();
  for (const int ranks : {1, 2, 3, 64}) {
    EXPECT_EQ(limits.one_shot_bytes(ranks), ranks <= 2 ? limits.one_shot_bytes_of_two : limits.one_shot_bytes_of_more);
    EXPECT_EQ(limits.one_pass_bytes(ranks), ranks <= 2 ? limits.one_pass_bytes_of_two : limits.one_pass_bytes_of_more);
    EXPECT_EQ(limits.slot_bytes(ranks, true), ranks <= 2 ? limits.slot_bytes_of_two : limits.slot_bytes_of_more);
    EXPECT_EQ(limits.slot_bytes(ranks, false), limits.slot_bytes_across_hosts);
  }
}

TEST(Thresholds, SurviveAsText) {
  for (const Thresholds& given : {Thresholds{}, distinct()}) {
    const auto copy = thresholds_from_text(to_text(given));
    ASSERT_TRUE(copy);
    for (const auto& f : kThresholdFields) EXPECT_EQ(*copy.*f.member, given.*f.member) << f.field;
  }
}

TEST(Thresholds, OtherTextIsRefused) {
  const std::string good = to_text(Thresholds{});
  const size_t number = good.find('=') + 1;
  for (const std::string& bad : {std::string(), good + " ", " " + good, good + "0x", good.substr(0, good.size() - 7),
                                 good.substr(good.find(' ') + 1), good + " " + good, std::string(good).insert(number, "-"),
                                 std::string(good).insert(number, "99999999999999999999"), "x" + good}) {
    EXPECT_FALSE(thresholds_from_text(bad)) << bad;
  }
  for (const auto& f : kThresholdFields) {
    for (const int64_t outside : {f.low - 1, f.high + 1}) {
      Thresholds thresholds;
      thresholds.*f.member = outside;
      EXPECT_FALSE(thresholds_from_text(to_text(thresholds))) << f.field << " " << outside;
    }
  }
}

}  // namespace
}  // namespace ringdp
