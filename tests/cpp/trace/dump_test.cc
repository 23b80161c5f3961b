#include "trace/dump.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "environment.h"

namespace ringdp::trace {
namespace {

namespace fs = std::filesystem;

class DumpTest : public testing::Test {
 protected:
  void SetUp() override { folder_ = fs::temp_directory_path() / ("ringdp-dump-" + std::to_string(::getpid())); }
  void TearDown() override { fs::remove_all(folder_); }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) names.push_back(entry.path().filename());
    return names;
  }
  fs::path folder_;
};

TEST_F(DumpTest, IsNamedByTheRankInTheJob) {
  Recorder recorder(8);
  recorder.open({"pair", 1, {4, 6}});
  write_dump(recorder, folder_ / "new");
  write_dump(recorder, folder_ / "new");
  folder_ /= "new";
  EXPECT_EQ(files(), std::vector<std::string>{"rank_6"});
  folder_ = folder_.parent_path();
}

TEST_F(DumpTest, AFolderThatCannotBeMadeIsNamed) {
  const Recorder recorder(8);
  try {
    write_dump(recorder, "/dev/null/traces");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("/dev/null/traces/rank_0"), std::string::npos) << error.what();
  }
}

// The draft's name can be foretold.
TEST_F(DumpTest, WhatLiesInItsWayIsNeitherFollowedNorOpened) {
  fs::create_directories(folder_);
  const fs::path draft = folder_ / ("rank_0.draft." + std::to_string(::getpid()) + "~"), other = folder_ / "other";
  const Recorder recorder(8);
  std::ofstream(other) << "dear";
  fs::create_symlink(other, draft);
  write_dump(recorder, folder_);
  EXPECT_EQ(fs::file_size(other), 4u);
  ASSERT_EQ(::mkfifo(draft.c_str(), 0600), 0);
  write_dump(recorder, folder_);  // opening it would wait for a reader
  EXPECT_EQ(files().size(), 2u);
  fs::remove(folder_ / "rank_0");
  fs::create_symlink(other, folder_ / "rank_0");
  write_dump(recorder, folder_);
  EXPECT_EQ(fs::file_size(other), 4u);
  EXPECT_FALSE(fs::is_symlink(folder_ / "rank_0"));
}

TEST_F(DumpTest, WritesOnlyWhenAsked) {
  {
    const Variable unset("RINGDP_TRACE", nullptr);
    dump_if_asked();
  }
  EXPECT_FALSE(fs::exists(folder_));
  const Variable asked("RINGDP_TRACE", folder_.c_str());
  dump_if_asked();
  EXPECT_EQ(files().size(), 1u);
}

TEST_F(DumpTest, WhatAnEarlierRunLeftIsRemovedOnce) {
  fs::create_directories(folder_);
  const Variable asked("RINGDP_TRACE", folder_.c_str());
  for (const char* const name : {"rank_0", "rank_1"}) std::ofstream(folder_ / name) << "old";
  clear_dump_if_asked();
  EXPECT_EQ(files(), std::vector<std::string>{"rank_1"});
  dump_if_asked();
  clear_dump_if_asked();
  EXPECT_EQ(files().size(), 2u);
}

TEST_F(DumpTest, NeverThrowsInsideAGroup) {
  const Variable asked("RINGDP_TRACE", "/dev/null/traces");
  testing::internal::CaptureStderr();
  dump_if_asked();
  EXPECT_NE(testing::internal::GetCapturedStderr().find("RINGDP_TRACE"), std::string::npos);
}

}  // namespace
}  // namespace ringdp::trace
