#include "transport/tcp/streams.h"

#include <gtest/gtest.h>

#include "transport/tcp/interface.h"

namespace ringdp::transport {
namespace {

TEST(Streams, GrowWithTheSpeedOfTheInterface) {
  for (const int64_t slow : {0, 10, 1000, 10'000, 24'999}) EXPECT_EQ(streams_for(slow), 1) << slow;
  for (const int64_t fast : {25'000, 40'000, 50'000, 99'999}) EXPECT_EQ(streams_for(fast), 4) << fast;
  for (const int64_t faster : {100'000, 200'000, 800'000}) EXPECT_EQ(streams_for(faster), 8) << faster;
}

TEST(Streams, AnInterfaceThatSaysNothingHasNoSpeed) {
  EXPECT_EQ(interface_speed("lo"), 0);
  EXPECT_EQ(interface_speed("no-such-interface"), 0);
  for (const Interface& entry : list_interfaces()) EXPECT_GE(interface_speed(entry.name), 0) << entry.name;
}

}  // namespace
}  // namespace ringdp::transport
