// Every setting of ringdp in one table: name, Options field, environment variable, default, help; and the thresholds
// that `ringdp tune` measures.
// Precedence: call > Options > environment > tuned (`ringdp tune`) > default. Only settings.cc calls getenv.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/log.h"

namespace ringdp {

// Sizes at which one algorithm takes over from another, measured by `ringdp tune`; in bytes unless the name says ranks.
//
// All ranks of a group use rank 0's (see comm/bootstrap.h), so they can never choose differently. None changes a
// result: every algorithm that they choose sums in rank order. "of_two": for groups of two ranks, where there is one
// other tensor to read; "of_more": for larger ones. The defaults were measured on 2 cores (N = 2, 4, 8), or computed by
// benchmarks/scale_model.py where several hosts are needed.
struct Thresholds {
  // Arena: sums up to this size are one shot; for larger ones a second barrier costs less than reading all tensors.
  int64_t one_shot_bytes_of_two = 128 << 10;
  int64_t one_shot_bytes_of_more = 32 << 10;
  // Arena: larger tensors in heaps are accessed in place; for smaller ones, headers and slots share one barrier.
  int64_t one_pass_bytes_of_two = 4 << 10;
  int64_t one_pass_bytes_of_more = 16 << 10;
  // Staging slot of slot_bytes=0. All slots have to stay in cache, and a stage has to be worth its barrier, which costs
  // more with more ranks; across hosts it has to be worth a chain over all of them.
  int64_t slot_bytes_of_two = 512 << 10;
  int64_t slot_bytes_of_more = 1 << 20;
  int64_t slot_bytes_across_hosts = 1 << 20;
  // Moves (no sums) with more output than this on all ranks together use non-temporal stores: about the size of one
  // host's last-level cache. Measured with 32 MiB of it: 0.8 of the time from 32 MiB on, 1.1 to 1.35 at 16 MiB.
  int64_t nontemporal_bytes = 24 << 20;
  // Links: up to this many ranks, an owner can receive from all others at once, whatever the size.
  int64_t direct_ranks = 16;
  // Links: with more than direct_ranks ranks, and instead of hierarchy, direct up to this size. A hierarchy is one
  // stage then, whose hops from host to host do not overlap; and what flows into one port at once fits into a switch.
  int64_t direct_bytes = 1 << 20;
  // Links between hosts: exchange saves one of direct's two latency steps where a rank sends up to this much more: what
  // 10 Gb/s carry in 20 us, one step. With two ranks it sends no more at any size.
  int64_t exchange_bytes = 24 << 10;
  // Links: with more than direct_ranks ranks, broadcasts up to this size are a tree: a ring would pass it on N-1 times.
  int64_t tree_bytes = 256 << 10;

