#include "trace/dump.h"

#include <filesystem>
#include <fstream>

#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "trace/flight.h"

namespace ringdp::trace {
namespace {

namespace fs = std::filesystem;

int rank_in_job(const Recorder& recorder) {
  const std::vector<GroupFacts> groups = recorder.groups();
  return groups.empty() ? 0 : groups.front().members.at(groups.front().rank);
}

fs::path file_of(int rank, const std::string& folder) { return fs::path(folder) / ("rank_" + std::to_string(rank)); }

}  // namespace

void write_dump(const Recorder& recorder, const std::string& folder) {
  const Process process = this_process(rank_in_job(recorder));
  const fs::path file = file_of(process.rank, folder);
  const fs::path draft = file.string() + ".draft." + std::to_string(process.pid) + "~";
  try {
    fs::create_directories(folder);
    std::ofstream out(draft, std::ios::binary);
    out << flight_of(recorder, process);
    out.close();
    if (!out) throw Error(ErrorKind::kInternal, "cannot write it");
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
  std::error_code ignored;  // what cannot be removed cannot be replaced either, which dump_if_asked() says
  if (folder) std::call_once(first, [&] { fs::remove(file_of(rank_in_job(recorder()), *folder), ignored); });
}

void dump_if_asked() noexcept {
  static std::mutex* const mutex = new std::mutex;  // groups may fail at the same time
  const std::lock_guard lock(*mutex);
  try {
    if (const auto folder = read_env("RINGDP_TRACE")) write_dump(recorder(), *folder);
  } catch (const std::exception& error) {
    log_line(LogLevel::kWarning, "", std::string(error.what()) + "; RINGDP_TRACE names a folder that can be written");
  }
}

}  // namespace ringdp::trace
