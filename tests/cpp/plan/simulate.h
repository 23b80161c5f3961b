// Runs the plans of all ranks in one thread: bounded links, one arena per host, channels picked at random.
//
// Links take a few bytes at a time, so a tensor that is overwritten while it is being sent shows.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "oracle.h"
#include "plan/plan.h"

namespace ringdp::plan::testing {

// ---- arenas: two slots per rank that remember which rank accessed each byte when
//
// An access that no barrier orders is reported as a race whatever the schedule was. Ranks are group ranks here.

// Where a rank is between barriers.
struct Barriers {
  uint64_t arrived = 0, passed = 0;
};

class SimSlot {
 public:
  SimSlot() = default;
  SimSlot(int owner, int64_t size, int world)
      : bytes(size), owner_(owner), written_(size), read_(world, std::vector<uint64_t>(size)) {}

  Bytes bytes;

  // Notes the access and returns "" or what is wrong with it.
  std::string access(int r, const std::vector<Barriers>& ranks, int64_t begin, int64_t end, bool writes) {
    for (int64_t i = begin; i < end; ++i) {
      const std::string fault = writes ? write(r, ranks, i) : read(r, ranks[r], i);
      if (!fault.empty()) return "race: rank " + std::to_string(r) + ", slot of " + std::to_string(owner_) + fault;
    }
    return "";
  }

 private:
  std::string read(int r, const Barriers& rank, int64_t i) {
    if (written_[i] == 0) return ": read before it was written";
    if (owner_ != r && rank.passed < written_[i]) return ": read before it was published";
    read_[r][i] = rank.arrived + 1;
    return "";
  }

  std::string write(int r, const std::vector<Barriers>& ranks, int64_t i) {
    if (owner_ != r) return ": written by another rank";
    for (int q = 0; q < static_cast<int>(ranks.size()); ++q) {
      if (q != r && ranks[r].passed < read_[q][i]) return ": written under a reader";
    }
    written_[i] = ranks[r].arrived + 1;
    return "";
  }

  int owner_ = 0;
  std::vector<uint64_t> written_;            // by byte: the barrier that publishes the last write
  std::vector<std::vector<uint64_t>> read_;  // by reader and byte: the barrier after its last read
};

// ---- ranks

struct Memory {
  std::byte* at = nullptr;
  int64_t bytes = 0;
};

struct Job {
  const Plan* plan = nullptr;
  std::vector<Memory> inputs, outputs;
};

class Simulator {
 public:
  // `hosts`: first rank of each; empty: all ranks share one arena.
  Simulator(int world, size_t link_bytes, int64_t slot_bytes, uint64_t seed, const std::vector<int>& hosts = {})
      : link_bytes_(link_bytes), random_(seed), ranks_(world), barriers_(world), host_(world), slots_(world) {
    for (const int first : hosts) std::fill(host_.begin() + first, host_.end(), first);
    for (int r = 0; r < world; ++r) slots_[r].fill(SimSlot(r, slot_bytes, world));
  }

  // Jobs of a rank run one after the other; nothing but the plans holds ranks together.
  void add(int rank, Job job) { ranks_[rank].jobs.push_back(std::move(job)); }

  // "" or what went wrong: "deadlock: ...", "race: ...", "bounds: ...", "left over: ...",
  // "announced: ...".
  std::string run() {
    std::vector<std::pair<int, size_t>> choices;
    for (bool moved = true; moved && error_.empty();) {
      moved = false;
      choices.clear();
      for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
        moved |= enter_next_job(r);
        for (size_t channel = 0; channel < ranks_[r].channels.size(); ++channel) choices.push_back({r, channel});
      }
      std::shuffle(choices.begin(), choices.end(), random_);
      for (const auto& [r, channel] : choices) moved |= advance(r, channel);
    }
    if (error_.empty()) find_leftovers();
    return error_;
  }

 private:
  struct ChannelState {
    size_t step = 0, bytes = 0;  // of the step's message, with what announces it
    uint64_t barrier = 0;
    int64_t announced = 0;
  };
  struct RankState {
    std::vector<Job> jobs;
    size_t next_job = 0;
    std::vector<ChannelState> channels;
    Bytes scratch;
    int32_t stage_base = 0, stages = 0;
    bool reaches_peers = false;  // then the job starts when all ranks have entered theirs of this number
  };
  const Plan& plan(int r) const { return *ranks_[r].jobs[ranks_[r].next_job - 1].plan; }
  const Job& job(int r) const { return ranks_[r].jobs[ranks_[r].next_job - 1]; }
  void fail(const std::string& what) { error_ = error_.empty() ? what : error_; }

