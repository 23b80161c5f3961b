#include "trace/event.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace ringdp::trace {
namespace {

TEST(Event, EveryKindHasANameOfItsOwn) {
  std::set<std::string> names;
  for (int kind = 0; kind < kKindCount; ++kind) names.insert(name_of(static_cast<Kind>(kind)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kKindCount));
  EXPECT_STREQ(name_of(Kind::kEnqueued), "enqueued");
  EXPECT_STREQ(name_of(Kind::kStepped), "stepped");
}

}  // namespace
}  // namespace ringdp::trace
