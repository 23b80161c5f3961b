#include "comm/process_state.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace ringdp::comm {
namespace {

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
