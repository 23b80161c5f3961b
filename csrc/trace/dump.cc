#include "trace/dump.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/error.h"
#include "base/log.h"
#include "base/of_this_process.h"
#include "base/settings.h"
#include "base/threads.h"
#include "base/unique_fd.h"
#include "trace/pickle.h"

namespace ringdp::trace {
namespace {

// One collective, put together from its events.
struct Entry {
  Event call;  // its kEnqueued
  int64_t started_ns = 0, ended_ns = 0;
  bool finished = false;
  const char* state() const { return finished ? "completed" : started_ns != 0 ? "started" : "scheduled"; }
};

using Entries = std::map<std::pair<int32_t, uint64_t>, Entry>;  // by group number and seq

Entries entries_of(const std::vector<Event>& events) {
  Entries entries;
  for (const Event& event : events) {
    if (event.kind == Kind::kEnqueued) entries[{event.group, event.seq}].call = event;
  }
  for (const Event& event : events) {
    const auto found = entries.find({event.group, event.seq});
    if (found == entries.end()) continue;
    Entry& entry = found->second;
    if (event.kind == Kind::kStarted) entry.started_ns = event.time_ns;
    if (event.kind == Kind::kFinished || event.kind == Kind::kFailed) entry.ended_ns = event.time_ns;
    if (event.kind == Kind::kFinished) entry.finished = true;
  }
  return entries;
}

struct Group {
  GroupFacts facts;
  // A later group of the same name counts from 1 again, so tools must see only that one.
  bool is_latest_of_its_name = true;
};
using Groups = std::vector<Group>;

// The groups of a recorder, and their events, whose `group` is an index into `groups`.
struct Known {
  explicit Known(const Recorder& recorder);
  Groups groups;
  std::vector<Event> events;  // without those of groups that the recorder has dropped
};

Known::Known(const Recorder& recorder) {
  std::vector<Event> all = recorder.ring().read();  // first, so that every group with events is known
  std::map<int, int32_t> place_of;
  std::map<std::string, size_t> latest;
  for (auto& [number, facts] : recorder.groups()) {
    const size_t place = groups.size();
    place_of[number] = static_cast<int32_t>(place);
    const auto [same, is_new] = latest.emplace(facts.name, place);
    if (!is_new) groups[same->second].is_latest_of_its_name = false;
    same->second = place;
    groups.push_back({facts});
  }
  for (Event& event : all) {
    const auto found = place_of.find(event.group);
    if (event.group >= 0 && found == place_of.end()) continue;
    if (event.group >= 0) event.group = found->second;
    events.push_back(event);
  }
}

void add_sizes(Pickle& out, std::string_view key, int64_t count) {
  out.add(key);
  out.begin_list();
  out.begin_list();
  out.add(count);
  out.end_list();
  out.end_list();
}

void add_dtypes(Pickle& out, std::string_view key, DType dtype) {
  out.add(key);
  out.begin_list();
  out.add(name_of(dtype));
  out.end_list();
}

void add_entry(Pickle& out, const Entry& entry, const GroupFacts& group, int64_t wall_offset_ns) {
  const std::string what = entry.call.name;
  const int64_t count = entry.call.bytes / size_of(entry.call.dtype);
  const int64_t part = count / static_cast<int64_t>(group.members.size());
  out.begin_dict();
  out.entry("record_id", static_cast<int64_t>(entry.call.seq - 1));
  out.entry("pg_id", int64_t{entry.call.group});
  out.add("process_group");
  out.begin_tuple();
  out.add(group.name);
  out.add("ringdp");
  out.end_tuple();
  out.entry("collective_seq_id", static_cast<int64_t>(entry.call.seq));
  out.entry("p2p_seq_id", int64_t{0});
  out.entry("op_id", static_cast<int64_t>(entry.call.seq));
  out.entry("profiling_name", "gloo:" + what);
  add_sizes(out, "input_sizes", entry.call.part == Part::kInput ? part : count);
  add_sizes(out, "output_sizes", entry.call.part == Part::kOutput ? part : count);
  add_dtypes(out, "input_dtypes", entry.call.dtype);
  add_dtypes(out, "output_dtypes", entry.call.dtype);
  out.entry("state", entry.state());
  out.entry("time_created_ns", entry.call.time_ns + wall_offset_ns);
  const auto add_time = [&](std::string_view key, int64_t time_ns) {
    out.add(key);
    time_ns != 0 ? out.add(time_ns + wall_offset_ns) : out.add_none();
  };
  add_time("time_discovered_started_ns", entry.started_ns);
  add_time("time_discovered_completed_ns", entry.finished ? entry.ended_ns : 0);
  out.add("retired");
  out.add_bool(entry.ended_ns != 0);
  out.add("is_p2p");
  out.add_bool(false);
  out.add("frames");
  out.begin_list();
  out.end_list();
  out.end_dict();
}

std::string in_brackets(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return "[" + text + "]";
}

void add_config(Pickle& out, const Groups& groups) {
  out.add("pg_config");
  out.begin_dict();
  for (size_t number = 0; number < groups.size(); ++number) {
    if (!groups[number].is_latest_of_its_name) continue;
    out.add(groups[number].facts.name);
    out.begin_dict();
    out.entry("name", groups[number].facts.name);
    out.entry("desc", "ringdp");
    out.entry("ranks", in_brackets(groups[number].facts.members));
    out.end_dict();
  }
  out.end_dict();
}

// By group, the number of the latest collective that has got so far.
void add_status(Pickle& out, const Groups& groups, const Entries& entries) {
  struct Latest {
    int64_t enqueued = -1, started = -1, completed = -1;
  };
  std::vector<Latest> latest(groups.size());
  for (const auto& [key, entry] : entries) {
    Latest& of_group = latest.at(key.first);
    const auto seq = static_cast<int64_t>(key.second);
    of_group.enqueued = seq;
    if (entry.started_ns != 0) of_group.started = seq;
    if (entry.finished) of_group.completed = seq;
  }
  out.add("pg_status");
  out.begin_dict();
  for (size_t number = 0; number < groups.size(); ++number) {
    if (!groups[number].is_latest_of_its_name) continue;
    out.add(groups[number].facts.name);
    out.begin_dict();
    out.entry("last_enqueued_collective", latest[number].enqueued);
    out.entry("last_started_collective", latest[number].started);
    out.entry("last_completed_collective", latest[number].completed);
    out.end_dict();
  }
  out.end_dict();
}

void add_event(Pickle& out, const Event& event) {
  out.begin_tuple();
  out.add(name_of(event.kind));
  for (const int64_t number : {event.time_ns, int64_t{event.thread}, int64_t{event.group},
                               static_cast<int64_t>(event.seq), int64_t{event.peer}, event.bytes, event.ns}) {
    out.add(number);
  }
  out.add(event.name ? event.name : "");
  out.add(name_of(event.dtype));
  out.add(name_of(event.op));
  out.end_tuple();
}

void add_own(Pickle& out, const Recorder& recorder, const Process& process, const Groups& groups,
             const std::vector<Event>& events) {
  out.add("ringdp");
  out.begin_dict();
  out.entry("format", int64_t{1});
  out.entry("rank", int64_t{process.rank});
  out.entry("pid", int64_t{process.pid});
  out.entry("host", process.host);
  out.entry("boot", process.boot);
  out.entry("wall_ns", process.wall_ns);
  out.entry("steady_ns", process.steady_ns);
  out.entry("written", static_cast<int64_t>(recorder.ring().written()));
  out.entry("lost", static_cast<int64_t>(recorder.ring().lost()));
  out.add("groups");
  out.begin_list();
  for (const Group& group : groups) {
    out.begin_tuple();
    out.add(group.facts.name);
    out.add(int64_t{group.facts.rank});
    out.begin_list();
    for (const int rank : group.facts.members) out.add(int64_t{rank});
    out.end_list();
    out.end_tuple();
  }
  out.end_list();
  out.add("events");
  out.begin_list();
  for (const Event& event : events) add_event(out, event);
  out.end_list();
  out.end_dict();
}

std::string first_line_of(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

namespace fs = std::filesystem;

fs::path file_of(int rank, const std::string& folder) { return fs::path(folder) / ("rank_" + std::to_string(rank)); }

// Neither follows a link nor opens any other file that another user may have put there.
void write_new(const fs::path& file, const std::string& bytes) {
  ::unlink(file.c_str());  // left by a killed process with the same pid
  const UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!fd) throw_errno("cannot make it");
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t written = ::write(fd.get(), bytes.data() + at, bytes.size() - at);
    if (written < 0 && errno != EINTR) throw_errno("cannot write it");
    at += static_cast<size_t>(std::max<ssize_t>(0, written));
  }
}

FolderCalls& folder_calls() {
  static OfThisProcess<FolderCalls> instance;
  return instance.get();
}

void warn_of(const std::function<void()>& task) noexcept {
  try {
    task();
  } catch (const std::exception& error) {
    log_line(LogLevel::kWarning, "", std::string(error.what()) + "; RINGDP_TRACE names a folder that can be written");
  }
}

}  // namespace

