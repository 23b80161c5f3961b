// Python's side, torch's own analyser included, is in tests/python/tools/observe; here what goes in.
#include "trace/dump.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <tuple>

#include "base/error.h"
#include "environment.h"
#include "trace/pickle.h"

namespace ringdp::trace {
namespace {

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

Event event(Kind kind, int group, uint64_t seq, int64_t time_ns) {
  Event event;
  event.kind = kind;
  event.group = group;
  event.seq = seq;
  event.time_ns = time_ns;
  event.bytes = 64;
  event.name = "all_reduce";
  return event;
}

const Process kProcess{1, 42, "node", "boot", 1000, 10};

TEST(Flight, ACollectiveIsInTheStateThatItsEventsSay) {
  Recorder recorder(64);
  recorder.open({"0", 1, {0, 1}});
  recorder.note(event(Kind::kEnqueued, 0, 1, 11));
  recorder.note(event(Kind::kStarted, 0, 1, 12));
  recorder.note(event(Kind::kFinished, 0, 1, 13));
  recorder.note(event(Kind::kEnqueued, 0, 2, 14));
  recorder.note(event(Kind::kStarted, 0, 2, 15));
  recorder.note(event(Kind::kFailed, 0, 2, 16));
  recorder.note(event(Kind::kEnqueued, 0, 3, 17));
  const std::string dump = flight_of(recorder, kProcess);
  EXPECT_EQ(count_of(dump, "profiling_name"), 3u);
  EXPECT_EQ(count_of(dump, "completed"), 1u + 4u);  // and the keys: 3 times of entries, 1 number of the group
  EXPECT_EQ(count_of(dump, "scheduled"), 1u);
  EXPECT_EQ(count_of(dump, "gloo:all_reduce"), 3u);
}

// A size in a list of lists, as Pickle writes it.
std::string size_of_one(char elements) { return std::string("](](\x8a\x08") + elements + std::string(7, '\0') + "ee"; }

TEST(Flight, TheSideThatIsAPartHasTheSizeOfAPart) {
  using Case = std::tuple<Part, int, int>;
  for (const auto& [part, input, output] :
       {Case(Part::kNeither, 64, 64), Case(Part::kInput, 32, 64), Case(Part::kOutput, 64, 32)}) {
    Recorder recorder(64);
    recorder.open({"0", 1, {0, 1}});
    Event call = event(Kind::kEnqueued, 0, 1, 11);
    call.part = part;
    recorder.note(call);
    const std::string dump = flight_of(recorder, kProcess);
    EXPECT_EQ(count_of(dump, "input_sizes" + size_of_one(static_cast<char>(input))), 1u);
    EXPECT_EQ(count_of(dump, "output_sizes" + size_of_one(static_cast<char>(output))), 1u);
  }
}

// What began before the oldest event that is left has no entry: its call is not known.
TEST(Flight, WhatWasOverwrittenHasNoEntry) {
  Recorder recorder(64);
  recorder.open({"0", 0, {0}});
  recorder.note(event(Kind::kFinished, 0, 1, 11));
  recorder.note(event(Kind::kEnqueued, 0, 2, 12));
  EXPECT_EQ(count_of(flight_of(recorder, kProcess), "profiling_name"), 1u);
}

TEST(Flight, OfGroupsThatShareANameTheLatestHasEntries) {
  Recorder recorder(64);
  recorder.open({"0", 0, {0}});
  recorder.open({"0", 0, {0}});
  recorder.note(event(Kind::kEnqueued, 0, 1, 11));
  recorder.note(event(Kind::kEnqueued, 1, 1, 12));
  const std::string dump = flight_of(recorder, kProcess);
  EXPECT_EQ(count_of(dump, "profiling_name"), 1u);
  EXPECT_EQ(count_of(dump, "enqueued") - count_of(dump, "last_enqueued"), 2u);  // all events are there
}

// Groups are named by their places in the dump, whatever was forgotten before them.
TEST(Flight, AGroupThatIsForgottenTakesItsEventsWithIt) {
  Recorder recorder(8);
  for (size_t number = 0; number <= Recorder::kMostClosed; ++number) recorder.close(recorder.open({"old", 0, {0}}));
  const int latest = recorder.open({"new", 0, {0}});
  recorder.note(event(Kind::kEnqueued, 0, 1, 11));
  recorder.note(event(Kind::kEnqueued, latest, 1, 12));
  const std::string dump = flight_of(recorder, kProcess);
  EXPECT_EQ(count_of(dump, "profiling_name"), 1u);
  EXPECT_EQ(count_of(dump, "enqueued") - count_of(dump, "last_enqueued"), 1u);
}

// A step's events belong to no group, and need no name.
TEST(Flight, AnEventOfNoGroupIsKeptWithoutAnEntry) {
  Recorder recorder(8);
  recorder.open({"0", 0, {0}});
  Event step = event(Kind::kStepped, -1, 1, 11);
  step.name = nullptr;
  recorder.note(step);
  const std::string dump = flight_of(recorder, kProcess);
  EXPECT_EQ(count_of(dump, "stepped"), 1u);
  EXPECT_EQ(count_of(dump, "profiling_name"), 0u);
}

TEST(Flight, ThisProcessSaysWhoAndWhen) {
  const Process process = this_process(3);
  EXPECT_EQ(process.rank, 3);
  EXPECT_EQ(process.pid, ::getpid());
  EXPECT_FALSE(process.host.empty());
  EXPECT_GT(process.wall_ns, 0);
  EXPECT_LE(process.steady_ns, now_ns());
}

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

// As when a disk is full: the draft goes, and what was there stays.
TEST_F(DumpTest, WhatCannotBeWrittenWholeReplacesNothing) {
  fs::create_directories(folder_);
  std::ofstream(folder_ / "rank_0") << "before";
  const Recorder recorder(8);
  rlimit usual;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &usual), 0);
  const rlimit little{16, usual.rlim_max};
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &little);
  std::string said;
  try {
    write_dump(recorder, folder_);
  } catch (const Error& error) {
    said = error.what();
  }
  ::setrlimit(RLIMIT_FSIZE, &usual);
  ::signal(SIGXFSZ, handler);
  EXPECT_NE(said.find("rank_0: cannot write it: File too large"), std::string::npos) << said;
  EXPECT_EQ(files(), std::vector<std::string>{"rank_0"});
  EXPECT_EQ(fs::file_size(folder_ / "rank_0"), 6u);
}

