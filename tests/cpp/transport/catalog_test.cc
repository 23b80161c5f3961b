#include "transport/catalog.h"

#include <gtest/gtest.h>

namespace ringdp::transport {
namespace {

const HostIdentity kHere{"a", "0c6f5d1e-7d0b-4d5b-9f0e-3f2a1b4c5d6e", 1, 2, 1000, 10};
const Probe kWorked{Probe::Outcome::kWorked, ""};
const Probe kFailed{Probe::Outcome::kFailed, "rank 2: no memory left"};
const Probe kNotTried{};

HostIdentity elsewhere() {
  HostIdentity other = kHere;
  other.network_namespace += 1;
  return other;
}

bool says(const Choice& choice, const std::string& part) { return choice.why.find(part) != std::string::npos; }

TEST(Catalog, OneHostSharesMemory) {
  for (const TransportChoice wanted : {TransportChoice::kAuto, TransportChoice::kShm}) {
    const Choice choice = choose(wanted, kHere, kHere, kWorked);
    EXPECT_EQ(choice.via, Via::kShm);
    EXPECT_TRUE(says(choice, "shm: same boot id") && says(choice, "mapping probed")) << choice.why;
  }
}

TEST(Catalog, AutoFallsBackToTcpAndSaysWhy) {
  const Choice apart = choose(TransportChoice::kAuto, kHere, elsewhere(), kNotTried);
  EXPECT_EQ(apart.via, Via::kTcp);
  EXPECT_EQ(apart.why, "tcp: network namespaces differ");
  const Choice failed = choose(TransportChoice::kAuto, kHere, kHere, kFailed);
  EXPECT_EQ(failed.via, Via::kTcp);
  EXPECT_TRUE(says(failed, kFailed.failure)) << failed.why;
  EXPECT_EQ(choose(TransportChoice::kAuto, kHere, kHere, kNotTried).via, Via::kTcp) << "unproven is not shared";
}

TEST(Catalog, AProbeCannotJoinTwoHosts) {
  EXPECT_EQ(choose(TransportChoice::kAuto, kHere, elsewhere(), kWorked).via, Via::kTcp);
}

TEST(Catalog, ForcedSharedMemoryIsNeverReplaced) {
  const Choice apart = choose(TransportChoice::kShm, kHere, elsewhere(), kNotTried);
  EXPECT_EQ(apart.via, Via::kImpossible);
  EXPECT_TRUE(says(apart, "network namespaces differ")) << apart.why;
  const Choice failed = choose(TransportChoice::kShm, kHere, kHere, kFailed);
  EXPECT_EQ(failed.via, Via::kImpossible);
  EXPECT_TRUE(says(failed, kFailed.failure)) << failed.why;
}

TEST(Catalog, ForcedTcpWinsOverEverything) {
  for (const Probe& probe : {kWorked, kFailed, kNotTried}) {
    const Choice choice = choose(TransportChoice::kTcp, kHere, kHere, probe);
    EXPECT_EQ(choice.via, Via::kTcp);
    EXPECT_TRUE(says(choice, "transport=tcp")) << choice.why;
  }
}

TEST(Catalog, BothSidesDecideAlike) {
  for (const TransportChoice wanted : {TransportChoice::kAuto, TransportChoice::kShm, TransportChoice::kTcp}) {
    for (const Probe& probe : {kWorked, kFailed}) {
      const Choice here = choose(wanted, kHere, elsewhere(), probe), there = choose(wanted, elsewhere(), kHere, probe);
      EXPECT_EQ(here.via, there.via);
      EXPECT_EQ(here.why, there.why);
    }
  }
}

}  // namespace
}  // namespace ringdp::transport
