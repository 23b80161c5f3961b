#include "trace/dump.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>

#include "base/env.h"
#include "base/error.h"
#include "base/helper_thread.h"
#include "base/log.h"
#include "base/unique_fd.h"
#include "trace/flight.h"

namespace ringdp::trace {
namespace {

namespace fs = std::filesystem;

fs::path file_of(int rank, const std::string& folder) { return fs::path(folder) / ("rank_" + std::to_string(rank)); }

// Links that lie there are not followed, nor is anything else opened that somebody may have put there.
void write_new(const fs::path& file, const std::string& bytes) {
  ::unlink(file.c_str());  // of a process of the same number that was killed
  const UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!fd) throw_errno("cannot make it");
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t written = ::write(fd.get(), bytes.data() + at, bytes.size() - at);
    if (written < 0 && errno != EINTR) throw_errno("cannot write it");
    at += static_cast<size_t>(std::max<ssize_t>(0, written));
  }
}

// The folder may be on a server that is away, and a driver or a group's first call must not wait for that for long: what
// does not come back is left behind, and the folder is not touched again.
void in_time(const std::function<void()>& task) {
  constexpr auto kPatience = std::chrono::seconds(2);
  static std::mutex* const mutex = new std::mutex;  // groups may fail at the same time
  static bool is_away = false;
  const std::lock_guard lock(*mutex);
  if (is_away) return;
  HelperThread helper;
  helper.begin(task);
  is_away = !helper.wait(Deadline::after(kPatience));
  if (is_away) throw Error(ErrorKind::kInternal, "the folder of RINGDP_TRACE does not answer: no more traces are written");
}

void warn_of(const std::function<void()>& task) noexcept {
  try {
    task();
  } catch (const std::exception& error) {
    log_line(LogLevel::kWarning, "", std::string(error.what()) + "; RINGDP_TRACE names a folder that can be written");
  }
}

}  // namespace

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
  static std::once_flag first;
  const auto folder = read_env("RINGDP_TRACE");
  if (!folder) return;
  // What cannot be removed cannot be replaced either, which dump_if_asked() says.
  const auto clear = [folder = *folder] {
    std::error_code ignored;
    fs::remove(file_of(recorder().rank(), folder), ignored);
  };
  std::call_once(first, [&] { warn_of([&] { in_time(clear); }); });
}

void dump_if_asked() noexcept {
  warn_of([] {
    if (const auto folder = read_env("RINGDP_TRACE")) in_time([folder = *folder] { write_dump(recorder(), folder); });
  });
}

}  // namespace ringdp::trace
