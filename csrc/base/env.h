// Every setting of ringdp in one table: name, Options field, environment variable, default, help.
// Precedence: call > Options > environment > tuned (`ringdp tune`) > default. Only env.cc calls getenv.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/thresholds.h"
#include "base/wire_type.h"

namespace ringdp {

enum class TransportChoice { kAuto, kShm, kTcp };
enum class AlgorithmChoice { kAuto, kArena, kDirect, kRing, kHierarchy, kTree, kServer };
enum class Order { kRank, kRotated };
enum class Check { kCrc32c, kOff };

// The values in force for one group.
struct Settings {
  TransportChoice transport = TransportChoice::kAuto;
  AlgorithmChoice algorithm = AlgorithmChoice::kAuto;
  Order order = Order::kRank;
  WireType wire = WireType::kFp32;     // of sums of wider floats, on links
  Check check = Check::kCrc32c;        // of what TCP links carry
  std::string socket_ifname;           // empty: the interface that routes to the master
  std::string tls_cert, tls_key, tls_ca;  // PEM files; of this host
  int64_t segment_bytes = 256 << 10;   // pipelining unit on links
  int64_t slot_bytes = 0;              // staging slot per rank in the arena (two of them); 0: by thresholds and ranks
  int64_t link_bytes = 512 << 10;      // capacity of one shared-memory link direction
  int64_t heap_bytes = int64_t{64} << 30;  // address space per rank for tensors in shared memory; 0: none
  int64_t window_bytes = 64 << 20;     // of each rank on its device, through which collectives there go; 0: none do
  int64_t tcp_streams = 0;             // connections per peer; 0: by the speed of the interface
  int64_t spin_us = 50;                // how long a wait polls before it sleeps
  int64_t late_ms = 1000;              // a peer that keeps others waiting this long is reported
  int64_t unreachable_ms = 5000;       // unacknowledged TCP data for this long: the peer's host is lost
  Thresholds thresholds;               // rank 0's are in force

  bool asks_for_tls() const { return !tls_cert.empty() || !tls_key.empty() || !tls_ca.empty(); }
};

// One row of the table.
struct SettingRow {
  const char* field;     // field of ringdp.Options, empty when it has none
  const char* variable;  // environment variable
  const char* fallback;  // default, as text
  const char* accepts;   // "auto|shm|tcp", "bytes, 4096..1073741824", ...
  const char* help;
};

const std::vector<SettingRow>& setting_table();

// Where the value of a row comes from, for `ringdp info`.
struct SettingValue {
  std::string value;
  std::string source;  // "default", "environment", "options"
};

// Sets the field of that name from text. InvalidArgument names the field, the value and what is accepted.
void set_field(Settings& settings, const std::string& field, const std::string& value);
std::string get_field(const Settings& settings, const std::string& field);

// `settings` (defaults, or tuned) overridden by the environment. InvalidArgument on a bad value, naming the
// variable and what is accepted.
Settings settings_from_environment(Settings settings = {});
SettingValue describe_setting(const SettingRow& row);

// The threshold of RINGDP_LOG. InvalidArgument on a bad value.
LogLevel log_level_from_environment();

// RINGDP_TRACE_EVENTS: how many events a process keeps. InvalidArgument on a bad value.
int64_t trace_events_from_environment();

// The value of an environment variable that is not a Settings field (MASTER_ADDR, RINGDP_LOG); nullopt when unset or empty.
std::optional<std::string> read_env(const char* variable);

}  // namespace ringdp
