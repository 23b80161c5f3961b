#include "comm/peer_state.h"

#include <cctype>
#include <string_view>

#include "transport/process_fds.h"

namespace ringdp::comm {
namespace {

constexpr char kOfTheJob[] = " of the job";

}  // namespace

std::string process_of(const transport::HostIdentity& identity) {
  return "pid " + std::to_string(identity.pid) + " on " + identity.host;
}

std::string name_of_peer(int rank, int member, const transport::HostIdentity& process, const std::string& address) {
  const std::string job = member == rank ? "" : "rank " + std::to_string(member) + kOfTheJob + ", ";
  const std::string at = address.empty() ? "" : " at " + address;
  return "rank " + std::to_string(rank) + " (" + job + process_of(process) + at + ")";
}

Error with_name(const Error& error, int rank, const std::string& name) {
  std::string text = error.what();
  const std::string bare = "rank " + std::to_string(rank);
  const auto goes_on_with = [&](size_t at, std::string_view word) { return text.compare(at, word.size(), word) == 0; };
  for (size_t at = text.find(bare); at != std::string::npos; at = text.find(bare, at + 1)) {
    const size_t end = at + bare.size();
    const bool longer = end < text.size() && std::isdigit(static_cast<unsigned char>(text[end])) != 0;
    const bool in_a_call = goes_on_with(end, ", tag ");
    if (longer || in_a_call || goes_on_with(end, kOfTheJob)) continue;
    if (!goes_on_with(end, " (")) text.replace(at, bare.size(), name);
    break;
  }
  return Error(error.kind(), text, error.culprit());
}

std::string process_state(int pid) {
  const std::string stat = transport::stat_of(pid);
  if (stat.empty()) return "gone";
  switch (stat.front()) {
    case 'R':
      return "running";
    case 'S':
      return "sleeping";
    case 'D':
      return "in an uninterruptible wait (state D)";
    case 'T':
      return "stopped by a signal (state T)";
    case 't':
      return "stopped by a debugger (state t)";
    case 'Z':
      return "dead, not yet reaped (state Z)";
    default:
      return std::string("in state ") + stat.front();
  }
}

}  // namespace ringdp::comm