  bool over(int r) const {
    for (size_t channel = 0; channel < ranks_[r].channels.size(); ++channel) {
      if (ranks_[r].channels[channel].step < plan(r).channels[channel].steps.size()) return false;
    }
    return true;
  }

  bool enter_next_job(int r) {
    RankState& rank = ranks_[r];
    if (!over(r) || rank.next_job == rank.jobs.size()) return false;
    rank.stage_base += rank.stages;
    rank.stages = 0;
    rank.reaches_peers = false;
    bool begins_with_flags = false;  // kernels' plans say so themselves when all ranks have entered
    ++rank.next_job;
    rank.channels.assign(plan(r).channels.size(), {});
    rank.scratch.assign(plan(r).scratch_bytes, std::byte{0xff});
    for (const Channel& channel : plan(r).channels) {
      for (const Step& step : channel.steps) {
        begins_with_flags |= step.number == 0 && step.srcs.empty() && step.dsts.empty();
        for (const auto* refs : {&step.srcs, &step.dsts}) {
          for (const Ref& ref : *refs) {
            if (ref.space == Space::kSlot) rank.stages = std::max(rank.stages, ref.stage + 1);
            rank.reaches_peers |= ref.space == Space::kPeerInput || ref.space == Space::kPeerOutput;
          }
        }
      }
    }
    rank.reaches_peers &= !begins_with_flags;
    return true;
  }