TEST_F(DumpTest, AFolderInTheDraftsPlaceIsNamed) {
  fs::create_directories(folder_ / ("rank_0.draft." + std::to_string(::getpid()) + "~") / "kept");
  const Recorder recorder(8);
  try {
    write_dump(recorder, folder_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("rank_0: cannot make it: File exists"), std::string::npos) << error.what();
  }
}

TEST_F(DumpTest, WritesOnlyWhenAsked) {
  {
    const Variable unset("RINGDP_TRACE", nullptr);
    clear_dump_if_asked();
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

TEST(FolderCalls, ACallThatReturnsIsWaitedFor) {
  FolderCalls calls(std::chrono::hours(1));
  int made = 0;
  calls.make([&] { ++made; });
  EXPECT_THROW(calls.make([] { throw Error(ErrorKind::kInternal, "full"); }), Error);
  calls.make([&] { ++made; });
  EXPECT_EQ(made, 2);
}

// As with a server that does not answer. What is abandoned may go on for ever, so it owns what it uses.
TEST(FolderCalls, ACallThatHangsIsAbandonedAndTheLast) {
  FolderCalls calls(std::chrono::milliseconds(1));
  const auto answer = std::make_shared<std::promise<void>>();
  try {
    calls.make([answer] { answer->get_future().wait(); });
    ADD_FAILURE() << "the folder has not answered";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("the folder of RINGDP_TRACE does not answer"), std::string::npos);
  }
  calls.make([] { ADD_FAILURE() << "the folder was used again"; });
  answer->set_value();
}

// Pickles: the bytes, as the protocol defines them.

std::string literal(const char* bytes, size_t size) { return {bytes, size}; }

TEST(Pickle, Numbers) {
  Pickle out;
  out.add(int64_t{-2});
  EXPECT_EQ(out.finish(), literal("\x80\x02\x8a\x08\xfe\xff\xff\xff\xff\xff\xff\xff.", 13));
}

TEST(Pickle, TextsAreCountedInBytes) {
  Pickle out;
  out.add("\xc3\xa9t");
  EXPECT_EQ(out.finish(), literal("\x80\x02X\x03\x00\x00\x00\xc3\xa9t.", 11));
}

TEST(Pickle, ContainersNest) {
  Pickle out;
  out.begin_dict();
  out.add("k");
  out.begin_list();
  out.begin_tuple();
  out.add_bool(true);
  out.add_none();
  out.end_tuple();
  out.end_list();
  out.end_dict();
  EXPECT_EQ(out.finish(), literal("\x80\x02}(X\x01\x00\x00\x00k]((\x88Nteu.", 19));
}

}  // namespace
}  // namespace ringdp::trace