void FolderCalls::make(const std::function<void()>& call) {
  const std::lock_guard lock(mutex_);
  if (is_away_) return;
  HelperThread helper;
  helper.begin(call);
  is_away_ = !helper.wait(Deadline::after(patience_));
  if (!is_away_) return;
  throw Error(ErrorKind::kInternal, "the folder of RINGDP_TRACE does not answer: no more traces are written");
}

Process this_process(int rank) {
  char host[256] = {};
  if (::gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  return {rank,
          ::getpid(),
          host,
          first_line_of("/proc/sys/kernel/random/boot_id"),
          std::chrono::duration_cast<std::chrono::nanoseconds>(wall).count(),
          now_ns()};
}

std::string flight_of(const Recorder& recorder, const Process& process) {
  const auto [groups, events] = Known(recorder);
  const Entries entries = entries_of(events);
  Pickle out;
  out.begin_dict();
  out.entry("version", "2.10");
  add_config(out, groups);
  add_status(out, groups, entries);
  out.add("entries");
  out.begin_list();
  for (const auto& [key, entry] : entries) {
    if (groups.at(key.first).is_latest_of_its_name) {
      add_entry(out, entry, groups[key.first].facts, process.wall_ns - process.steady_ns);
    }
  }
  out.end_list();
  add_own(out, recorder, process, groups, events);
  out.end_dict();
  return out.finish();
}

void write_dump(const Recorder& recorder, const std::string& folder) {
  const Process process = this_process(recorder.rank());
  const fs::path file = file_of(process.rank, folder);
  const fs::path draft = file.string() + ".draft." + std::to_string(process.pid) + "~";
  try {
    fs::create_directories(folder);
    write_new(draft, flight_of(recorder, process));
    fs::rename(draft, file);
  } catch (const std::exception& error) {
    std::error_code ignored;
    fs::remove(draft, ignored);
    throw Error(ErrorKind::kInternal, "trace " + file.string() + ": " + error.what());
  }
}

void clear_dump_if_asked() noexcept {
  static std::once_flag first;  // a child that is forked meanwhile makes the call itself
  const auto folder = read_env("RINGDP_TRACE");
  if (!folder) return;
  // A file that cannot be removed cannot be replaced either, and then dump_if_asked() warns.
  const auto clear = [folder = *folder] {
    std::error_code ignored;
    fs::remove(file_of(recorder().rank(), folder), ignored);
  };
  std::call_once(first, [&] { warn_of([&] { folder_calls().make(clear); }); });
}

void dump_if_asked() noexcept {
  warn_of([] {
    const auto folder = read_env("RINGDP_TRACE");
    if (folder) folder_calls().make([folder = *folder] { write_dump(recorder(), folder); });
  });
}

}  // namespace ringdp::trace
