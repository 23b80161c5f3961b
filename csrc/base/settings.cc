#include "base/settings.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>

#include "base/error.h"

namespace ringdp {
namespace {

const char kTransports[] = "auto|shm|tcp";
const char kAlgorithms[] = "auto|arena|direct|exchange|ring|hierarchy|tree|halving|server";
const char kOrders[] = "rank|rotated|tree";
const char kWires[] = "fp32|bf16|fp16|fp8|int8";  // in the order of WireType
const char kChecks[] = "crc32c|off";
const char kBytes[] = "0..1099511627776", kSlotBytes[] = "4096..1073741824";
const char kTraceEvents[] = "16384";
const char kLogLevels[] = "error|warning|info|debug";

// Position of `value` in "a|b|c", -1 when absent.
int index_in(const std::string& choices, const std::string& value) {
  int index = 0;
  for (size_t at = 0; at <= choices.size(); ++index) {
    const size_t end = std::min(choices.find('|', at), choices.size());
    if (choices.compare(at, end - at, value) == 0) return index;
    at = end + 1;
  }
  return -1;
}

std::string choice_at(const std::string& choices, int index) {
  size_t at = 0;
  while (index-- > 0) at = choices.find('|', at) + 1;
  return choices.substr(at, choices.find('|', at) - at);
}

std::string with_commas(const std::string& choices) {
  std::string text;
  for (const char c : choices) text += c == '|' ? std::string(", ") : std::string(1, c);
  return text;
}

const IntField<Settings> kIntFields[] = {
    {"segment_bytes", &Settings::segment_bytes, 64, 1 << 30},
    {"slot_bytes", &Settings::slot_bytes, 4096, 1 << 30, true},
    {"link_bytes", &Settings::link_bytes, 4096, 1 << 30},
    {"heap_bytes", &Settings::heap_bytes, 0, int64_t{1} << 40},
    {"window_bytes", &Settings::window_bytes, 1 << 20, int64_t{1} << 40, true},
    {"blocks", &Settings::blocks, 0, 64},
    {"tcp_streams", &Settings::tcp_streams, 0, 64},
    {"spin_us", &Settings::spin_us, 0, 1000000},
    {"late_ms", &Settings::late_ms, 10, 86400000, true},
    {"unreachable_ms", &Settings::unreachable_ms, 100, 86400000},
};

struct TextField {
  const char* field;
  std::string Settings::*member;
};
const TextField kTextFields[] = {{"socket_ifname", &Settings::socket_ifname},
                                 {"tls_cert", &Settings::tls_cert},
                                 {"tls_key", &Settings::tls_key},
                                 {"tls_ca", &Settings::tls_ca}};

[[noreturn]] void refuse(const std::string& field, const std::string& value, const std::string& expected) {
  throw Error(ErrorKind::kInvalidArgument,
              "invalid value '" + value + "' for " + field + " (expected " + expected + ")");
}

template <class Owner>
int64_t parse_int(const IntField<Owner>& f, const std::string& value) {
  errno = 0;
  char* end = nullptr;
  const long long n = std::strtoll(value.c_str(), &end, 10);
  const bool in_range = (n >= f.low && n <= f.high) || (f.or_zero && n == 0);
  if (value.empty() || end != value.c_str() + value.size() || errno != 0 || !in_range) {
    refuse(f.field, value,
           std::string(f.or_zero ? "0 or " : "") + "a whole number from " + std::to_string(f.low) + " to " +
               std::to_string(f.high));
  }
  return n;
}

template <class Field, size_t N>
const Field* find_field(const Field (&fields)[N], const std::string& name) {
  for (const auto& f : fields) {
    if (name == f.field) return &f;
  }
  return nullptr;
}

[[noreturn]] void refuse_unknown(const std::string& field) {
  std::string known;
  for (const SettingRow& row : setting_table()) {
    if (*row.field) known += (known.empty() ? "" : ", ") + std::string(row.field);
  }
  throw Error(ErrorKind::kInvalidArgument, "ringdp has no setting '" + field + "'; it has " + known);
}

template <class Choice>
Choice parse_choice(const char* field, const char* choices, const std::string& value) {
  const int index = index_in(choices, value);
  if (index < 0) refuse(field, value, "one of: " + with_commas(choices));
  return static_cast<Choice>(index);
}

}  // namespace

const std::vector<SettingRow>& setting_table() {
  static const std::vector<SettingRow> kTable = {
      {"transport", "RINGDP_TRANSPORT", "auto", kTransports,
       "how bytes reach a peer; auto: shared memory on one host, TCP between hosts"},
      {"algorithm", "RINGDP_ALGORITHM", "auto", kAlgorithms,
       "which plan runs; auto: the fastest one that sums in the order asked for"},
      {"order", "RINGDP_ORDER", "rank", kOrders,
       "order of sums: rank 0..N-1; the textbook ring's; a balanced tree over the ranks, (0+1)+(2+3)"},
      {"wire", "RINGDP_WIRE", "fp32", kWires,
       "what sums of wider floats travel as on links; below fp32: fewer bytes, not one process's bits"},
      {"check", "RINGDP_CHECK", "crc32c", kChecks,
       "a CRC-32C of each segment on TCP links, by the processor's instructions; off: only TCP's own sum of 16 bits "
       "remains; under TLS the setting has no effect"},
      {"socket_ifname", "RINGDP_SOCKET_IFNAME", "", "an interface name",
       "the one interface TCP binds to; empty: the one that routes to MASTER_ADDR"},
      {"tls_cert", "RINGDP_TLS_CERT", "", "a PEM file",
       "with the next two: all TCP between ranks is TLS 1.3, and this certificate is shown to peers; empty: in plain"},
      {"tls_key", "RINGDP_TLS_KEY", "", "a PEM file", "its private key, without a passphrase"},
      {"tls_ca", "RINGDP_TLS_CA", "", "a PEM file",
       "the authority that signs the certificates of peers: any peer with such a certificate is admitted"},
      {"segment_bytes", "RINGDP_SEGMENT_BYTES", "262144", "64..1073741824", "pipelining unit on links"},
      {"slot_bytes", "RINGDP_SLOT_BYTES", "0", "0, 4096..1073741824",
       "staging slot per rank in shared memory; 0: slot_bytes_of_two and the next two"},
      {"link_bytes", "RINGDP_LINK_BYTES", "524288", "4096..1073741824",
       "capacity of one direction of a shared-memory link"},
      {"heap_bytes", "RINGDP_HEAP_BYTES", "68719476736", "0..1099511627776",
       "address space per rank for ringdp.empty, memory only where it is touched; 0: none"},
      {"window_bytes", "RINGDP_WINDOW_BYTES", "67108864", "0, 1048576..1099511627776",
       "devices: memory per rank through which tensors go in pieces, where they do not lie in shared memory; 0: "
       "collectives run on the host"},
      {"blocks", "RINGDP_BLOCKS", "0", "0..64",
       "devices: at most this many thread blocks of a rank work at a collective, each on a multiprocessor of its own; "
       "small ones take fewer; 0: 24, and at most half of the device for the ranks on it; all of it where the ranks "
       "are processes that share one"},
      {"tcp_streams", "RINGDP_TCP_STREAMS", "0", "0..64",
       "TCP connections that carry a pair's collectives; 0: 1, from 25 Gb/s 4, from 100 Gb/s 8; at least 4 between two "
       "ranks that are 10 ms apart"},
      {"spin_us", "RINGDP_SPIN_US", "50", "0..1000000",
       "how long a wait polls before it sleeps (at most 15 where ranks outnumber cores)"},
      {"late_ms", "RINGDP_LATE_MS", "0", "0, 10..86400000",
       "a rank that keeps others waiting this long is reported; 0: one whose process is stopped within a second, "
       "others after 10 s or 20 times what that call usually waits, whichever is longer, once for each call"},
      {"unreachable_ms", "RINGDP_UNREACHABLE_MS", "5000", "100..86400000",
       "TCP data not acknowledged for this long: the peer is lost, at most a second later"},
      {"one_shot_bytes_of_two", "RINGDP_ONE_SHOT_BYTES_OF_TWO", "131072", kBytes,
       "shared memory, 2 ranks: sums up to this size are one shot, larger ones run in stages"},
      {"one_shot_bytes_of_more", "RINGDP_ONE_SHOT_BYTES_OF_MORE", "32768", kBytes, "the same, more ranks"},
      {"one_pass_bytes_of_two", "RINGDP_ONE_PASS_BYTES_OF_TWO", "4096", kBytes,
       "2 ranks: larger tensors of ringdp.empty are not copied"},
      {"one_pass_bytes_of_more", "RINGDP_ONE_PASS_BYTES_OF_MORE", "16384", kBytes, "the same, more ranks"},
      {"slot_bytes_of_two", "RINGDP_SLOT_BYTES_OF_TWO", "524288", kSlotBytes,
       "slot_bytes=0 means this for 2 ranks on one host"},
      {"slot_bytes_of_more", "RINGDP_SLOT_BYTES_OF_MORE", "1048576", kSlotBytes, "the same, more ranks"},
      {"slot_bytes_across_hosts", "RINGDP_SLOT_BYTES_ACROSS_HOSTS", "1048576", kSlotBytes,
       "the same, ranks on several hosts"},
      {"nontemporal_bytes", "RINGDP_NONTEMPORAL_BYTES", "25165824", kBytes,
       "shared memory: moves with more output on all ranks together use non-temporal stores"},
      {"direct_ranks", "RINGDP_DIRECT_RANKS", "16", "1..1048576",
       "links: up to this many ranks, every rank talks to every other, whatever the size"},
      {"direct_bytes", "RINGDP_DIRECT_BYTES", "1048576", kBytes,
       "links: up to this size direct, also with more than direct_ranks ranks and instead of hierarchy"},
      {"exchange_bytes", "RINGDP_EXCHANGE_BYTES", "24576", kBytes,
       "links between hosts: exchange for all_reduces for which a rank sends up to this much more than by direct"},
      {"tree_bytes", "RINGDP_TREE_BYTES", "262144", kBytes,
       "links: with more than direct_ranks ranks, broadcasts up to this size are a tree, larger ones a ring"},
      {"", "RINGDP_TUNE", "auto", "auto, off or a file",
       "where `ringdp tune` keeps its thresholds; auto: a file per host in the user's cache"},
      {"", "RINGDP_LOG", "warning", kLogLevels, "what is written to stderr"},
      {"", "RINGDP_TRACE", "", "a folder",
       "where each rank writes its latest events when it leaves or fails; empty: nowhere"},
      {"", "RINGDP_TRACE_EVENTS", kTraceEvents, "0, 64..16777216",
       "events that a rank keeps in memory, 64 bytes each; 0: none"},
      {"", "RINGDP_PROMETHEUS_PORT", "", "a port, 1..65535",
       "serves ringdp.stats() to Prometheus on 127.0.0.1, at this port + LOCAL_RANK; empty: not"},
      {"", "RINGDP_WATCH", "0", "0|1", "1: ringdp.watch() for every DistributedDataParallel, torch's and ringdp's"},
      {"", "RINGDP_AUTOLOAD", "1", "0|1", "0: do not register the backend at `import torch`"},
      {"", "RINGDP_AS", "", "gloo|cpu-default",
       "which groups are ringdp's without naming it: those that name gloo, or those on the CPU that name no backend; "
       "empty: none"},
      {"", "RINGDP_ATTACH", "", "audit:FOLDER or doctor:FOLDER",
       "set by `ringdp audit` and `ringdp doctor`: what a rank writes down, and where"},
      {"", "RINGDP_JOB", "", "words",
       "set by commands that run a job (`-- COMMAND`): by it they find the processes that the job leaves"},
      {"", "RINGDP_MEMBER", "", "member@host:port",
       "set by `ringdp run --min-ranks`: the number of this process among those that come and go, and the job's store"},
      {"", "RINGDP_CUDA", "auto", "auto|on|off", "build time only: compile the CUDA part"},
      {"", "RINGDP_CUDA_ARCHS", "auto", "auto, all or numbers: 80;90",
       "build time only: for which devices; auto: those that are here, else 80"},
      {"", "RINGDP_GPU_LIBRARY", "", "a file", "the CUDA part, instead of the one next to the extension"},
      {"", "RINGDP_NCCL", "", "a file",
       "the NCCL library, which carries tensors of devices between hosts, where the process has not loaded one; empty: "
       "libnccl.so.2"},
      {"", "RINGDP_OPENSSL", "", "a file", "the libssl of OpenSSL 3, which TLS needs; empty: libssl.so.3"},
      {"", "MASTER_ADDR", "", "a host name or address", "set by torchrun; picks the default TCP interface"},
  };
  return kTable;
}

void set_field(Settings& s, const std::string& field, const std::string& value) {
  if (field == "transport") {
    s.transport = parse_choice<TransportChoice>("transport", kTransports, value);
  } else if (field == "algorithm") {
    s.algorithm = parse_choice<AlgorithmChoice>("algorithm", kAlgorithms, value);
  } else if (field == "order") {
    s.order = parse_choice<Order>("order", kOrders, value);
  } else if (field == "wire") {
    s.wire = parse_choice<WireType>("wire", kWires, value);
  } else if (field == "check") {
    s.check = parse_choice<Check>("check", kChecks, value);
  } else if (const auto* text = find_field(kTextFields, field)) {
    if (value.find('\0') != std::string::npos) refuse(field, value.c_str(), "text without a zero byte");
    s.*text->member = value;
  } else if (const auto* f = find_field(kIntFields, field)) {
    s.*f->member = parse_int(*f, value);
  } else if (const auto* f = find_field(kThresholdFields, field)) {
    s.thresholds.*f->member = parse_int(*f, value);
  } else {
    refuse_unknown(field);
  }
}

std::string get_field(const Settings& s, const std::string& field) {
  if (field == "transport") return choice_at(kTransports, static_cast<int>(s.transport));
  if (field == "algorithm") return choice_at(kAlgorithms, static_cast<int>(s.algorithm));
  if (field == "order") return choice_at(kOrders, static_cast<int>(s.order));
  if (field == "wire") return choice_at(kWires, static_cast<int>(s.wire));
  if (field == "check") return choice_at(kChecks, static_cast<int>(s.check));
  if (const auto* text = find_field(kTextFields, field)) return s.*text->member;
  if (const auto* f = find_field(kIntFields, field)) return std::to_string(s.*f->member);
  if (const auto* f = find_field(kThresholdFields, field)) return std::to_string(s.thresholds.*f->member);
  refuse_unknown(field);
}

Settings settings_from_environment(Settings settings) {
  for (const SettingRow& row : setting_table()) {
    const auto value = *row.field ? read_env(row.variable) : std::nullopt;
    if (!value) continue;
    try {
      set_field(settings, row.field, *value);
    } catch (const Error& error) {
      throw Error(ErrorKind::kInvalidArgument, std::string(row.variable) + ": " + error.what());
    }
  }
  return settings;
}

SettingValue describe_setting(const SettingRow& row) {
  const auto value = read_env(row.variable);
  return value ? SettingValue{*value, "environment"} : SettingValue{row.fallback, "default"};
}

LogLevel log_level_from_environment() {
  const auto value = read_env("RINGDP_LOG");
  return value ? parse_choice<LogLevel>("RINGDP_LOG", kLogLevels, *value) : LogLevel::kWarning;
}

int64_t trace_events_from_environment() {
  static constexpr IntField<Settings> kField{"RINGDP_TRACE_EVENTS", nullptr, 64, 1 << 24, true};
  return parse_int(kField, read_env(kField.field).value_or(kTraceEvents));
}

std::optional<std::string> read_env(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::string to_text(const Thresholds& thresholds) {
  std::string text;
  for (const auto& f : kThresholdFields) {
    if (!text.empty()) text += " ";
    text += std::string(f.field) + "=" + std::to_string(thresholds.*f.member);
  }
  return text;
}

std::optional<Thresholds> thresholds_from_text(const std::string& text) {
  Thresholds thresholds;
  size_t at = 0;
  for (const auto& f : kThresholdFields) {
    const std::string name = std::string(at == 0 ? "" : " ") + f.field + "=";
    if (text.compare(at, name.size(), name) != 0) return std::nullopt;
    const char* const number = text.data() + at + name.size();
    const auto [end, error] = std::from_chars(number, text.data() + text.size(), thresholds.*f.member);
    const int64_t value = thresholds.*f.member;
    if (error != std::errc() || value < f.low || value > f.high) return std::nullopt;
    at = static_cast<size_t>(end - text.data());
  }
  // "007" parses but is not what to_text() writes.
  if (to_text(thresholds) != text) return std::nullopt;
  return thresholds;
}

}  // namespace ringdp