  int64_t one_shot_bytes(int ranks) const { return ranks <= 2 ? one_shot_bytes_of_two : one_shot_bytes_of_more; }
  int64_t one_pass_bytes(int ranks) const { return ranks <= 2 ? one_pass_bytes_of_two : one_pass_bytes_of_more; }
  int64_t slot_bytes(int ranks, bool one_host) const {
    return !one_host ? slot_bytes_across_hosts : ranks <= 2 ? slot_bytes_of_two : slot_bytes_of_more;
  }
};

// A field of Owner that holds an integer from low to high, or 0 where or_zero is set.
template <class Owner>
struct IntField {
  const char* field;
  int64_t Owner::*member;
  int64_t low, high;
  bool or_zero = false;
};

constexpr int64_t kMostBytes = int64_t{1} << 40;
inline constexpr IntField<Thresholds> kThresholdFields[] = {
    {"one_shot_bytes_of_two", &Thresholds::one_shot_bytes_of_two, 0, kMostBytes},
    {"one_shot_bytes_of_more", &Thresholds::one_shot_bytes_of_more, 0, kMostBytes},
    {"one_pass_bytes_of_two", &Thresholds::one_pass_bytes_of_two, 0, kMostBytes},
    {"one_pass_bytes_of_more", &Thresholds::one_pass_bytes_of_more, 0, kMostBytes},
    {"slot_bytes_of_two", &Thresholds::slot_bytes_of_two, 4096, 1 << 30},
    {"slot_bytes_of_more", &Thresholds::slot_bytes_of_more, 4096, 1 << 30},
    {"slot_bytes_across_hosts", &Thresholds::slot_bytes_across_hosts, 4096, 1 << 30},
    {"nontemporal_bytes", &Thresholds::nontemporal_bytes, 0, kMostBytes},
    {"direct_ranks", &Thresholds::direct_ranks, 1, 1 << 20},
    {"direct_bytes", &Thresholds::direct_bytes, 0, kMostBytes},
    {"exchange_bytes", &Thresholds::exchange_bytes, 0, kMostBytes},
    {"tree_bytes", &Thresholds::tree_bytes, 0, kMostBytes},
};

// "one_shot_bytes_of_two=131072 ...", all fields in the order of the table.
std::string to_text(const Thresholds& thresholds);
// nullopt unless `text` is what to_text() writes: every field once, each within its bounds.
std::optional<Thresholds> thresholds_from_text(const std::string& text);

enum class TransportChoice { kAuto, kShm, kTcp };
enum class AlgorithmChoice { kAuto, kArena, kDirect, kExchange, kRing, kHierarchy, kTree, kHalving, kServer };
enum class Order { kRank, kRotated, kTree };
enum class Check { kCrc32c, kOff };

// The settings of one group. Sizes in bytes.
struct Settings {
  TransportChoice transport = TransportChoice::kAuto;
  AlgorithmChoice algorithm = AlgorithmChoice::kAuto;
  Order order = Order::kRank;
  WireType wire = WireType::kFp32;        // of sums of wider floats on links
  Check check = Check::kCrc32c;           // of what TCP links carry
  std::string socket_ifname;              // empty: the interface that routes to the master
  std::string tls_cert, tls_key, tls_ca;  // PEM files; of this host
  int64_t segment_bytes = 256 << 10;      // pipelining unit on links
  int64_t slot_bytes = 0;          // staging slot per rank in the arena (two of them); 0: by thresholds and ranks
  int64_t link_bytes = 512 << 10;  // capacity of one shared-memory link direction
  int64_t heap_bytes = int64_t{64} << 30;  // address space per rank for tensors in shared memory; 0: none
  int64_t window_bytes = 64 << 20;         // staging memory per rank on its device; 0: collectives run on the host
  int64_t blocks = 0;                      // thread blocks of a rank per collective on devices, at most; 0: by device
  int64_t tcp_streams = 0;                 // connections per peer; 0: by speed and distance
  int64_t spin_us = 50;                    // how long a wait polls before it sleeps
  int64_t late_ms = 0;                     // waits this long are reported; 0: by comm/lateness.h
  int64_t unreachable_ms = 5000;           // unacknowledged TCP data for this long: the peer's host is lost
  Thresholds thresholds;                   // all ranks use rank 0's

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

// Sets the field of that name from text. InvalidArgument names the value, the field and what is expected.
void set_field(Settings& settings, const std::string& field, const std::string& value);
std::string get_field(const Settings& settings, const std::string& field);

// `settings` (defaults, or tuned) overridden by the environment. InvalidArgument on a bad value, naming the
// variable and what is expected.
Settings settings_from_environment(Settings settings = {});
SettingValue describe_setting(const SettingRow& row);

// The threshold of RINGDP_LOG. InvalidArgument on a bad value.
LogLevel log_level_from_environment();

// RINGDP_TRACE_EVENTS: how many events a process keeps. InvalidArgument on a bad value.
int64_t trace_events_from_environment();

// The value of an environment variable that is not a Settings field (MASTER_ADDR, RINGDP_LOG); nullopt when unset or
// empty.
std::optional<std::string> read_env(const char* variable);

}  // namespace ringdp
