// Where one way of doing a collective takes over from another: sizes in bytes, which `ringdp tune` measures.
//
// All ranks of a group use rank 0's (see comm/rendezvous.h), so they can never choose differently. None changes a
// result: everything they choose between sums in rank order. "of_two": groups of two ranks, where there is one other
// tensor to read; "of_more": larger ones. Where the defaults come from: measured on 2 cores (N = 2, 4, 8), or by
// benchmarks/scale_model.py where several hosts are needed.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace ringdp {

struct Thresholds {
  // Arena: sums up to here are one shot; beyond, a second barrier costs less than reading everyone's tensor.
  int64_t one_shot_bytes_of_two = 128 << 10;
  int64_t one_shot_bytes_of_more = 32 << 10;
  // Arena: tensors in heaps are worked on where they lie beyond here; below, notes and slots share one barrier.
  int64_t one_pass_bytes_of_two = 4 << 10;
  int64_t one_pass_bytes_of_more = 16 << 10;
  // Staging slot of slot_bytes=0. All slots have to stay in cache, and a stage has to be worth its barrier, which costs
  // more with more ranks; across hosts it has to be worth a chain over all of them.
  int64_t slot_bytes_of_two = 512 << 10;
  int64_t slot_bytes_of_more = 1 << 20;
  int64_t slot_bytes_across_hosts = 1 << 20;
  // Moves (no sums) whose outputs on all ranks together are more than this are written past the caches: about the last
  // level of one host. Measured with 32 MiB of it: 0.8 of the time from 32 MiB on, 1.1 to 1.35 at 16 MiB.
  int64_t past_caches_bytes = 24 << 20;
  // Links: up to so many ranks an owner can receive from all others at once, whatever the size.
  int64_t direct_ranks = 16;
  // Links: beyond direct_ranks, and instead of hierarchy, direct up to here. A hierarchy is one stage then, whose hops
  // from host to host do not overlap; and what flows into one port at once fits into a switch.
  int64_t direct_bytes = 1 << 20;
  // Links: broadcasts beyond direct_ranks are a tree up to here: one segment, which a ring would pass on N-1 times.
  int64_t tree_bytes = 256 << 10;

  int64_t one_shot_bytes(int ranks) const { return ranks <= 2 ? one_shot_bytes_of_two : one_shot_bytes_of_more; }
  int64_t one_pass_bytes(int ranks) const { return ranks <= 2 ? one_pass_bytes_of_two : one_pass_bytes_of_more; }
  int64_t slot_bytes(int ranks, bool one_host) const {
    return !one_host ? slot_bytes_across_hosts : ranks <= 2 ? slot_bytes_of_two : slot_bytes_of_more;
  }
};

// A field of Owner that holds a whole number from low to high, or, if so it says, 0.
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
    {"past_caches_bytes", &Thresholds::past_caches_bytes, 0, kMostBytes},
    {"direct_ranks", &Thresholds::direct_ranks, 1, 1 << 20},
    {"direct_bytes", &Thresholds::direct_bytes, 0, kMostBytes},
    {"tree_bytes", &Thresholds::tree_bytes, 0, kMostBytes},
};

// "one_shot_bytes_of_two=131072 ...", all fields in the order of the table.
std::string to_text(const Thresholds& thresholds);
// nullopt unless `text` is what to_text() writes: every field once, each within its bounds.
std::optional<Thresholds> thresholds_from_text(const std::string& text);

}  // namespace ringdp
