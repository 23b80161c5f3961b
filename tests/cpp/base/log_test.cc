// Lines have one form, levels above the threshold are silent, and lines of several threads stay whole.
#include "base/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"

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

// stderr as a launcher gives it, that does not read it.
TEST_F(Log, APipeThatNobodyReadsHoldsNobodyUp) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const int room = ::fcntl(ends[1], F_SETPIPE_SZ, 4096);
  const UniqueFd reading(ends[0]), usual(::dup(STDERR_FILENO));
  ::dup2(ends[1], STDERR_FILENO);
  ::close(ends[1]);
  const std::string line(100, 'x');
  constexpr int kLines = 100;
  std::promise<void> written;
  std::thread writer([&] {
    for (int i = 0; i < kLines; ++i) log_line(LogLevel::kError, "", line);
    written.set_value();
  });
  const bool waited = written.get_future().wait_for(std::chrono::seconds(30)) != std::future_status::ready;
  std::string output(static_cast<size_t>(room), '\0');
  output.resize(static_cast<size_t>(std::max<ssize_t>(0, ::read(reading.get(), output.data(), output.size()))));
  if (waited) {
    ADD_FAILURE() << "a line waited for a reader";
    ::dup2(usual.get(), STDERR_FILENO);
    std::thread([fd = ::dup(reading.get())] {
      for (char rest; ::read(fd, &rest, 1) > 0;) continue;
    }).detach();
    return writer.join();
  }
  writer.join();
  log_line(LogLevel::kError, "", "there is room again");
  std::string last(4096, '\0');
  last.resize(static_cast<size_t>(::read(reading.get(), last.data(), last.size())));
  ::dup2(usual.get(), STDERR_FILENO);
  const int whole = static_cast<int>(std::count(output.begin(), output.end(), '\n'));
  EXPECT_GT(whole, 0);
  EXPECT_NE(last.find("so " + std::to_string(kLines - whole) + " lines were lost here\n"), std::string::npos) << last;
  EXPECT_NE(last.find("] error: there is room again\n"), std::string::npos) << last;
}

// As a daemon has it.
TEST_F(Log, WithoutStderrLinesAreCountedAsLost) {
  const UniqueFd usual(::dup(STDERR_FILENO));
  ::close(STDERR_FILENO);
  log_line(LogLevel::kError, "", "nobody hears this");
  ::dup2(usual.get(), STDERR_FILENO);
  const std::string said = stderr_of([] { log_line(LogLevel::kError, "", "stderr is back"); });
  EXPECT_NE(said.find("so 1 lines were lost here\n"), std::string::npos) << said;
  EXPECT_NE(said.find("] error: stderr is back\n"), std::string::npos) << said;
}

}  // namespace
}  // namespace ringdp
