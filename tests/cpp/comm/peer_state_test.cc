#include "comm/peer_state.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace ringdp::comm {
namespace {

transport::HostIdentity process() {
  transport::HostIdentity identity;
  identity.host = "node-a";
  identity.pid = 77;
  return identity;
}

std::string named(const std::string& text, int rank = 1) {
  return with_name(Error(ErrorKind::kInternal, text, rank), rank, "NAME").what();
}

TEST(PeerName, SaysWhatThereIsToSay) {
  EXPECT_EQ(name_of_peer(1, 1, process()), "rank 1 (pid 77 on node-a)");
  EXPECT_EQ(name_of_peer(1, 3, process()), "rank 1 (rank 3 of the job, pid 77 on node-a)");
  EXPECT_EQ(name_of_peer(1, 1, process(), "10.0.0.2"), "rank 1 (pid 77 on node-a at 10.0.0.2)");
}

TEST(PeerName, TakesThePlaceOfTheFirstMention) {
  EXPECT_EQ(named("rank 1 sent bytes to rank 0"), "NAME sent bytes to rank 0");
  EXPECT_EQ(named("the link to rank 1"), "the link to NAME");
  EXPECT_EQ(named("rank 1's socket of rank 1"), "NAME's socket of rank 1");
}

TEST(PeerName, MeansThisRankOnly) {
  EXPECT_EQ(named("rank 12 and rank 1: no"), "rank 12 and NAME: no");
  EXPECT_EQ(named("rank 0 (rank 1 of the job, pid 7 on b) lost rank 1"),
            "rank 0 (rank 1 of the job, pid 7 on b) lost NAME");
  EXPECT_EQ(named("rank 0 called send(int8 x 4 to rank 1, tag 7), rank 1 did not"),
            "rank 0 called send(int8 x 4 to rank 1, tag 7), NAME did not");
  EXPECT_EQ(named("nobody is to blame"), "nobody is to blame");
}

TEST(PeerName, IsNotSaidTwice) {
  const std::string text = name_of_peer(1, 3, process()) + " died: rank 1";
  EXPECT_EQ(named(text), text);
}

TEST(PeerName, KeepsKindAndCulprit) {
  const Error error = with_name(Error(ErrorKind::kTimeout, "rank 1", 1), 1, "NAME");
  EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
  EXPECT_EQ(error.culprit(), 1);
}

TEST(ProcessState, TellsRunningStoppedAndGone) {
  EXPECT_EQ(process_state(::getpid()), "running");
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  ::kill(child, SIGSTOP);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  EXPECT_EQ(process_state(child), "stopped by a signal (state T)");
  ::kill(child, SIGKILL);
  siginfo_t info;
  ASSERT_EQ(::waitid(P_PID, child, &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(process_state(child), "dead, not yet reaped (state Z)");
  ::waitpid(child, &status, 0);
  EXPECT_EQ(process_state(child), "gone");
}

}  // namespace
}  // namespace ringdp::comm
