#include "transport/identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <vector>

#include "base/error.h"
#include "transport/process_fds.h"

namespace ringdp::transport {
namespace {

constexpr char kFormat[] = "identity-3";
constexpr size_t kFields = 10;
constexpr size_t kLongestLine = 512;
constexpr size_t kBootIdLength = 36;

bool is_printable(char c) { return c > ' ' && c < 127; }

std::string read_host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "unknown";
  std::string host = name;
  // The line is split at spaces, so the name must not contain any.
  std::replace_if(
      host.begin(), host.end(), [](char c) { return !is_printable(c); }, '?');
  return host;
}

std::string read_boot_id() {
  const char* const path = "/proc/sys/kernel/random/boot_id";
  std::ifstream file(path);
  std::string id;
  if (!(file >> id)) throw_errno(std::string("cannot read ") + path + " (is /proc mounted?)");
  return id;
}

uint64_t namespace_inode(const char* path) {
  struct stat status {};
  if (::stat(path, &status) != 0) throw_errno(std::string("cannot look at ") + path + " (is /proc mounted?)");
  return status.st_ino;
}

std::vector<std::string> split_at_spaces(const std::string& line) {
  std::vector<std::string> fields(1);
  for (const char c : line) {
    if (c == ' ') {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  return fields;
}

bool parse_number(const std::string& text, uint64_t& number) {
  const char* end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, number);
  return failure == std::errc() && stop == end;
}

bool is_boot_id(const std::string& text) {
  return text.size() == kBootIdLength && text.find_first_not_of("0123456789abcdef-") == std::string::npos;
}

// Empty when nothing is in the way of shared memory.
std::string obstacle(const SameHost& host, const Probe& probe) {
  if (!host.same) return host.why;
  if (probe.outcome == Probe::Outcome::kNotTried) return "memory was not probed";
  return probe.outcome == Probe::Outcome::kFailed ? probe.failure : "";
}

}  // namespace

HostIdentity local_identity() {
  HostIdentity identity;
  identity.host = read_host_name();
  identity.boot_id = read_boot_id();
  identity.network_namespace = namespace_inode("/proc/self/ns/net");
  identity.pid_namespace = namespace_inode("/proc/self/ns/pid");
  if (::access("/proc/self/ns/user", F_OK) == 0) identity.user_namespace = namespace_inode("/proc/self/ns/user");
  if (::access("/proc/self/ns/time", F_OK) == 0) identity.time_namespace = namespace_inode("/proc/self/ns/time");
  identity.uid = ::geteuid();
  identity.pid = static_cast<uint64_t>(::getpid());
  identity.start_time = start_time_of(::getpid());
  return identity;
}

std::string to_line(const HostIdentity& identity) {
  return std::string(kFormat) + " " + identity.host + " " + identity.boot_id + " " +
         std::to_string(identity.network_namespace) + " " + std::to_string(identity.pid_namespace) + " " +
         std::to_string(identity.user_namespace) + " " + std::to_string(identity.time_namespace) + " " +
         std::to_string(identity.uid) + " " + std::to_string(identity.pid) + " " + std::to_string(identity.start_time);
}

std::optional<HostIdentity> identity_from_line(const std::string& line) {
  if (line.size() > kLongestLine) return std::nullopt;
  const std::vector<std::string> fields = split_at_spaces(line);
  if (fields.size() != kFields || fields[0] != kFormat) return std::nullopt;
  HostIdentity identity;
  identity.host = fields[1];
  identity.boot_id = fields[2];
  if (identity.host.empty() || !std::all_of(identity.host.begin(), identity.host.end(), is_printable)) {
    return std::nullopt;
  }
  bool valid = is_boot_id(identity.boot_id);
  size_t field = 3;
  for (uint64_t* number : {&identity.network_namespace, &identity.pid_namespace, &identity.user_namespace,
                           &identity.time_namespace, &identity.uid, &identity.pid, &identity.start_time}) {
    valid = valid && parse_number(fields[field++], *number);
  }
  // "007" parses but is not what to_line() writes.
  if (!valid || to_line(identity) != line) return std::nullopt;
  return identity;
}

SameHost same_host(const HostIdentity& a, const HostIdentity& b) {
  if (a.boot_id != b.boot_id) return {false, "boot ids differ: two hosts"};
  if (a.network_namespace != b.network_namespace) return {false, "network namespaces differ"};
  if (a.user_namespace != b.user_namespace) return {false, "user namespaces differ"};
  if (a.uid != b.uid) return {false, "users differ: uid " + std::to_string(a.uid) + " and " + std::to_string(b.uid)};
  return {true, "same boot id, network namespace and user"};
}

bool share_pids(const HostIdentity& a, const HostIdentity& b) {
  return same_host(a, b).same && a.pid_namespace == b.pid_namespace && a.time_namespace == b.time_namespace;
}

bool is_absent(const HostIdentity& peer, const HostIdentity& self) {
  if (!share_pids(peer, self) || peer.start_time == 0) return false;
  const auto pid = static_cast<pid_t>(peer.pid);
  const uint64_t found = start_time_of(pid);
  return found != 0 ? found != peer.start_time : !exists(pid);
}

PairTransport choose_transport(TransportChoice wanted, const HostIdentity& a, const HostIdentity& b,
                               const Probe& probe) {
  if (wanted == TransportChoice::kTcp) return {Via::kTcp, "tcp: asked for with transport=tcp"};
  const SameHost host = same_host(a, b);
  const std::string in_the_way = obstacle(host, probe);
  if (in_the_way.empty()) return {Via::kShm, "shm: " + host.why + ", mapping probed"};
  if (wanted == TransportChoice::kShm) return {Via::kImpossible, in_the_way};
  return {Via::kTcp, "tcp: " + in_the_way};
}

}  // namespace ringdp::transport
