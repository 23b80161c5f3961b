#include "collective/inspect.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <sstream>

#include "base/error.h"
#include "collective/executor.h"
#include "plan/catalog.h"
#include "transport/shm/shm_arena.h"

namespace ringdp::collective {
namespace {

using plan::After;
using plan::Form;
using plan::Plan;
using plan::Ref;
using plan::Space;
using plan::Step;
using plan::Verb;

const char* name_of(Verb verb) {
  static constexpr const char* kNames[] = {"send",   "recv", "fold", "copy",  "encode", "decode",
                                           "arrive", "wait", "post", "await", "push"};
  return kNames[static_cast<int>(verb)];
}

const char* name_of(Space space) {
  static constexpr const char* kNames[] = {"input", "output", "scratch", "slot", "peer input", "peer output", "pushed"};
  return kNames[static_cast<int>(space)];
}

int64_t bytes_of(const Plan& plan, const std::vector<Ref>& refs) {
  int64_t sum = 0;
  for (const Ref& ref : refs) sum += plan::bytes_of(plan, ref);
  return sum;
}

// The bytes of a step: those of one of its buffers, which all have the same count.
int64_t bytes_moved(const Plan& plan, const Step& step) {
  if (!step.dsts.empty()) return plan::bytes_of(plan, step.dsts[0]);
  return step.srcs.empty() ? 0 : plan::bytes_of(plan, step.srcs[0]);
}

// "input0[0:16]", "peer input2[0:16]" (member 2), "peer input2.1[0:16]" (its second root), "slot2.1[64:128]" (member 2,
// stage 1), "scratch[0:32]w" (w: wide, e: encoded); byte ranges.
std::string text_of(const Plan& plan, const Ref& ref) {
  std::string text = name_of(ref.space);
  if (ref.space != Space::kScratch) text += std::to_string(ref.index);
  if (ref.space == Space::kSlot || ref.stage > 0) text += "." + std::to_string(ref.stage);
  text += "[" + std::to_string(ref.offset) + ":" + std::to_string(ref.offset + plan::bytes_of(plan, ref)) + "]";
  return text + (ref.form == Form::kWide ? "w" : ref.form == Form::kEncoded ? "e" : "");
}

// "input0[0:16] + scratch[0:16] -> output0[0:16]".
std::string movement(const Plan& plan, const Step& step) {
  std::string text;
  for (const Ref& src : step.srcs) text += (text.empty() ? "" : " + ") + text_of(plan, src);
  for (size_t i = 0; i < step.dsts.size(); ++i) {
    text += i > 0 ? ", " : text.empty() ? "-> " : " -> ";
    text += text_of(plan, step.dsts[i]);
  }
  if (plan.programs.size() > 1 && step.program >= 0) text += " (program " + std::to_string(step.program) + ")";
  if (step.finish) text += " (finish)";
  if (step.nontemporal) text += " (non-temporal)";
  return step.announce ? text + " (announced)" : text;
}

std::string programs_of(const Plan& plan, const char* before, const char* between) {
  std::string text;
  for (const plan::AddProgram& program : plan.programs) {
    text += (text.empty() ? before : between) + plan::text_of(program);
  }
  return text;
}

std::string waits(const Plan& plan, const Step& step) {
  std::string text;
  for (const After& after : step.after) {
    text += text.empty() ? "after " : ", ";
    text += plan.channels[after.channel].name + "#" + std::to_string(after.steps);
  }
  return text;
}

std::string or_dash(int32_t number) { return number < 0 ? "-" : std::to_string(number); }

void write_row(std::ostream& out, const Plan& plan, size_t number, const Step& step) {
  char head[96];
  std::snprintf(head, sizeof(head), "  #%-5zu %-6s round %-4s peer %-4s %10lld B  ", number, name_of(step.verb),
                or_dash(step.round).c_str(), or_dash(step.peer).c_str(),
                static_cast<long long>(bytes_moved(plan, step)));
  const std::string what = movement(plan, step), after = waits(plan, step);
  out << head << what << (what.empty() || after.empty() ? "" : "  ") << after << "\n";
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    char escape[8];
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      std::snprintf(escape, sizeof(escape), "\\u%04x", c);
      out += escape;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// "[" + item(x0) + ", " + item(x1) ... + "]".
template <class Items, class Writer>
std::string list(const Items& items, Writer item) {
  std::string out = "[";
  for (const auto& x : items) out += (out.size() > 1 ? ", " : "") + item(x);
  return out + "]";
}

std::string json_of(const Plan& plan, const Ref& ref) {
  std::ostringstream out;
  out << "{\"space\": \"" << name_of(ref.space) << "\", \"wide\": " << (ref.form == Form::kWide ? "true" : "false")
      << ", \"encoded\": " << (ref.form == Form::kEncoded ? "true" : "false") << ", \"index\": " << ref.index
      << ", \"stage\": " << ref.stage << ", \"offset\": " << ref.offset << ", \"count\": " << ref.count
      << ", \"bytes\": " << plan::bytes_of(plan, ref) << "}";
  return out.str();
}

std::string json_of(const Plan& plan, const Step& step) {
  const auto ref = [&](const Ref& r) { return json_of(plan, r); };
  const auto after = [](const After& a) {
    return "{\"channel\": " + std::to_string(a.channel) + ", \"steps\": " + std::to_string(a.steps) + "}";
  };
  std::ostringstream out;
  out << "{\"verb\": \"" << name_of(step.verb) << "\", \"bytes\": " << bytes_moved(plan, step)
      << ", \"peer\": " << step.peer << ", \"round\": " << step.round << ", \"program\": " << step.program
      << ", \"finish\": " << (step.finish ? "true" : "false")
      << ", \"announce\": " << (step.announce ? "true" : "false")
      << ", \"nontemporal\": " << (step.nontemporal ? "true" : "false") << ", \"srcs\": " << list(step.srcs, ref)
      << ", \"dsts\": " << list(step.dsts, ref) << ", \"after\": " << list(step.after, after) << "}";
  return out.str();
}

std::string json_of(const PlanTotals& sums) {
  std::ostringstream out;
  out << "{\"steps\": " << sums.steps << ", \"rounds\": " << sums.rounds << ", \"sends\": " << sums.sends
      << ", \"bytes_sent\": " << sums.bytes_sent << ", \"bytes_received\": " << sums.bytes_received
      << ", \"memory_read\": " << sums.memory_read << ", \"memory_written\": " << sums.memory_written << "}";
  return out.str();
}

constexpr int kMaxRanks = 64;
constexpr int64_t kStreamBytes = 4096;

struct Rank {
  plan::Plan plan;
  std::vector<float> memory;
  std::vector<std::unique_ptr<transport::Link>> links;
  Fabric fabric;
  Workspace workspace;
  std::unique_ptr<Executor> executor;
  int last_round = 0;
};

void check(const std::vector<std::vector<float>>& inputs) {
  if (inputs.empty() || inputs.size() > kMaxRanks) {
    throw Error(ErrorKind::kInvalidArgument, "a walkthrough takes 1 to " + std::to_string(kMaxRanks) + " ranks, not " +
                                                 std::to_string(inputs.size()));
  }
  for (const auto& input : inputs) {
    if (input.size() == inputs[0].size()) continue;
    throw Error(ErrorKind::kInvalidArgument,
                "all ranks must bring equally many elements: " + std::to_string(inputs[0].size()) + " and " +
                    std::to_string(input.size()));
  }
}

std::vector<std::unique_ptr<transport::ShmArena>> make_arenas(int world) {
  const transport::SegmentLayout layout{world, 64, kStreamBytes};
  const auto members = std::make_shared<std::vector<transport::LocalMember>>();
  for (int i = 0; i < world; ++i) members->push_back({transport::Segment::create(layout), transport::Doorbell()});
  std::vector<std::unique_ptr<transport::ShmArena>> arenas;
  for (int i = 0; i < world; ++i) arenas.push_back(transport::ShmArena::create(i, layout, members));
  return arenas;
}

// Elements a fold or a receive has just produced, as an event; sends and waits produce none.
void note_event(Rank& rank, const plan::Step& step, const std::vector<void*>& dsts, std::vector<RingEvent>& events) {
  if (step.verb == plan::Verb::kRecv) rank.last_round = step.round;
  const bool folded = step.verb == plan::Verb::kFold && step.srcs.size() > 1;
  const bool copied = step.verb == plan::Verb::kRecv && step.dsts[0].space == plan::Space::kOutput;
  if (!folded && !copied) return;
  RingEvent event;
  event.kind = copied        ? RingEvent::Kind::kCopy
               : step.finish ? RingEvent::Kind::kFinalSum
                             : RingEvent::Kind::kPartialSum;
  event.rank = rank.plan.rank;
  event.round = rank.last_round;
  event.begin = (copied ? step.dsts[0] : step.srcs.back()).offset / static_cast<int64_t>(sizeof(float));
  const auto* values = static_cast<const float*>(dsts[0]);
  event.values.assign(values, values + step.dsts[0].count);
  events.push_back(std::move(event));
}

}  // namespace

PlanTotals totals(const Plan& plan) {
  PlanTotals sums;
  for (const plan::Channel& channel : plan.channels) {
    for (const Step& step : channel.steps) {
      ++sums.steps;
      sums.rounds = std::max<int64_t>(sums.rounds, step.round + 1);
      const int64_t read = bytes_of(plan, step.srcs), written = bytes_of(plan, step.dsts);
      if (step.verb == Verb::kSend) {
        ++sums.sends;
        sums.bytes_sent += read;
      } else if (step.verb == Verb::kRecv) {
        sums.bytes_received += written;
      } else {
        sums.memory_read += read;
        sums.memory_written += written;
      }
    }
  }
  return sums;
}

std::string to_text(const Plan& plan) {
  const PlanTotals sums = totals(plan);
  std::ostringstream out;
  out << plan.algorithm << " " << plan::name_of(plan.what) << " " << name_of(plan.op) << " " << name_of(plan.dtype)
      << (plan.wire == WireType::kFp32 ? "" : std::string(" as ") + name_of(plan.wire)) << ", rank " << plan.rank
      << " of " << plan.world << ": " << sums.steps << " steps, " << sums.rounds << " rounds, sends " << sums.bytes_sent
      << " B, receives " << sums.bytes_received << " B, scratch " << plan.scratch_bytes << " B"
      << programs_of(plan, ", adds up ", "; ") << "\n";
  for (const plan::Channel& channel : plan.channels) {
    if (channel.steps.empty()) continue;
    out << channel.name << "\n";
    for (size_t i = 0; i < channel.steps.size(); ++i) write_row(out, plan, i + 1, channel.steps[i]);
  }
  return out.str();
}

std::string to_json(const Plan& plan) {
  const auto channel = [&](const plan::Channel& l) {
    const auto step = [&](const Step& s) { return json_of(plan, s); };
    return "{\"name\": " + quoted(l.name) + ", \"steps\": " + list(l.steps, step) + "}";
  };
  std::ostringstream out;
  out << "{\"algorithm\": " << quoted(plan.algorithm) << ", \"collective\": " << quoted(plan::name_of(plan.what))
      << ", \"dtype\": " << quoted(name_of(plan.dtype)) << ", \"op\": " << quoted(name_of(plan.op))
      << ", \"wire\": " << quoted(name_of(plan.wire)) << ", \"rank\": " << plan.rank << ", \"world\": " << plan.world
      << ", \"programs\": " << list(plan.programs, [](const plan::AddProgram& p) { return quoted(plan::text_of(p)); })
      << ", \"scratch_bytes\": " << plan.scratch_bytes << ", \"totals\": " << json_of(totals(plan))
      << ", \"channels\": " << list(plan.channels, channel) << "}";
  return out.str();
}

Walkthrough walk_ring(const std::vector<std::vector<float>>& inputs, Order order) {
  check(inputs);
  const int world = static_cast<int>(inputs.size());
  const auto arenas = make_arenas(world);
  Walkthrough walk;
  std::vector<Rank> ranks(world);
  for (int r = 0; r < world; ++r) {
    Rank& rank = ranks[r];
    plan::Problem problem;
    problem.rank = r;
    problem.world = world;
    problem.count = static_cast<int64_t>(inputs[r].size());
    rank.plan = plan::make_plan(AlgorithmChoice::kRing, order, problem);
    rank.memory = inputs[r];
    for (int peer = 0; peer < world; ++peer) {
      rank.links.push_back(peer == r ? nullptr : arenas[r]->link_to(peer));
      rank.fabric.links.push_back(rank.links.back().get());
    }
    Opening opening;
    opening.seq = 1;
    opening.check = [](int, const transport::Header&) {};  // all ranks are built from one problem
    rank.executor =
        std::make_unique<Executor>(rank.plan, Buffers{{rank.memory.data()}, {rank.memory.data()}}, rank.fabric,
                                   rank.workspace, HeaderExchange(rank.fabric, r, world, std::move(opening)),
                                   [&rank, &walk](const plan::Step& step, const std::vector<void*>& dsts) {
                                     note_event(rank, step, dsts, walk.events);
                                   });
  }
  const auto unfinished = [](const Rank& rank) { return !rank.executor->done(); };
  while (std::any_of(ranks.begin(), ranks.end(), unfinished)) {
    for (Rank& rank : ranks) rank.executor->advance();
  }
  for (const Rank& rank : ranks) {
    walk.results.push_back(rank.memory);
    walk.totals.push_back(rank.executor->totals());
  }
  std::stable_sort(walk.events.begin(), walk.events.end(), [](const RingEvent& a, const RingEvent& b) {
    return std::pair(a.round, a.rank) < std::pair(b.round, b.rank);
  });
  return walk;
}

}  // namespace ringdp::collective
