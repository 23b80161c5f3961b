// Lines have one form, levels above the threshold are silent, and lines of several threads stay whole.
#include "base/log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace ringdp {
namespace {

constexpr LogLevel kLevels[] = {LogLevel::kError, LogLevel::kWarning, LogLevel::kInfo, LogLevel::kDebug};

class Log : public ::testing::Test {
 protected:
  void TearDown() override { set_log_level(LogLevel::kWarning); }

  template <class Call>
  static std::string stderr_of(Call call) {
    ::testing::internal::CaptureStderr();
    call();
    return ::testing::internal::GetCapturedStderr();
  }
};

TEST_F(Log, WarningsAreShownByDefaultAndNotesAreNot) {
  EXPECT_TRUE(log_enabled(LogLevel::kWarning));
  EXPECT_FALSE(log_enabled(LogLevel::kInfo));
}

TEST_F(Log, ALineNamesTheWriterAndTheLevel) {
  EXPECT_EQ(stderr_of([] { log_line(LogLevel::kWarning, "rank 2/4", "rank 3 is late"); }),
            "[ringdp rank 2/4] warning: rank 3 is late\n");
  EXPECT_EQ(stderr_of([] { log_line(LogLevel::kError, "", "no memory"); }), "[ringdp] error: no memory\n");
}

TEST_F(Log, ExactlyTheLevelsUpToTheThresholdAreWritten) {
  for (const LogLevel threshold : kLevels) {
    set_log_level(threshold);
    for (const LogLevel level : kLevels) {
      EXPECT_EQ(log_enabled(level), level <= threshold);
      EXPECT_EQ(stderr_of([&] { log_line(level, "", "x"); }).empty(), level > threshold);
    }
  }
}

TEST_F(Log, LinesOfSeveralThreadsDoNotMix) {
  constexpr int kThreads = 4, kLines = 200;
  const std::string output = stderr_of([] {
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([t] {
        for (int i = 0; i < kLines; ++i) log_line(LogLevel::kError, "", std::string(60, char('a' + t)));
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  std::map<std::string, int> seen;
  std::stringstream lines(output);
  for (std::string line; std::getline(lines, line);) ++seen[line];
  EXPECT_EQ(seen.size(), size_t{kThreads});
  for (const auto& [line, times] : seen) EXPECT_EQ(times, kLines) << line;
}

}  // namespace
}  // namespace ringdp
