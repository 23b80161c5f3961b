#include "transport/identity.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace ringdp::transport {
namespace {

HostIdentity sample_identity() {
  return {"node-7", "0c6f5d1e-7d0b-4d5b-9f0e-3f2a1b4c5d6e", 4026531840, 4026531836, 4026531837, 4026531834, 1000, 4711,
          815};
}

TEST(Identity, OfThisProcessIsComplete) {
  const HostIdentity self = local_identity();
  EXPECT_FALSE(self.host.empty());
  EXPECT_EQ(self.boot_id.size(), sample_identity().boot_id.size());
  EXPECT_NE(self.network_namespace, 0u);
  EXPECT_NE(self.pid_namespace, 0u);
  EXPECT_NE(self.user_namespace, 0u);
  EXPECT_EQ(self.uid, ::geteuid());
  EXPECT_EQ(self.pid, static_cast<uint64_t>(::getpid()));
  EXPECT_NE(self.start_time, 0u);
}

TEST(Identity, SurvivesTheLine) {
  for (const HostIdentity& identity : {sample_identity(), local_identity()}) {
    const auto copy = identity_from_line(to_line(identity));
    ASSERT_TRUE(copy);
    EXPECT_EQ(to_line(*copy), to_line(identity));
    EXPECT_EQ(copy->host, identity.host);
    EXPECT_EQ(copy->boot_id, identity.boot_id);
    EXPECT_EQ(copy->network_namespace, identity.network_namespace);
    EXPECT_EQ(copy->pid_namespace, identity.pid_namespace);
    EXPECT_EQ(copy->user_namespace, identity.user_namespace);
    EXPECT_EQ(copy->time_namespace, identity.time_namespace);
    EXPECT_EQ(copy->uid, identity.uid);
    EXPECT_EQ(copy->pid, identity.pid);
    EXPECT_EQ(copy->start_time, identity.start_time);
  }
}

TEST(Identity, MalformedLinesAreRefused) {
  const std::string good = to_line(sample_identity());
  std::vector<std::string> bad = {"", " ", "identity-3", good + " ", " " + good, good + " 1", good + "\n", good + "x"};
  bad.push_back("identity-2" + good.substr(10));
  bad.push_back(good + std::string(1000, '1'));
  for (size_t length = 0; length < good.size(); ++length) {
    // A shorter number is still a number, so cuts inside the last field do not count.
    if (length <= good.rfind(' ') + 1) bad.push_back(good.substr(0, length));
  }
  HostIdentity identity = sample_identity();
  identity.boot_id[3] = 'X';
  bad.push_back(to_line(identity));
  identity = sample_identity();
  identity.host = "";
  bad.push_back(to_line(identity));
  for (const char* number : {"-1", "+1", "007", "1.5", "99999999999999999999999", "0x10", ""}) {
    bad.push_back(good.substr(0, good.rfind(' ') + 1) + number);
  }
  for (const std::string& line : bad) EXPECT_FALSE(identity_from_line(line)) << "accepted: " << line;
}

TEST(Identity, SameHostNeedsBootIdNetworkAndUser) {
  const HostIdentity a = sample_identity();
  HostIdentity b = a;
  b.pid = 1;
  b.host = "another-name";
  EXPECT_TRUE(same_host(a, b).same);
  EXPECT_TRUE(share_pids(a, b));

  b.pid_namespace += 1;
  EXPECT_TRUE(same_host(a, b).same) << "containers on one host share memory";
  EXPECT_FALSE(share_pids(a, b));

  b = a;
  b.time_namespace += 1;
  EXPECT_TRUE(same_host(a, b).same);
  EXPECT_FALSE(share_pids(a, b)) << "their clocks may count from different moments";

  HostIdentity rebooted = a, elsewhere = a, stranger = a, contained = a;
  rebooted.boot_id[0] = '1';
  elsewhere.network_namespace += 1;
  stranger.uid += 1;
  contained.user_namespace += 1;
  EXPECT_NE(same_host(a, rebooted).why.find("boot id"), std::string::npos);
  EXPECT_NE(same_host(a, elsewhere).why.find("network namespace"), std::string::npos);
  EXPECT_NE(same_host(a, stranger).why.find("1001"), std::string::npos);
  EXPECT_NE(same_host(a, contained).why.find("user namespace"), std::string::npos);
  for (const HostIdentity& other : {rebooted, elsewhere, stranger, contained}) {
    EXPECT_FALSE(same_host(a, other).same);
    EXPECT_FALSE(same_host(other, a).same);
    EXPECT_FALSE(share_pids(a, other));
  }
}

// A pid says where a process is only together with its start.
TEST(Identity, AProcessThatShouldBeHereAndIsNotIsAbsent) {
  const HostIdentity self = local_identity();
  EXPECT_FALSE(is_absent(self, self));
  HostIdentity later = self;
  later.start_time += 1;
  EXPECT_TRUE(is_absent(later, self)) << "another process has its pid";
  later.start_time = 0;
  EXPECT_FALSE(is_absent(later, self)) << "nobody knows";

  HostIdentity ended = self;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  ended.pid = static_cast<uint64_t>(child);
  EXPECT_TRUE(is_absent(ended, self));
  ended.pid_namespace += 1;
  EXPECT_FALSE(is_absent(ended, self)) << "it is not looked for where pids mean something else";
}

const HostIdentity kHere{"a", "0c6f5d1e-7d0b-4d5b-9f0e-3f2a1b4c5d6e", 1, 2, 3, 4, 1000, 10, 11};
const Probe kWorked{Probe::Outcome::kWorked, ""};
const Probe kFailed{Probe::Outcome::kFailed, "rank 2: no memory left"};
const Probe kNotTried{};

HostIdentity elsewhere() {
  HostIdentity other = kHere;
  other.network_namespace += 1;
  return other;
}

bool says(const PairTransport& choice, const std::string& part) { return choice.why.find(part) != std::string::npos; }

TEST(PairTransport, OneHostSharesMemory) {
  for (const TransportChoice wanted : {TransportChoice::kAuto, TransportChoice::kShm}) {
    const PairTransport choice = choose_transport(wanted, kHere, kHere, kWorked);
    EXPECT_EQ(choice.via, Via::kShm);
    EXPECT_TRUE(says(choice, "shm: same boot id") && says(choice, "mapping probed")) << choice.why;
  }
}

TEST(PairTransport, AutoFallsBackToTcpAndSaysWhy) {
  const PairTransport apart = choose_transport(TransportChoice::kAuto, kHere, elsewhere(), kNotTried);
  EXPECT_EQ(apart.via, Via::kTcp);
  EXPECT_EQ(apart.why, "tcp: network namespaces differ");
  const PairTransport failed = choose_transport(TransportChoice::kAuto, kHere, kHere, kFailed);
  EXPECT_EQ(failed.via, Via::kTcp);
  EXPECT_TRUE(says(failed, kFailed.failure)) << failed.why;
  EXPECT_EQ(choose_transport(TransportChoice::kAuto, kHere, kHere, kNotTried).via, Via::kTcp)
      << "unproven is not shared";
}

TEST(PairTransport, AProbeCannotJoinTwoHosts) {
  EXPECT_EQ(choose_transport(TransportChoice::kAuto, kHere, elsewhere(), kWorked).via, Via::kTcp);
}

TEST(PairTransport, ForcedSharedMemoryIsNeverReplaced) {
  const PairTransport apart = choose_transport(TransportChoice::kShm, kHere, elsewhere(), kNotTried);
  EXPECT_EQ(apart.via, Via::kImpossible);
  EXPECT_TRUE(says(apart, "network namespaces differ")) << apart.why;
  const PairTransport failed = choose_transport(TransportChoice::kShm, kHere, kHere, kFailed);
  EXPECT_EQ(failed.via, Via::kImpossible);
  EXPECT_TRUE(says(failed, kFailed.failure)) << failed.why;
}

TEST(PairTransport, ForcedTcpWinsOverEverything) {
  for (const Probe& probe : {kWorked, kFailed, kNotTried}) {
    const PairTransport choice = choose_transport(TransportChoice::kTcp, kHere, kHere, probe);
    EXPECT_EQ(choice.via, Via::kTcp);
    EXPECT_TRUE(says(choice, "transport=tcp")) << choice.why;
  }
}

TEST(PairTransport, BothSidesDecideAlike) {
  for (const TransportChoice wanted : {TransportChoice::kAuto, TransportChoice::kShm, TransportChoice::kTcp}) {
    for (const Probe& probe : {kWorked, kFailed}) {
      const PairTransport here = choose_transport(wanted, kHere, elsewhere(), probe),
                          there = choose_transport(wanted, elsewhere(), kHere, probe);
      EXPECT_EQ(here.via, there.via);
      EXPECT_EQ(here.why, there.why);
    }
  }
}

}  // namespace
}  // namespace ringdp::transport