  bool all_entered(int r) const {
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [&](const RankState& q) { return q.next_job >= ranks_[r].next_job; });
  }

  bool advance(int r, size_t channel) {
    ChannelState& state = ranks_[r].channels[channel];
    const std::vector<Step>& steps = plan(r).channels[channel].steps;
    if (state.step == steps.size() || !error_.empty()) return false;
    if (ranks_[r].reaches_peers && !all_entered(r)) return false;
    const Step& step = steps[state.step];
    for (const After& after : step.after) {
      if (ranks_[r].channels[after.channel].step < static_cast<size_t>(after.steps)) return false;
    }
    const size_t before = state.bytes;
    if (!run_step(r, step, state)) return state.bytes != before;
    state.bytes = 0;
    ++state.step;
    return true;
  }

  bool run_step(int r, const Step& step, ChannelState& state) {
    Barriers& mine = barriers_[r];
    switch (step.verb) {
      case Verb::kSend:
        return send(r, step, state);
      case Verb::kRecv:
        return receive(r, step, state);
      case Verb::kFold:
        return fold(r, step);
      case Verb::kCopy:
        copy(r, step);
        return true;
      case Verb::kEncode:
      case Verb::kDecode:
        recode(r, step);
        return true;
      case Verb::kArrive:
        state.barrier = ++mine.arrived;
        return true;
      case Verb::kPost:
        ++flags_[{r, step.peer}];
        return true;
      case Verb::kAwait:
        return take_flag(step.peer, r);
      case Verb::kPush:
        push(r, step.srcs[0]);
        return true;
      case Verb::kWait:
        break;
    }
    for (size_t q = 0; q < ranks_.size(); ++q) {
      if (host_[q] == host_[r] && barriers_[q].arrived < state.barrier) return false;
    }
    mine.passed = std::max(mine.passed, state.barrier);
    return true;
  }

  bool take_flag(int from, int to) {
    int& flags = flags_[{from, to}];
    return flags > 0 ? flags--, true : false;
  }

  void push(int r, const Ref& src) {
    const std::byte* from = resolve(r, src, false);
    for (int q = 0; from != nullptr && q < static_cast<int>(ranks_.size()); ++q) {
      if (q != r) pushed_[{r, q}].emplace_back(from, from + bytes_of(plan(r), src));
    }
  }

  // At most a random number of bytes at once, so that messages are cut anywhere.
  size_t some_of(size_t bytes) { return bytes == 0 ? 0 : 1 + random_() % bytes; }

  // The rest of a message of which `done` bytes have passed: what announces it, then the payload.
  struct Rest {
    std::byte* at;
    size_t bytes;
  };
  static Rest rest_of(bool announce, int64_t& length, std::byte* payload, size_t size, size_t done) {
    const size_t ahead = announce ? sizeof(length) : 0;
    if (done < ahead) return {reinterpret_cast<std::byte*>(&length) + done, ahead - done};
    return {payload + (done - ahead), size - (done - ahead)};
  }

  bool send(int r, const Step& step, ChannelState& state) {
    int64_t length = bytes_of(plan(r), step.srcs[0]);
    std::byte* from = resolve(r, step.srcs[0], false);
    if (from == nullptr || step.peer == r) return fail("bounds: send"), false;
    const Rest rest = rest_of(step.announce, length, from, static_cast<size_t>(length), state.bytes);
    Bytes& pipe = pipes_[{r, step.peer}];
    const size_t n = some_of(std::min(rest.bytes, link_bytes_ - pipe.size()));
    pipe.insert(pipe.end(), rest.at, rest.at + n);
    return moved(step, state, n, length);
  }

  bool receive(int r, const Step& step, ChannelState& state) {
    const int64_t length = bytes_of(plan(r), step.dsts[0]);
    std::byte* to = resolve(r, step.dsts[0], true);
    if (to == nullptr || step.peer == r) return fail("bounds: receive"), false;
    const Rest rest = rest_of(step.announce, state.announced, to, static_cast<size_t>(length), state.bytes);
    Bytes& pipe = pipes_[{step.peer, r}];
    const size_t n = some_of(std::min(rest.bytes, pipe.size()));
    std::copy_n(pipe.begin(), n, rest.at);
    pipe.erase(pipe.begin(), pipe.begin() + static_cast<std::ptrdiff_t>(n));
    const bool over = moved(step, state, n, length);
    if (step.announce && state.bytes == sizeof(int64_t) && state.announced != length) {
      fail("announced: " + std::to_string(state.announced) + " bytes, expected " + std::to_string(length));
    }
    return over;
  }

  static bool moved(const Step& step, ChannelState& state, size_t n, int64_t length) {
    state.bytes += n;
    return state.bytes == static_cast<size_t>(length) + (step.announce ? sizeof(int64_t) : 0);
  }

  DType type_of(int r, const Ref& ref) const {
    return ref.form == Form::kWide ? wide_of(plan(r).dtype) : plan(r).dtype;
  }

  bool fold(int r, const Step& step) {
    const auto is_pushed = [](const Ref& ref) { return ref.space == Space::kPushed; };
    for (const Ref& src : step.srcs) {
      if (is_pushed(src) && pushed_[{src.index, r}].empty()) return false;
    }
    fold_all(r, step);
    for (const Ref& src : step.srcs) {
      if (is_pushed(src)) pushed_[{src.index, r}].pop_front();
    }
    return true;
  }

  void fold_all(int r, const Step& step) {
    const DType wide = wide_of(plan(r).dtype);
    std::vector<const std::byte*> from;
    for (const Ref& src : step.srcs) from.push_back(resolve(r, src, false));
    std::vector<std::byte*> to;
    for (const Ref& dst : step.dsts) to.push_back(resolve(r, dst, true));
    if (!error_.empty()) return;
    for (int64_t i = 0; i < step.dsts[0].count; ++i) {
      std::vector<double> values;
      for (size_t k = 0; k < from.size(); ++k) values.push_back(load(from[k], i, type_of(r, step.srcs[k])));
      const bool listed = step.program < 0;
      double sum = listed ? values[0] : by_program(plan(r), step.program, values, wide);
      for (size_t k = 1; listed && k < values.size(); ++k) {
        sum = combine(sum, values[k], wide, plan(r).op);
      }
      if (step.finish && plan(r).op == ReduceOp::kAvg) sum = divided(sum, plan(r).world, wide);
      for (size_t k = 0; k < to.size(); ++k) store(to[k], i, type_of(r, step.dsts[k]), sum);
    }
  }

  static double by_program(const Plan& plan, int program, const std::vector<double>& values, DType wide) {
    std::vector<double> sums;
    for (const int word : plan.programs.at(program)) {
      if (word != kAdd) {
        sums.push_back(values.at(word));
        continue;
      }
      const double right = sums.back();
      sums.pop_back();
      sums.back() = combine(sums.back(), right, wide, plan.op);
    }
    return sums.at(0);
  }

  void copy(int r, const Step& step) {
    const std::byte* from = resolve(r, step.srcs[0], false);
    for (const Ref& dst : step.dsts) {
      std::byte* to = resolve(r, dst, true);
      if (step.srcs[0].count != dst.count) fail("bounds: a copy between different counts");
      if (error_.empty()) std::memmove(to, from, bytes_of(plan(r), step.srcs[0]));
    }
  }

  void recode(int r, const Step& step) {
    const Ref &src = step.srcs[0], &dst = step.dsts[0];
    const std::byte* from = resolve(r, src, false);
    std::byte* to = resolve(r, dst, true);
    if (src.count != dst.count) fail("bounds: recoding between different counts");
    if (!error_.empty()) return;
    if (step.verb == Verb::kEncode) {
      const Bytes bytes = encoded(plan(r).wire, from, src.count, type_of(r, src));
      std::copy(bytes.begin(), bytes.end(), to);
    } else {
      decode_into(plan(r).wire, from, dst.count, type_of(r, dst), to);
    }
  }

  std::byte* resolve(int r, const Ref& ref, bool writes) {
    const int64_t size = bytes_of(plan(r), ref);
    Memory memory;
    switch (ref.space) {
      case Space::kInput:
        memory = job(r).inputs.at(ref.index);
        break;
      case Space::kOutput:
        memory = job(r).outputs.at(ref.index);
        break;
      case Space::kPeerInput:
      case Space::kPeerOutput:
        return resolve_at_peer(r, ref, size, writes);
      case Space::kScratch:
        memory = {ranks_[r].scratch.data(), static_cast<int64_t>(ranks_[r].scratch.size())};
        break;
      case Space::kPushed: {
        Bytes& bytes = pushed_[{ref.index, r}].front();
        memory = {bytes.data(), static_cast<int64_t>(bytes.size())};
        break;
      }
      case Space::kSlot: {
        SimSlot& slot = slots_.at(host_[r] + ref.index)[(ranks_[r].stage_base + ref.stage) & 1];
        memory = {slot.bytes.data(), static_cast<int64_t>(slot.bytes.size())};
        if (host_.at(host_[r] + ref.index) != host_[r]) fail("bounds: a slot of another host");
        if (ref.offset + size > memory.bytes) break;
        const std::string race = slot.access(r, barriers_, ref.offset, ref.offset + size, writes);
        if (!race.empty()) fail(race);
        break;
      }
    }
    if (ref.offset < 0 || ref.count < 0 || ref.offset + size > memory.bytes || (writes && ref.space == Space::kInput)) {
      fail("bounds: rank " + std::to_string(r) + " at byte " + std::to_string(ref.offset));
      return nullptr;
    }
    static std::byte nothing;  // empty buffers have no address
    return memory.at == nullptr ? &nothing : memory.at + ref.offset;
  }

  // Of a member of the host. Laid end to end there, in tensors of their own here.
  std::byte* resolve_at_peer(int r, const Ref& ref, int64_t size, bool writes) {
    const int peer = host_[r] + ref.index;
    if (ranks_[peer].next_job != ranks_[r].next_job || over(peer))
      fail("race: rank " + std::to_string(peer) + " has left");
    if (writes && ref.space == Space::kPeerInput) fail("bounds: an input of a peer is written");
    int64_t offset = ref.offset;
    const auto& tensors = ref.space == Space::kPeerInput ? job(peer).inputs : job(peer).outputs;
    const size_t of_root = plan(peer).what == Collective::kReduceScatter ? plan(peer).world : 1;
    const size_t first = ref.space == Space::kPeerInput ? ref.stage * of_root : 0;
    for (size_t i = first; i < tensors.size(); ++i) {
      const Memory& memory = tensors[i];
      if (offset < memory.bytes && offset + size <= memory.bytes) return memory.at + offset;
      offset -= memory.bytes;
    }
    fail("bounds: rank " + std::to_string(r) + " at byte " + std::to_string(ref.offset) + " of a tensor of a peer");
    return nullptr;
  }

  void find_leftovers() {
    for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
      if (!over(r) || ranks_[r].next_job < ranks_[r].jobs.size()) return fail("deadlock: rank " + std::to_string(r));
    }
    for (const auto& [ends, pipe] : pipes_) {
      if (!pipe.empty()) return fail("left over: bytes from rank " + std::to_string(ends.first));
    }
    for (const auto& [ends, flags] : flags_) {
      if (flags > 0) return fail("left over: flags from rank " + std::to_string(ends.first));
    }
  }

  const size_t link_bytes_;
  std::mt19937_64 random_;
  std::vector<RankState> ranks_;
  std::vector<Barriers> barriers_;              // by rank
  std::vector<int> host_;                       // by rank: first rank of its host
  std::vector<std::array<SimSlot, 2>> slots_;   // by rank and parity
  std::map<std::pair<int, int>, Bytes> pipes_;  // by sender and receiver
  std::map<std::pair<int, int>, int> flags_;    // the same, posted and not awaited
  std::map<std::pair<int, int>, std::deque<Bytes>> pushed_;
  std::string error_;
};

}  // namespace ringdp::plan::testing
